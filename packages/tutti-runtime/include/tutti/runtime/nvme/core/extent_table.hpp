// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tutti/runtime/nvme/core/annotate.hpp"

namespace tutti::runtime::nvme {

/// A run of a target's logical blocks on its namespace. Everything counts in the namespace's blocks.
struct BlockExtent {
  std::uint64_t begin;  ///< in the target
  std::uint64_t lba;
  std::uint64_t blocks;
};

/// Extents sorted by `begin` without overlap.
struct ExtentTable {
  const BlockExtent* extents = nullptr;
  std::uint32_t count = 0;
};

/// Where a target's block is and how many follow it in one piece. @returns 0 for a block that no extent has.
TUTTI_HD std::uint64_t find_block(const ExtentTable& table, std::uint64_t block,
                                  std::uint64_t& lba) noexcept {
  std::uint32_t low = 0;
  std::uint32_t high = table.count;
  while (low < high) {
    const std::uint32_t middle = low + (high - low) / 2;
    if (table.extents[middle].begin <= block) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == 0) {
    return 0;
  }
  const BlockExtent& extent = table.extents[low - 1];
  const std::uint64_t inside = block - extent.begin;
  if (inside >= extent.blocks) {
    return 0;
  }
  lba = extent.lba + inside;
  return extent.blocks - inside;
}

}  // namespace tutti::runtime::nvme
