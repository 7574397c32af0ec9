// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "../geometry.h"

namespace tutti::kv {

// Accesses of a page kernel, and what one of its blocks moves: a unit. 1, 2 and 8 KiB are slower on an H200
// for one size of launch or another (docs/gpu.md).
inline constexpr std::uint32_t kPageVectorBytes = 16;
inline constexpr std::uint32_t kPageUnitVectors = 256;

// The common shape of all layers of a cache whose blocks are `parts` pages of one size (one for each plane, K
// and V say), each of them one run or runs at equal distances.
struct PageForm {
  std::uint32_t parts = 0;  // 0: the cache has no such shape
  std::uint32_t page_vectors = 0;
  std::uint32_t run_vectors = 0;  // page_vectors where a page is one run
  std::int64_t run_stride = 0;    // bytes from run to run
};

// The form of layers whose addresses and runs are all multiples of 16 bytes; none where pages are so small
// that units would be half empty, and where ids count tokens.
[[nodiscard]] PageForm find_page_form(const std::vector<Layer>& layers) noexcept;

}  // namespace tutti::kv
