// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::kv {

// The checksum "tutti64-1". The terms of the words are summed, so that any split of the words over vector
// lanes or threads gives the same result; each term depends on the word's index, so that moved words are
// noticed.
inline constexpr std::uint64_t kIndexFactor = 0x9E3779B97F4A7C15ULL;
inline constexpr std::uint64_t kMixFactor = 0xD6E8FEB86659FD93ULL;
inline constexpr std::uint64_t kLengthFactor = 0xA0761D6478BD642FULL;

inline constexpr std::int64_t kWordBytes = 8;
// A cache line: the unit in which bytes are copied and summed.
inline constexpr std::int64_t kLineBytes = 64;

[[nodiscard]] constexpr std::uint64_t mix_word(std::uint64_t word, std::uint64_t index) noexcept {
  const std::uint64_t product = (word ^ ((index + 1) * kIndexFactor)) * kMixFactor;
  return product ^ (product >> 32);
}

[[nodiscard]] constexpr std::uint64_t finish_checksum(std::uint64_t sum, std::uint64_t bytes) noexcept {
  std::uint64_t hash = sum + bytes * kLengthFactor;
  hash ^= hash >> 32;
  hash *= kMixFactor;
  return hash ^ (hash >> 32);
}

// Sum of the terms of `words` whole words at `data` (any alignment); the first has index `first_index`.
[[nodiscard]] std::uint64_t sum_words(const std::byte* data, std::int64_t words,
                                      std::uint64_t first_index) noexcept;

// Sum of the terms of `bytes` bytes at `data`, the last word filled up with zeros.
[[nodiscard]] std::uint64_t sum_tail(const std::byte* data, std::int64_t bytes,
                                     std::uint64_t first_index) noexcept;

// Checksum of `bytes` bytes at `data` (any alignment).
[[nodiscard]] std::uint64_t checksum(const std::byte* data, std::int64_t bytes) noexcept;

}  // namespace tutti::kv
