// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstring>

#include "checksum.h"
#include "clones.h"
#include "word_lanes.h"

namespace tutti::kv {

static_assert(std::endian::native == std::endian::little, "tutti64-1 reads words in little-endian order");

TUTTI_KV_CLONES std::uint64_t sum_words(const std::byte* data, std::int64_t words,
                                        std::uint64_t first_index) noexcept {
  const std::int64_t lines = words * kWordBytes / kLineBytes;
  WordLanes lanes(first_index);
  for (std::int64_t line = 0; line < lines; ++line) {
    lanes.add(data + line * kLineBytes);
  }
  std::uint64_t sum = lanes.total();
  for (std::int64_t i = lines * kLineBytes / kWordBytes; i < words; ++i) {
    std::uint64_t word;
    std::memcpy(&word, data + i * kWordBytes, sizeof(word));
    sum += mix_word(word, first_index + static_cast<std::uint64_t>(i));
  }
  return sum;
}

std::uint64_t sum_tail(const std::byte* data, std::int64_t bytes, std::uint64_t first_index) noexcept {
  const std::int64_t words = bytes / kWordBytes;
  const std::int64_t tail = bytes % kWordBytes;
  std::uint64_t sum = sum_words(data, words, first_index);
  if (tail != 0) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + words * kWordBytes, static_cast<std::size_t>(tail));
    sum += mix_word(word, first_index + static_cast<std::uint64_t>(words));
  }
  return sum;
}

std::uint64_t checksum(const std::byte* data, std::int64_t bytes) noexcept {
  return finish_checksum(sum_tail(data, bytes, 0), static_cast<std::uint64_t>(bytes));
}

}  // namespace tutti::kv
