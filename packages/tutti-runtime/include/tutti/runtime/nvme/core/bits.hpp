// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tutti/runtime/nvme/core/annotate.hpp"

#if !defined(__CUDA_ARCH__)
#include <bit>
#endif

namespace tutti::runtime::nvme {

TUTTI_HD std::uint32_t count_bits(std::uint32_t mask) noexcept {
#if defined(__CUDA_ARCH__)
  return static_cast<std::uint32_t>(__popc(mask));
#else
  return static_cast<std::uint32_t>(std::popcount(mask));
#endif
}

TUTTI_HD bool bit(std::uint32_t mask, std::uint32_t index) noexcept { return ((mask >> index) & 1U) != 0; }

/// Bits that are set below `index`, which is 0 to 31.
TUTTI_HD std::uint32_t bits_below(std::uint32_t mask, std::uint32_t index) noexcept {
  return count_bits(mask & ((1U << index) - 1U));
}

/// How many bits are set from bit 0 on without a gap.
TUTTI_HD std::uint32_t ones_from_below(std::uint32_t mask) noexcept {
  return count_bits(mask & ~(mask + 1U));
}

/// `mask` is not 0.
TUTTI_HD std::uint32_t highest_bit(std::uint32_t mask) noexcept {
#if defined(__CUDA_ARCH__)
  return 31U - static_cast<std::uint32_t>(__clz(static_cast<int>(mask)));
#else
  return 31U - static_cast<std::uint32_t>(std::countl_zero(mask));
#endif
}

TUTTI_HD std::uint32_t smaller(std::uint32_t a, std::uint32_t b) noexcept { return a < b ? a : b; }

}  // namespace tutti::runtime::nvme
