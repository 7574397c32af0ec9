// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "line_copy.h"

namespace tutti::kv {

// From here on a run is worth a call of its own, which prefetches and may bypass the cache.
inline constexpr std::int64_t kLongRunBytes = 512;

struct StridedTarget {
  std::byte* data;
  std::int64_t stride;
};

struct StridedSource {
  const std::byte* data;
  std::int64_t stride;
};

// Copies `count` short runs of `bytes` bytes each. Streams only where runs are whole lines of memory.
void copy_runs(const StridedTarget& target, const StridedSource& source, std::int64_t count,
               std::int64_t bytes, Stores stores) noexcept;

// The same for runs of whole lines that go side by side; returns the checksum terms of their words, of which
// the first has index `first_index`.
[[nodiscard]] std::uint64_t copy_and_sum_runs(std::byte* target, const StridedSource& source,
                                              std::int64_t count, std::int64_t bytes,
                                              std::uint64_t first_index, Stores stores) noexcept;

}  // namespace tutti::kv
