// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transfer_launch.h"

namespace tutti::kv {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;
inline constexpr int kLanes = 32;

__device__ __forceinline__ std::uint64_t sum_over_warp(std::uint64_t value) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

// The same by 32-bit reductions, which the device has an instruction for: of 22, 21 and 21 bits, so that 32
// of them fit.
__device__ __forceinline__ std::uint64_t reduce_over_warp(std::uint64_t value) {
  constexpr int kMiddle = 22;
  constexpr int kHigh = 43;
  const auto low = static_cast<std::uint32_t>(value) & ((1U << kMiddle) - 1);
  const auto middle = static_cast<std::uint32_t>(value >> kMiddle) & ((1U << (kHigh - kMiddle)) - 1);
  const auto high = static_cast<std::uint32_t>(value >> kHigh);
  return std::uint64_t{__reduce_add_sync(kAllLanes, low)} +
         (std::uint64_t{__reduce_add_sync(kAllLanes, middle)} << kMiddle) +
         (std::uint64_t{__reduce_add_sync(kAllLanes, high)} << kHigh);
}

// Adds a warp's (or block's) terms of `tiles` tiles to the segment's sum. True, with the whole sum in
// `total`, for the one lane that completes the segment.
//
// Each word carries 48 bits of sum and above them the number of tiles that are in it, so a single atomic
// operation tells the last one all it has to know and no memory fence is needed: a fence would wait for the
// copied bytes. The halves of the sum may be completed by two warps, which meet in the third word.
__device__ __forceinline__ bool add_to_segment(SegmentSums& sums, std::uint64_t terms, std::uint32_t tiles,
                                               std::uint32_t segment_tiles, std::uint64_t& total) {
  constexpr int kCountShift = 48;
  constexpr unsigned long long kSumMask = (1ULL << kCountShift) - 1;
  constexpr unsigned long long kPresent = 1ULL << 63;
  const unsigned long long count = static_cast<unsigned long long>(tiles) << kCountShift;
  const unsigned long long own_low = count + (terms & 0xFFFFFFFFULL);
  const unsigned long long own_high = count + (terms >> 32);
  const unsigned long long low = atomicAdd(&sums.low, own_low) + own_low;
  const unsigned long long high = atomicAdd(&sums.high, own_high) + own_high;
  const bool low_complete = low >> kCountShift == segment_tiles;
  const bool high_complete = high >> kCountShift == segment_tiles;
  if (!low_complete && !high_complete) {
    return false;
  }
  const unsigned long long low_sum = low & kSumMask;
  const unsigned long long high_sum = high & kSumMask;
  if (low_complete && high_complete) {
    total = low_sum + (high_sum << 32);
  } else {
    const unsigned long long brought = (low_complete ? low_sum : high_sum) | kPresent;
    const unsigned long long found = atomicExch(&sums.meeting, brought);
    if (found == 0) {
      return false;
    }
    const unsigned long long other = found & kSumMask;
    total = low_complete ? low_sum + (other << 32) : other + (high_sum << 32);
  }
  sums = SegmentSums{0, 0, 0};
  return true;
}

}  // namespace tutti::kv
