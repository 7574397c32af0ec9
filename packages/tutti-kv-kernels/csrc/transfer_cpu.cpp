// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "checksum.h"
#include "line_copy.h"
#include "packer.h"
#include "segment_walk.h"
#include "transfer.h"
#include "unpacker.h"

namespace tutti::kv {
namespace {

// Calls that move at least this much bypass the cache: it would not hold the result anyway.
constexpr std::int64_t kStreamingBytes = 8 << 20;

Stores stores_for(const TransferPlan& plan) noexcept {
  std::int64_t bytes = 0;
  for (const TransferPlan::Segment& segment : plan.segments) {
    bytes += plan.data_bytes(segment);
    if (bytes >= kStreamingBytes) {
      return Stores::kStreaming;
    }
  }
  return Stores::kCached;
}

// Gives each thread one run of segments, so that a thread knows which memory it needs next. `work(begin,
// end)`.
template <typename Work>
void split_segments(std::size_t segments, std::int64_t threads, const Work& work) noexcept {
  const std::size_t parts =
      std::clamp<std::size_t>(static_cast<std::size_t>(threads), 1, std::max<std::size_t>(segments, 1));
  const auto bound = [&](std::size_t part) {
    return segments / parts * part + std::min(part, segments % parts);
  };
  std::vector<std::jthread> helpers;
  std::size_t part = 1;
  try {
    for (; part < parts; ++part) {
      helpers.emplace_back([&work, begin = bound(part), end = bound(part + 1)] { work(begin, end); });
    }
  } catch (const std::exception&) {
    // The system has no thread left: this one does the rest.
    work(bound(part), segments);
  }
  work(0, bound(1));
}

// Where the first run of a segment is, to be prefetched.
const std::byte* start_of(const TransferPlan& plan, const TransferPlan::Segment& segment,
                          std::span<std::byte* const> storages) noexcept {
  const std::int64_t id = plan.ids_of(segment).front();
  const Plane& plane = segment.layer->merged.front();
  return storages[static_cast<std::size_t>(plane.storage)] +
         block_address(plane, std::max<std::int64_t>(id, 0));
}

}  // namespace

void gather_cpu(const TransferPlan& plan, std::span<std::byte* const> storages, std::byte* window,
                std::int64_t* checksums, std::int64_t threads) noexcept {
  const Stores stores = stores_for(plan);
  split_segments(plan.segments.size(), threads, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const TransferPlan::Segment& segment = plan.segments[i];
      std::byte* slot = window + segment.slot_offset;
      Packer packer(slot, stores);
      SegmentWalk<Packer>(plan, segment, storages, packer).run();
      const std::uint64_t sum =
          packer.finish(start_of(plan, plan.segments[i + 1 < end ? i + 1 : i], storages));
      const std::int64_t used = plan.data_bytes(segment);
      std::memset(slot + used, 0, static_cast<std::size_t>(plan.slot_bytes - used));
      checksums[i] = static_cast<std::int64_t>(sum);
    }
    finish_stores();
  });
}

void scatter_cpu(const TransferPlan& plan, const std::byte* window, const std::int64_t* checksums,
                 const std::int32_t* read_status, std::span<std::byte* const> storages, std::int32_t* status,
                 std::int64_t threads) noexcept {
  const Stores stores = stores_for(plan);
  const auto slot_of = [&](std::size_t i) { return window + plan.segments[i].slot_offset; };
  const auto is_read = [&](std::size_t i) { return read_status == nullptr || read_status[i] == 0; };
  const auto sums_of = [&](std::size_t i, std::size_t end) {
    // A slot that was not read is not looked at: its memory may be anything, and is left in peace.
    const bool wanted = i < end && is_read(i);
    return SlotSum(wanted ? slot_of(i) : nullptr, wanted ? plan.data_bytes(plan.segments[i]) : 0);
  };
  split_segments(plan.segments.size(), threads, [&](std::size_t begin, std::size_t end) {
    SlotSum sum = sums_of(begin, end);
    for (std::size_t i = begin; i < end; ++i) {
      SlotSum next = sums_of(i + 1, end);
      Status found = Status::kNotRead;
      if (is_read(i)) {
        const bool matches = sum.finish() == static_cast<std::uint64_t>(checksums[i]);
        found = matches ? Status::kOk : Status::kMismatch;
      }
      status[i] = static_cast<std::int32_t>(found);
      if (found == Status::kOk) {
        Unpacker unpacker(slot_of(i), next, stores);
        SegmentWalk<Unpacker>(plan, plan.segments[i], storages, unpacker).run();
        unpacker.finish();
      }
      sum = next;
    }
    finish_stores();
  });
}

}  // namespace tutti::kv
