// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "segment.cuh"
#include "vector_access.cuh"

namespace tutti::kv {

// Independent accesses of a lane that make one tile of a warp.
inline constexpr int kVectorsPerLane = 8;

// One tile's bytes on their way: vectors of this lane, and where they go to or come from on the paged side.
template <typename Vector>
struct Tile {
  static constexpr std::uint32_t kStep = kLanes * sizeof(Vector);
  static constexpr std::uint32_t kBytes = kStep * kVectorsPerLane;
  Vector values[kVectorsPerLane];
  std::byte* pages[kVectorsPerLane];

  // First byte of this lane's vector 0 in the segment; each next vector is kStep further on.
  [[nodiscard]] __device__ static std::int64_t first_byte(std::uint32_t tile) {
    return std::int64_t{tile} * kBytes + threadIdx.x % kLanes * static_cast<std::int64_t>(sizeof(Vector));
  }
};

// Finds the addresses on the paged side; null where there is no page byte.
template <bool kTokens, typename Vector, typename Table>
__device__ __forceinline__ void locate_tile(Tile<Vector>& moved, const Table& table,
                                            const TransferLaunch& launch, const Segment& segment,
                                            std::uint32_t tile) {
  constexpr std::uint32_t kStep = Tile<Vector>::kStep;
  const std::uint32_t lane = threadIdx.x % kLanes;
  const std::uint32_t shift = launch.granule_shift;
  const std::uint32_t tile_granules = Tile<Vector>::kBytes >> shift;
  const std::uint32_t first = tile * tile_granules;
  const std::uint32_t inside_mask = (1U << shift) - 1;
  if (tile_granules <= kLanes) {
    // Each granule's address is found by one lane, and read by all that need it.
    std::byte* own = nullptr;
    if (lane < tile_granules && first + lane < segment.used_granules) {
      own = locate_granule<kTokens>(table, *segment.layer, segment.ids, segment.tokens, first + lane, shift);
    }
    const auto own_bits = reinterpret_cast<std::uint64_t>(own);
#pragma unroll
    for (int i = 0; i < kVectorsPerLane; ++i) {
      const std::uint32_t at = i * kStep + lane * static_cast<std::uint32_t>(sizeof(Vector));
      const std::uint64_t base = __shfl_sync(kAllLanes, own_bits, static_cast<int>(at >> shift));
      moved.pages[i] = base == 0 ? nullptr : reinterpret_cast<std::byte*>(base + (at & inside_mask));
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kVectorsPerLane; ++i) {
    const std::uint32_t at = i * kStep + lane * static_cast<std::uint32_t>(sizeof(Vector));
    const std::uint32_t granule = first + (at >> shift);
    std::byte* base = nullptr;
    if (granule < segment.used_granules) {
      base = locate_granule<kTokens>(table, *segment.layer, segment.ids, segment.tokens, granule, shift);
    }
    moved.pages[i] = base == nullptr ? nullptr : base + (at & inside_mask);
  }
}

// Starts the loads of a tile.
template <KernelMode kMode, bool kTokens, typename Vector, typename Table>
__device__ __forceinline__ void load_tile(Tile<Vector>& moved, const Table& table,
                                          const TransferLaunch& launch, const Segment& segment,
                                          std::uint32_t tile) {
  const std::int64_t first = Tile<Vector>::first_byte(tile);
  if constexpr (kMode != KernelMode::kSumSlots) {
    locate_tile<kTokens>(moved, table, launch, segment, tile);
  }
#pragma unroll
  for (int i = 0; i < kVectorsPerLane; ++i) {
    moved.values[i] = Vector{};
    const std::int64_t at = first + i * Tile<Vector>::kStep;
    if constexpr (reads_slots(kMode)) {
      if (segment.takes_part && at < segment.used_bytes) {
        moved.values[i] = load_once(reinterpret_cast<const Vector*>(segment.slot + at));
      }
    } else if (moved.pages[i] != nullptr) {
      moved.values[i] = load_once(reinterpret_cast<const Vector*>(moved.pages[i]));
    }
  }
}

// Stores a loaded tile and returns this lane's part of the checksum's sum.
template <KernelMode kMode, bool kSum, typename Vector>
__device__ __forceinline__ std::uint64_t finish_tile(const Tile<Vector>& moved, const TransferLaunch& launch,
                                                     const Segment& segment, std::uint32_t tile) {
  const std::int64_t first = Tile<Vector>::first_byte(tile);
#pragma unroll
  for (int i = 0; i < kVectorsPerLane; ++i) {
    const std::int64_t at = first + i * Tile<Vector>::kStep;
    if constexpr (kMode == KernelMode::kGather) {
      if (segment.takes_part && at < launch.slot_bytes) {
        store_once(reinterpret_cast<Vector*>(segment.slot + at), moved.values[i]);
      }
    } else if constexpr (kMode == KernelMode::kScatter) {
      if (segment.takes_part && moved.pages[i] != nullptr) {
        store_once(reinterpret_cast<Vector*>(moved.pages[i]), moved.values[i]);
      }
    }
  }
  std::uint64_t sum = 0;
  if constexpr (kSum) {
    const std::uint64_t position = (static_cast<std::uint64_t>(first) / kWordBytes + 1) * kIndexFactor;
#pragma unroll
    for (int i = 0; i < kVectorsPerLane; ++i) {
      constexpr std::uint64_t kPositionStep = Tile<Vector>::kStep / kWordBytes * kIndexFactor;
      const std::uint64_t terms = sum_terms(moved.values[i], position + i * kPositionStep);
      sum += first + i * Tile<Vector>::kStep < segment.used_bytes ? terms : 0;
    }
  }
  return sum;
}

// Moves every `step`-th tile from `tile` on and returns this lane's part of the checksum's sum. Loading the
// next tile while one is stored was tried: it is slower, since other warps fill the gaps better with the
// registers.
template <KernelMode kMode, bool kSum, bool kTokens, typename Vector, typename Table>
__device__ __forceinline__ std::uint64_t move_tiles(const Table& table, const TransferLaunch& launch,
                                                    const Segment& segment, std::uint32_t tile,
                                                    std::uint32_t end, std::uint32_t step) {
  std::uint64_t sum = 0;
  for (; tile < end; tile += step) {
    Tile<Vector> moved;
    load_tile<kMode, kTokens>(moved, table, launch, segment, tile);
    sum += finish_tile<kMode, kSum>(moved, launch, segment, tile);
  }
  return sum;
}

}  // namespace tutti::kv
