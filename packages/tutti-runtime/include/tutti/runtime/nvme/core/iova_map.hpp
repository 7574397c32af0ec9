// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tutti/runtime/nvme/core/annotate.hpp"

namespace tutti::runtime::nvme {

/// A run of memory that is in one piece for the process and on the bus.
struct IovaRun {
  std::uint64_t begin;  ///< offset in the window, or an address: whatever the map counts in
  std::uint64_t size;
  std::uint64_t iova;
};

/// Runs sorted by `begin` without overlap; neighbours that are one on the bus are one run.
struct IovaMap {
  const IovaRun* runs = nullptr;
  std::uint32_t count = 0;
};

/// Bus address of `place` and how many bytes from there on are in one piece. @returns 0 for a place that no
/// run has; `iova` is then untouched.
TUTTI_HD std::uint64_t translate(const IovaMap& map, std::uint64_t place, std::uint64_t& iova) noexcept {
  std::uint32_t low = 0;
  std::uint32_t high = map.count;
  while (low < high) {
    const std::uint32_t middle = low + (high - low) / 2;
    if (map.runs[middle].begin <= place) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == 0) {
    return 0;
  }
  const IovaRun& run = map.runs[low - 1];
  const std::uint64_t inside = place - run.begin;
  if (inside >= run.size) {
    return 0;
  }
  iova = run.iova + inside;
  return run.size - inside;
}

/// Bus address of a range that must be in one piece. @returns whether it is.
TUTTI_HD bool translate_whole(const IovaMap& map, std::uint64_t place, std::uint64_t size,
                              std::uint64_t& iova) noexcept {
  std::uint64_t found = 0;
  if (translate(map, place, found) < size) {
    return false;
  }
  iova = found;
  return true;
}

}  // namespace tutti::runtime::nvme
