// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "line_copy.h"

namespace tutti::kv {

// From here on a run is worth a call of its own, which prefetches and may bypass the cache.
inline constexpr std::int64_t kLongRunBytes = 512;

// Copies one run of any length; `ahead` is the memory of the next run.
void copy_run(std::byte* target, const std::byte* source, std::int64_t bytes, const std::byte* ahead,
              Stores stores) noexcept;

// The same, and returns the checksum terms of its words; bytes is a multiple of a word.
[[nodiscard]] std::uint64_t copy_and_sum_run(std::byte* target, const std::byte* source, std::int64_t bytes,
                                             std::uint64_t first_index, const std::byte* ahead,
                                             Stores stores) noexcept;

// The same as copy_run, prefetching the memory at the same distance from `next`.
void copy_run_to(std::byte* target, const std::byte* source, std::int64_t bytes, const std::byte* next,
                 Stores stores) noexcept;

struct StridedTarget {
  std::byte* data;
  std::int64_t stride;
};

struct StridedSource {
  const std::byte* data;
  std::int64_t stride;
};

// Copies `count` short runs of `bytes` bytes each.
void copy_runs(const StridedTarget& target, const StridedSource& source, std::int64_t count,
               std::int64_t bytes) noexcept;

}  // namespace tutti::kv
