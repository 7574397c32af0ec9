// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "checksum.h"

namespace tutti::kv {

// How copied lines are stored. Streaming stores do not first read the target's line into the cache, which
// saves a third of the memory traffic when the target is larger than the cache; the caller fences with
// finish_stores().
enum class Stores { kCached, kStreaming };

// Copies `lines` cache lines. At every line it prefetches the line at the same distance from `ahead`: pages
// lie anywhere, and the processor's own prefetcher starts anew at each.
void copy_lines(std::byte* target, const std::byte* source, std::int64_t lines, const std::byte* ahead,
                Stores stores) noexcept;

// The same, and returns the checksum terms of equally many words at `summed`; the first has index
// `first_index`. Those are the words copied, or others that are to be read anyway: the processor then waits
// for both at once.
[[nodiscard]] std::uint64_t copy_and_sum_lines(std::byte* target, const std::byte* source, std::int64_t lines,
                                               const std::byte* summed, std::uint64_t first_index,
                                               const std::byte* ahead, Stores stores) noexcept;

// Makes streaming stores of this thread visible to other threads and devices before anything that follows.
void finish_stores() noexcept;

}  // namespace tutti::kv
