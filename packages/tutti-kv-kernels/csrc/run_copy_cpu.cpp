// SPDX-License-Identifier: Apache-2.0
#include "run_copy.h"

#include <cstring>

#include "clones.h"

namespace tutti::kv {
namespace {

// Distance of the prefetch. Long enough to hide a miss of memory and address translation, short enough for
// L1.
constexpr std::int64_t kAheadBytes = 4096;

template <bool kSum>
std::uint64_t copy_parts(std::byte* target, const std::byte* source, std::int64_t bytes,
                         std::uint64_t first_index, const std::byte* next, Stores stores) noexcept {
  // Parts of equal size: each part prefetches as much as the next one needs, across the run's end too.
  const std::int64_t lines = bytes / kLineBytes;
  const std::int64_t parts = (bytes + kAheadBytes - 1) / kAheadBytes;
  std::uint64_t sum = 0;
  std::int64_t at = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t count = lines * (part + 1) / parts - lines * part / parts;
    const std::byte* ahead = part + 1 < parts ? source + at + count * kLineBytes : next;
    if constexpr (kSum) {
      sum += copy_and_sum_lines(target + at, source + at, count,
                                first_index + static_cast<std::uint64_t>(at / kWordBytes), ahead, stores);
    } else {
      copy_lines(target + at, source + at, count, ahead, stores);
    }
    at += count * kLineBytes;
  }
  std::memcpy(target + at, source + at, static_cast<std::size_t>(bytes - at));
  if constexpr (kSum) {
    sum += sum_words(source + at, (bytes - at) / kWordBytes,
                     first_index + static_cast<std::uint64_t>(at / kWordBytes));
  }
  return sum;
}

template <std::size_t kBytes>
[[gnu::always_inline]] inline void copy_fixed(std::byte* target, std::int64_t target_stride,
                                              const std::byte* source, std::int64_t source_stride,
                                              std::int64_t count) noexcept {
  for (std::int64_t k = 0; k < count; ++k) {
    std::memcpy(target + k * target_stride, source + k * source_stride, kBytes);
  }
}

}  // namespace

void copy_run(std::byte* target, const std::byte* source, std::int64_t bytes, const std::byte* ahead,
              Stores stores) noexcept {
  copy_parts<false>(target, source, bytes, 0, ahead, stores);
}

std::uint64_t copy_and_sum_run(std::byte* target, const std::byte* source, std::int64_t bytes,
                               std::uint64_t first_index, const std::byte* ahead, Stores stores) noexcept {
  return copy_parts<true>(target, source, bytes, first_index, ahead, stores);
}

void copy_run_to(std::byte* target, const std::byte* source, std::int64_t bytes, const std::byte* next,
                 Stores stores) noexcept {
  const std::int64_t lines = bytes / kLineBytes;
  copy_lines(target, source, lines, next, stores);
  const std::int64_t copied = lines * kLineBytes;
  std::memcpy(target + copied, source + copied, static_cast<std::size_t>(bytes - copied));
}

TUTTI_KV_CLONES void copy_runs(const StridedTarget& target, const StridedSource& source, std::int64_t count,
                               std::int64_t bytes) noexcept {
  switch (bytes) {
    case 16:
      return copy_fixed<16>(target.data, target.stride, source.data, source.stride, count);
    case 32:
      return copy_fixed<32>(target.data, target.stride, source.data, source.stride, count);
    case 64:
      return copy_fixed<64>(target.data, target.stride, source.data, source.stride, count);
    case 128:
      return copy_fixed<128>(target.data, target.stride, source.data, source.stride, count);
    case 256:
      return copy_fixed<256>(target.data, target.stride, source.data, source.stride, count);
    default:
      for (std::int64_t k = 0; k < count; ++k) {
        std::memcpy(target.data + k * target.stride, source.data + k * source.stride,
                    static_cast<std::size_t>(bytes));
      }
  }
}

}  // namespace tutti::kv
