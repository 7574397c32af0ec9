// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define TUTTI_KV_DEVICE_INLINE __host__ __device__ __forceinline__
#else
#define TUTTI_KV_DEVICE_INLINE inline
#endif

namespace tutti::kv {

// Division of 31-bit numbers by an invariant divisor with one high multiplication (Granlund and Montgomery,
// "Division by invariant integers using multiplication", 1994): a hardware division would cost more than the
// copy of the bytes it addresses.
struct FastDivisor {
  std::uint32_t divisor = 1;
  std::uint32_t multiplier = 1;
  std::uint32_t shift = 0;

  [[nodiscard]] static constexpr FastDivisor of(std::uint32_t divisor) noexcept {
    const auto shift = static_cast<std::uint32_t>(std::bit_width(divisor - 1));
    const std::uint64_t range = (std::uint64_t{1} << shift) - divisor;
    const auto multiplier = static_cast<std::uint32_t>((range << 32) / divisor + 1);
    return {divisor, multiplier, shift};
  }
  [[nodiscard]] TUTTI_KV_DEVICE_INLINE std::uint32_t quotient(std::uint32_t value) const noexcept {
    const auto high = static_cast<std::uint32_t>((std::uint64_t{value} * multiplier) >> 32);
    return (high + value) >> shift;
  }
};

// A plane as the kernels read it. Granules are the largest power of two that divides every run and every
// plane of a launch, so that a granule is contiguous on both sides; strides are bytes.
struct TablePlane {
  std::byte* base;  // of block 0, an address of the device
  std::int64_t block_stride;
  std::int64_t token_stride;
  std::int64_t strides[3];  // outer to inner
  FastDivisor tokens_per_block;
  FastDivisor counts[2];  // of the middle and the inner dimension; the outer one needs none
  FastDivisor run;        // granules of a run
  std::uint32_t first_granule;
  std::uint32_t is_one_run;
  std::int32_t token_dim;    // as in Plane
  std::int32_t first_token;  // of the plane in its block
};

struct TableLayer {
  std::uint32_t first_plane;
  std::uint32_t end_plane;
  std::uint32_t num_ids;
  std::uint32_t any_negative_id;  // 1: every negative id says "no block", 0: only kNoBlock does
  std::uint32_t block_tokens;
  FastDivisor block_granules;
};

// A table that travels as a kernel parameter: such a launch needs no memory of its own.
struct SmallTable {
  static constexpr int kMaxPlanes = 8;
  static constexpr int kMaxLayers = 4;
  TablePlane planes[kMaxPlanes];
  TableLayer layers[kMaxLayers];
};

// A table in the device's memory. Parameters could hold some hundred planes too, but copying them costs the
// host several microseconds a launch.
struct ResidentTable {
  const TablePlane* planes;
  const TableLayer* layers;
};

// The part of a segment's tokens that is moved.
struct TokenWindow {
  std::int64_t begin;
  std::int64_t count;
};

// Address of a granule of a segment, or null when its block id is out of range (which includes "no block") or
// its token is not moved. With kTokens, planes keep their token dimension, so that a run is of one token.
template <bool kTokens, typename Table>
[[nodiscard]] TUTTI_KV_DEVICE_INLINE std::byte* locate_granule(const Table& table, const TableLayer& layer,
                                                               const std::int64_t* ids,
                                                               const TokenWindow& tokens,
                                                               std::uint32_t granule,
                                                               std::uint32_t granule_shift) {
  const std::uint32_t block = layer.block_granules.quotient(granule);
  const std::int64_t id = ids[block];
  if (static_cast<std::uint64_t>(id) >= layer.num_ids) {
    return nullptr;
  }
  std::uint32_t at = granule - block * layer.block_granules.divisor;
  std::uint32_t index = layer.first_plane;
  while (index + 1 < layer.end_plane && at >= table.planes[index + 1].first_granule) {
    ++index;
  }
  const TablePlane& plane = table.planes[index];
  at -= plane.first_granule;
  const auto unsigned_id = static_cast<std::uint32_t>(id);
  const std::uint32_t page = plane.tokens_per_block.quotient(unsigned_id);
  const std::uint32_t page_token = unsigned_id - page * plane.tokens_per_block.divisor;
  std::byte* address = plane.base + page * plane.block_stride + page_token * plane.token_stride;
  std::uint32_t outer = 0;
  std::uint32_t middle = 0;
  std::uint32_t inner = 0;
  if (plane.is_one_run == 0) {
    const std::uint32_t run = plane.run.quotient(at);
    at -= run * plane.run.divisor;
    const std::uint32_t outer_middle = plane.counts[1].quotient(run);
    inner = run - outer_middle * plane.counts[1].divisor;
    outer = plane.counts[0].quotient(outer_middle);
    middle = outer_middle - outer * plane.counts[0].divisor;
    address += outer * plane.strides[0] + middle * plane.strides[1] + inner * plane.strides[2];
  }
  if constexpr (kTokens) {
    const std::uint32_t in_plane = plane.token_dim == 0   ? outer
                                   : plane.token_dim == 1 ? middle
                                   : plane.token_dim == 2 ? inner
                                                          : 0;
    const std::int64_t token =
        std::int64_t{block} * layer.block_tokens + plane.first_token + std::int64_t{in_plane};
    if (token < tokens.begin || token - tokens.begin >= tokens.count) {
      return nullptr;
    }
  }
  return address + (static_cast<std::int64_t>(at) << granule_shift);
}

}  // namespace tutti::kv
