// SPDX-License-Identifier: Apache-2.0
#include "checksum.h"

#include <bit>
#include <cstring>

// The loops are written for the compiler's vectoriser; the loader picks the widest clone that the processor runs.
// Clones need ifunc support, which glibc on x86-64 has; elsewhere the portable loop is the only one.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define TUTTI_KV_CLONES __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))
#else
#define TUTTI_KV_CLONES
#endif

namespace tutti::kv {
namespace {

static_assert(std::endian::native == std::endian::little, "tutti64-1 reads words in little-endian order");

// Pages start at any byte, and their contents are some other type's objects.
using UnalignedWord [[gnu::aligned(1), gnu::may_alias]] = std::uint64_t;

}  // namespace

TUTTI_KV_CLONES std::uint64_t sum_words(
    const std::byte* data, std::int64_t words, std::uint64_t first_index) noexcept {
  const auto* source = reinterpret_cast<const UnalignedWord*>(data);
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < words; ++i) {
    sum += mix_word(source[i], first_index + static_cast<std::uint64_t>(i));
  }
  return sum;
}

TUTTI_KV_CLONES std::uint64_t copy_and_sum_words(
    std::byte* target, const std::byte* data, std::int64_t words, std::uint64_t first_index) noexcept {
  const auto* source = reinterpret_cast<const UnalignedWord*>(data);
  auto* __restrict sink = reinterpret_cast<UnalignedWord*>(target);
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < words; ++i) {
    const std::uint64_t word = source[i];
    sink[i] = word;
    sum += mix_word(word, first_index + static_cast<std::uint64_t>(i));
  }
  return sum;
}

std::uint64_t sum_tail(const std::byte* data, std::int64_t bytes, std::uint64_t index) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, data, static_cast<std::size_t>(bytes));
  return mix_word(word, index);
}

std::uint64_t checksum(const std::byte* data, std::int64_t bytes) noexcept {
  const std::int64_t words = bytes / kWordBytes;
  const std::int64_t tail = bytes % kWordBytes;
  std::uint64_t sum = sum_words(data, words, 0);
  if (tail != 0) {
    sum += sum_tail(data + words * kWordBytes, tail, static_cast<std::uint64_t>(words));
  }
  return finish_checksum(sum, static_cast<std::uint64_t>(bytes));
}

}  // namespace tutti::kv
