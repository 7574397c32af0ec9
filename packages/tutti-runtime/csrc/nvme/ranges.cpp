// SPDX-License-Identifier: Apache-2.0
#include "ranges.hpp"

#include <cerrno>
#include <iterator>
#include <string>

#include "tutti/runtime/error.hpp"

namespace tutti::runtime::nvme {

void FreeRanges::add(std::uint64_t begin, std::uint64_t size) noexcept {
  std::lock_guard lock(mutex_);
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && begin + size == next->first) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      before->second += size;
      return;
    }
  }
  free_.emplace_hint(next, begin, size);
}

std::uint64_t FreeRanges::take(std::uint64_t size, std::uint64_t alignment) {
  std::lock_guard lock(mutex_);
  for (auto place = free_.begin(); place != free_.end(); ++place) {
    const auto [begin, space] = *place;
    const std::uint64_t first = (begin + alignment - 1) & ~(alignment - 1);
    const std::uint64_t skipped = first - begin;
    if (first < begin || skipped > space || space - skipped < size) {
      continue;
    }
    free_.erase(place);
    if (skipped > 0) {
      free_.emplace(begin, skipped);
    }
    if (space - skipped > size) {
      free_.emplace(first + size, space - skipped - size);
    }
    return first;
  }
  throw SystemError(ENOMEM, "no " + std::to_string(size) + " bus addresses in a row are free");
}

}  // namespace tutti::runtime::nvme
