// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "page_launch.h"
#include "segment.cuh"
#include "vector_access.cuh"

namespace tutti::kv {

[[nodiscard]] constexpr bool moves_bytes(KernelMode mode) noexcept {
  return mode == KernelMode::kGather || mode == KernelMode::kScatter;
}

// Threads of a block and accesses of each of them that make a unit: what was fastest on an H200.
template <KernelMode kMode, bool kSum>
struct UnitShape {
  static constexpr std::uint32_t kVectors = kSum && moves_bytes(kMode) ? 2 : 4;
  static constexpr std::uint32_t kThreads = kPageUnitVectors / kVectors;
  static constexpr std::uint32_t kWarps = kThreads / kLanes;
  Vector16 values[kVectors];
};

// What a block of threads moves: a part of a page of a segment.
struct Unit {
  std::uint32_t segment;
  std::uint32_t row;  // of block_ids
  std::uint32_t page;
  std::uint32_t block;
  std::uint32_t part;
  std::uint32_t vector;  // this thread's first one in the page
};

__device__ __forceinline__ Unit find_unit(const TransferLaunch& launch, const PageCut& cut) {
  const std::uint32_t in_page = cut.pages.quotient(blockIdx.x);
  const std::uint32_t page_of_all = blockIdx.x - in_page * cut.pages.divisor;
  const std::uint32_t segment = cut.segment_pages.quotient(page_of_all);
  const std::uint32_t page = page_of_all - segment * cut.segment_pages.divisor;
  const std::uint32_t block = cut.parts.quotient(page);
  return {.segment = segment,
          .row = segment - launch.rows.quotient(segment) * launch.rows.divisor,
          .page = page,
          .block = block,
          .part = page - block * cut.parts.divisor,
          .vector = in_page * kPageUnitVectors + threadIdx.x};
}

// A segment's slot and layer, and whether it takes part.
struct PageSegment {
  std::byte* slot;
  std::uint32_t layer;
  Status status;
};

__device__ __forceinline__ PageSegment open_pages(const TransferLaunch& launch, std::uint32_t index) {
  const std::int64_t slot = launch.slots[index];
  const bool read = launch.read_status == nullptr || launch.read_status[index] == 0;
  const std::int64_t layer = launch.layer_of_segment == nullptr ? 0 : launch.layer_of_segment[index];
  const bool has_layer = static_cast<std::uint64_t>(layer) < launch.num_layers;
  const bool has_slot = static_cast<std::uint64_t>(slot) < static_cast<std::uint64_t>(launch.num_slots);
  return {.slot = launch.window + slot * launch.slot_bytes,
          .layer = has_layer ? static_cast<std::uint32_t>(layer) : 0,
          .status = !read                   ? Status::kNotRead
                    : has_layer && has_slot ? Status::kOk
                                            : Status::kOutOfRange};
}

// Where a layer's pages of one part are.
struct PagePlace {
  std::byte* base;
  std::int64_t block_stride;
  std::uint32_t num_ids;
};

__device__ __forceinline__ PagePlace place_of(const OneLayerTable& table, const PageCut& /*cut*/,
                                              std::uint32_t /*layer*/, std::uint32_t part) {
  return {.base = part == 0 ? table.bases[0] : table.bases[1],
          .block_stride = part == 0 ? table.block_strides[0] : table.block_strides[1],
          .num_ids = table.num_ids};
}

__device__ __forceinline__ PagePlace place_of(const ResidentTable& table, const PageCut& cut,
                                              std::uint32_t layer, std::uint32_t part) {
  const TablePlane& plane = table.planes[layer * cut.parts.divisor + part];
  return {.base = plane.base, .block_stride = plane.block_stride, .num_ids = table.layers[layer].num_ids};
}

// Address of a vector of the page that starts at `page`.
template <bool kStrided>
__device__ __forceinline__ std::byte* locate_vector(const PageCut& cut, std::byte* page,
                                                    std::uint32_t vector) {
  if constexpr (kStrided) {
    const std::uint32_t run = cut.run_vectors.quotient(vector);
    page += run * cut.run_stride;
    vector -= run * cut.run_vectors.divisor;
  }
  return page + std::int64_t{vector} * kPageVectorBytes;
}

// Zeros where a slot reaches beyond its segment. By a block that has no page.
template <typename Shape>
__device__ __forceinline__ void fill_rest(const TransferLaunch& launch, const PageCut& cut) {
  const std::uint32_t index = blockIdx.x - cut.page_blocks;
  const std::uint32_t segment = cut.rest_units.quotient(index);
  const std::uint32_t unit = index - segment * cut.rest_units.divisor;
  const PageSegment opened = open_pages(launch, segment);
#pragma unroll
  for (std::uint32_t i = 0; i < Shape::kVectors; ++i) {
    const std::uint32_t vector = unit * kPageUnitVectors + threadIdx.x + i * Shape::kThreads;
    const std::int64_t at = cut.used_bytes + std::int64_t{vector} * kPageVectorBytes;
    if (opened.status == Status::kOk && at < launch.slot_bytes) {
      store_once(reinterpret_cast<Vector16*>(opened.slot + at), Vector16{});
    }
  }
}

// What closing a segment takes beside its sum. Loaded at the start, since a launch's end waits for what is
// loaded there.
struct Closing {
  std::int64_t expected;
  bool ids_good;  // as far as this lane has looked
};

__device__ __forceinline__ bool is_good(const TransferLaunch& launch, std::int64_t id,
                                        std::uint32_t num_ids) {
  return static_cast<std::uint64_t>(id) < num_ids || (id == kNoBlock && launch.missing_blocks != 0);
}

__device__ __forceinline__ Closing prepare_closing(const TransferLaunch& launch, const std::int64_t* ids,
                                                   std::uint32_t segment, std::uint32_t num_ids) {
  const bool looks = threadIdx.x < kLanes;
  const bool at_id = looks && launch.status != nullptr && threadIdx.x < launch.columns;
  return {
      .expected = looks && launch.compare != 0 && launch.checksums != nullptr ? launch.checksums[segment] : 0,
      .ids_good = !at_id || is_good(launch, ids[threadIdx.x], num_ids)};
}

// Writes a segment's results. By the whole first warp.
__device__ __forceinline__ void close_pages(const TransferLaunch& launch, const PageCut& cut,
                                            const PageSegment& opened, const Closing& closing,
                                            const std::int64_t* ids, std::uint32_t num_ids,
                                            std::uint32_t segment, std::uint64_t sum) {
  Status status = opened.status;
  if (launch.status != nullptr) {
    bool good = closing.ids_good;
    for (std::uint32_t i = threadIdx.x + kLanes; i < launch.columns; i += kLanes) {
      good = good && is_good(launch, ids[i], num_ids);
    }
    good = __all_sync(kAllLanes, good) != 0;
    status = status == Status::kOk && !good ? Status::kOutOfRange : status;
  }
  if (threadIdx.x == 0) {
    write_results(launch, segment, status, opened.status == Status::kOk, cut.used_bytes, sum,
                  closing.expected);
  }
}

// Both sides of a unit.
struct UnitPlaces {
  std::byte* page;  // null where the id names no block
  std::byte* slot;  // of this thread's first vector; null where the segment takes no part
};

template <KernelMode kMode, bool kStrided, typename Shape>
__device__ __forceinline__ void load_unit(Shape& unit_bytes, const PageCut& cut, const Unit& unit,
                                          const UnitPlaces& places) {
#pragma unroll
  for (std::uint32_t i = 0; i < Shape::kVectors; ++i) {
    const std::uint32_t vector = unit.vector + i * Shape::kThreads;
    const bool is_there = vector < cut.page_vectors;
    unit_bytes.values[i] = Vector16{};
    if constexpr (reads_slots(kMode)) {
      if (is_there && places.slot != nullptr) {
        const std::byte* from = places.slot + i * Shape::kThreads * kPageVectorBytes;
        // A slot whose sum is taken is likely to be read again.
        unit_bytes.values[i] = kMode == KernelMode::kSumSlots
                                   ? load_once(reinterpret_cast<const Vector16*>(from))
                                   : load_streamed(reinterpret_cast<const Vector16*>(from));
      }
    } else if (is_there && places.page != nullptr) {
      const std::byte* from = locate_vector<kStrided>(cut, places.page, vector);
      unit_bytes.values[i] = load_streamed(reinterpret_cast<const Vector16*>(from));
    }
  }
}

template <KernelMode kMode, bool kStrided, typename Shape>
__device__ __forceinline__ void store_unit(const Shape& unit_bytes, const PageCut& cut, const Unit& unit,
                                           const UnitPlaces& places) {
#pragma unroll
  for (std::uint32_t i = 0; i < Shape::kVectors; ++i) {
    const std::uint32_t vector = unit.vector + i * Shape::kThreads;
    const bool is_there = vector < cut.page_vectors && places.slot != nullptr;
    if constexpr (kMode == KernelMode::kGather) {
      if (is_there) {
        std::byte* to = places.slot + i * Shape::kThreads * kPageVectorBytes;
        store_once(reinterpret_cast<Vector16*>(to), unit_bytes.values[i]);
      }
    } else if constexpr (kMode == KernelMode::kScatter) {
      if (is_there && places.page != nullptr) {
        std::byte* to = locate_vector<kStrided>(cut, places.page, vector);
        store_once(reinterpret_cast<Vector16*>(to), unit_bytes.values[i]);
      }
    }
  }
}

// The terms of this thread's part of a unit.
template <typename Shape>
__device__ __forceinline__ std::uint64_t sum_unit(const Shape& unit_bytes, const PageCut& cut,
                                                  const Unit& unit) {
  constexpr std::uint64_t kVectorFactor = kPageVectorBytes / kWordBytes * kIndexFactor;
  const std::uint64_t first = std::uint64_t{unit.page} * cut.page_vectors + unit.vector;
  const std::uint64_t position = first * kVectorFactor + kIndexFactor;
  std::uint64_t sum = 0;
#pragma unroll
  for (std::uint32_t i = 0; i < Shape::kVectors; ++i) {
    const std::uint32_t ahead = i * Shape::kThreads;
    const std::uint64_t terms = sum_terms(unit_bytes.values[i], position + ahead * kVectorFactor);
    sum += unit.vector + ahead < cut.page_vectors ? terms : 0;
  }
  return sum;
}

}  // namespace tutti::kv
