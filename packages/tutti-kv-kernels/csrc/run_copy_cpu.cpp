// SPDX-License-Identifier: Apache-2.0
#include "run_copy.h"

#include <cstring>

#include "clones.h"
#include "store_line.h"
#include "word_lanes.h"

namespace tutti::kv {
namespace {

template <std::size_t kBytes>
[[gnu::always_inline]] inline void copy_fixed(const StridedTarget& target, const StridedSource& source,
                                              std::int64_t count) noexcept {
  for (std::int64_t k = 0; k < count; ++k) {
    std::memcpy(target.data + k * target.stride, source.data + k * source.stride, kBytes);
  }
}

[[gnu::always_inline]] inline void stream_runs(const StridedTarget& target, const StridedSource& source,
                                               std::int64_t count, std::int64_t bytes) noexcept {
  for (std::int64_t k = 0; k < count; ++k) {
    for (std::int64_t at = 0; at < bytes; at += kLineBytes) {
      store_line<true>(target.data + k * target.stride + at, source.data + k * source.stride + at);
    }
  }
}

template <bool kStream>
[[gnu::always_inline]] inline std::uint64_t pack_lines(std::byte* target, const StridedSource& source,
                                                       std::int64_t count, std::int64_t bytes,
                                                       std::uint64_t first_index) noexcept {
  WordLanes lanes(first_index);
  for (std::int64_t k = 0; k < count; ++k) {
    const std::byte* run = source.data + k * source.stride;
    for (std::int64_t at = 0; at < bytes; at += kLineBytes) {
      store_line<kStream>(target, run + at);
      lanes.add(run + at);
      target += kLineBytes;
    }
  }
  return lanes.total();
}

// A line that is streamed in two parts costs more than one that goes through the cache.
bool are_lines(const StridedTarget& target, std::int64_t bytes) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(target.data);
  return (address | static_cast<std::uintptr_t>(target.stride) | static_cast<std::uintptr_t>(bytes)) %
             static_cast<std::uintptr_t>(kLineBytes) ==
         0;
}

}  // namespace

TUTTI_KV_CLONES void copy_runs(const StridedTarget& target, const StridedSource& source, std::int64_t count,
                               std::int64_t bytes, Stores stores) noexcept {
  if (stores == Stores::kStreaming && are_lines(target, bytes)) {
    return stream_runs(target, source, count, bytes);
  }
  switch (bytes) {
    case 16:
      return copy_fixed<16>(target, source, count);
    case 32:
      return copy_fixed<32>(target, source, count);
    case 64:
      return copy_fixed<64>(target, source, count);
    case 128:
      return copy_fixed<128>(target, source, count);
    case 256:
      return copy_fixed<256>(target, source, count);
    default:
      for (std::int64_t k = 0; k < count; ++k) {
        std::memcpy(target.data + k * target.stride, source.data + k * source.stride,
                    static_cast<std::size_t>(bytes));
      }
  }
}

TUTTI_KV_CLONES std::uint64_t copy_and_sum_runs(std::byte* target, const StridedSource& source,
                                                std::int64_t count, std::int64_t bytes,
                                                std::uint64_t first_index, Stores stores) noexcept {
  if (can_stream(target, stores)) {
    return pack_lines<true>(target, source, count, bytes, first_index);
  }
  return pack_lines<false>(target, source, count, bytes, first_index);
}

}  // namespace tutti::kv
