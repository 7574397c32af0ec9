// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../checksum.h"
#include "segment_sums.cuh"

namespace tutti::kv {

[[nodiscard]] constexpr bool reads_slots(KernelMode mode) noexcept {
  return mode == KernelMode::kScatter || mode == KernelMode::kSumSlots;
}

// What all lanes of a warp know of the segment that they work on. The loads behind `takes_part` are not
// waited for before addresses are found and pages are read: only what is written depends on them.
struct Segment {
  const std::int64_t* ids;
  const TableLayer* layer;
  std::byte* slot;
  TokenWindow tokens;
  std::uint32_t used_granules;
  std::int64_t used_bytes;
  bool takes_part;
  Status status;
};

template <bool kTokens, typename Table>
__device__ __forceinline__ Segment open_segment(const TransferLaunch& launch, const Table& table,
                                                std::uint32_t index) {
  const std::int64_t slot = launch.slots[index];
  const bool read = launch.read_status == nullptr || launch.read_status[index] == 0;
  const std::int64_t named = launch.layer_of_segment == nullptr ? 0 : launch.layer_of_segment[index];
  const std::int64_t layer = static_cast<std::uint64_t>(named) < launch.num_layers ? named : 0;
  const bool good =
      static_cast<std::uint64_t>(slot) < static_cast<std::uint64_t>(launch.num_slots) && layer == named;
  const std::uint32_t row = index - launch.rows.quotient(index) * launch.rows.divisor;
  Segment segment{.ids = launch.block_ids + std::int64_t{row} * launch.columns,
                  .layer = &table.layers[layer],
                  .slot = launch.window + slot * launch.slot_bytes,
                  .tokens = {},
                  .used_granules = table.layers[layer].block_granules.divisor * launch.columns,
                  .used_bytes = 0,
                  .takes_part = read && good,
                  .status = !read  ? Status::kNotRead
                            : good ? Status::kOk
                                   : Status::kOutOfRange};
  segment.used_bytes = std::int64_t{segment.used_granules} << launch.granule_shift;
  if constexpr (kTokens) {
    segment.tokens = {launch.token_ranges[2 * index], launch.token_ranges[2 * index + 1]};
  }
  return segment;
}

// Whether every block id of the segment names a block, or says "no block" where that is allowed. By one whole
// warp.
__device__ __forceinline__ bool ids_in_range(const TransferLaunch& launch, const Segment& segment) {
  bool good = true;
  for (std::uint32_t i = threadIdx.x % kLanes; i < launch.columns; i += kLanes) {
    const std::int64_t id = segment.ids[i];
    const bool is_none = id == kNoBlock || (id < 0 && segment.layer->any_negative_id != 0);
    const bool is_block = id >= 0 && id < segment.layer->num_ids;
    good = good && (is_block || (is_none && launch.missing_blocks != 0));
  }
  return __all_sync(kAllLanes, good) != 0;
}

// Writes the results of a segment whose whole sum is known. `expected`: its checksum, where launch.compare
// says so.
__device__ __forceinline__ void write_results(const TransferLaunch& launch, std::uint32_t index,
                                              Status status, bool takes_part, std::int64_t used_bytes,
                                              std::uint64_t sum, std::int64_t expected) {
  if (launch.checksums != nullptr && takes_part) {
    const auto bytes = static_cast<std::uint64_t>(used_bytes);
    const auto checksum = static_cast<std::int64_t>(finish_checksum(sum, bytes));
    if (launch.compare == 0) {
      launch.checksums[index] = checksum;
    } else if (status == Status::kOk && expected != checksum) {
      status = Status::kMismatch;
    }
  }
  if (launch.status != nullptr) {
    launch.status[index] = static_cast<std::int32_t>(status);
  }
}

// The same, with the ids looked at. By one whole warp.
__device__ __forceinline__ void close_segment(const TransferLaunch& launch, const Segment& segment,
                                              std::uint32_t index, std::uint64_t sum) {
  Status status = segment.status;
  if (status == Status::kOk && launch.status != nullptr && !ids_in_range(launch, segment)) {
    status = Status::kOutOfRange;
  }
  if (threadIdx.x % kLanes == 0) {
    const bool compares = launch.compare != 0 && launch.checksums != nullptr;
    const std::int64_t expected = compares ? launch.checksums[index] : 0;
    write_results(launch, index, status, segment.takes_part, segment.used_bytes, sum, expected);
  }
}

}  // namespace tutti::kv
