// SPDX-License-Identifier: Apache-2.0
#include "line_copy.h"

#include <cstring>

#include "clones.h"
#include "store_line.h"
#include "word_lanes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tutti::kv {
namespace {

template <bool kStream>
[[gnu::always_inline]] inline void copy_all(std::byte* target, const std::byte* source, std::int64_t bytes,
                                            const std::byte* ahead) noexcept {
  for (std::int64_t at = 0; at < bytes; at += kLineBytes) {
    __builtin_prefetch(ahead + at);
    store_line<kStream>(target + at, source + at);
  }
}

template <bool kStream>
[[gnu::always_inline]] inline std::uint64_t copy_and_sum_all(std::byte* target, const std::byte* source,
                                                             std::int64_t bytes, const std::byte* summed,
                                                             std::uint64_t first_index,
                                                             const std::byte* ahead) noexcept {
  WordLanes lanes(first_index);
  for (std::int64_t at = 0; at < bytes; at += kLineBytes) {
    __builtin_prefetch(ahead + at);
    store_line<kStream>(target + at, source + at);
    lanes.add(summed + at);
  }
  return lanes.total();
}

}  // namespace

TUTTI_KV_CLONES void copy_lines(std::byte* target, const std::byte* source, std::int64_t lines,
                                const std::byte* ahead, Stores stores) noexcept {
  const std::int64_t bytes = lines * kLineBytes;
  if (can_stream(target, stores)) {
    copy_all<true>(target, source, bytes, ahead);
  } else {
    copy_all<false>(target, source, bytes, ahead);
  }
}

TUTTI_KV_CLONES std::uint64_t copy_and_sum_lines(std::byte* target, const std::byte* source,
                                                 std::int64_t lines, const std::byte* summed,
                                                 std::uint64_t first_index, const std::byte* ahead,
                                                 Stores stores) noexcept {
  const std::int64_t bytes = lines * kLineBytes;
  if (can_stream(target, stores)) {
    return copy_and_sum_all<true>(target, source, bytes, summed, first_index, ahead);
  }
  return copy_and_sum_all<false>(target, source, bytes, summed, first_index, ahead);
}

void finish_stores() noexcept {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace tutti::kv
