// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "../checksum.h"

namespace tutti::kv {

// The two widths that hold whole checksum words.
using Vector16 = uint4;
using Vector8 = uint2;

// Bytes that this launch reads or writes once: they need no place in the first-level cache.
__device__ __forceinline__ Vector16 load_once(const Vector16* from) {
  Vector16 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

__device__ __forceinline__ Vector8 load_once(const Vector8* from) {
  Vector8 value;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(value.x), "=r"(value.y)
               : "l"(from));
  return value;
}

// The same for bytes that the second-level cache may drop first, so that what is written stays longer: faster
// by up to 0.04 of a copy's rate at 4 MiB on an H200.
__device__ __forceinline__ Vector16 load_streamed(const Vector16* from) {
  std::uint64_t policy = 0;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  Vector16 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from), "l"(policy));
  return value;
}

__device__ __forceinline__ void store_once(Vector16* to, const Vector16& value) {
  asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ __forceinline__ void store_once(Vector8* to, const Vector8& value) {
  asm volatile("st.global.L1::no_allocate.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(value.x), "r"(value.y)
               : "memory");
}

__device__ __forceinline__ std::uint64_t join_halves(std::uint32_t low, std::uint32_t high) {
  return (std::uint64_t{high} << 32) | low;
}

// A checksum term whose position, (index + 1) * kIndexFactor, is at hand.
__device__ __forceinline__ std::uint64_t mix_at(std::uint64_t word, std::uint64_t position) {
  const std::uint64_t product = (word ^ position) * kMixFactor;
  return product ^ (product >> 32);
}

__device__ __forceinline__ std::uint64_t sum_terms(const Vector16& value, std::uint64_t position) {
  return mix_at(join_halves(value.x, value.y), position) +
         mix_at(join_halves(value.z, value.w), position + kIndexFactor);
}

__device__ __forceinline__ std::uint64_t sum_terms(const Vector8& value, std::uint64_t position) {
  return mix_at(join_halves(value.x, value.y), position);
}

}  // namespace tutti::kv
