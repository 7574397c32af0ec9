// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "checksum.h"

namespace tutti::kv {

// Sums the checksum terms of consecutive lines, in whatever registers the instruction set has. Its functions
// are part of their caller, so that they are compiled for each of the caller's clones.
class WordLanes {
 public:
  [[gnu::always_inline]] explicit WordLanes(std::uint64_t first_index) noexcept {
    for (int word = 0; word < kWords; ++word) {
      const std::uint64_t index = first_index + static_cast<std::uint64_t>(word);
      positions_[word / kLanes][word % kLanes] = (index + 1) * kIndexFactor;
    }
  }

  [[gnu::always_inline]] void add(const std::byte* line) noexcept {
    for (int i = 0; i < kVectors; ++i) {
      Vector words;
      std::memcpy(&words, line + static_cast<std::size_t>(i) * sizeof(Vector), sizeof(Vector));
      Vector terms = (words ^ positions_[i]) * kMixFactor;
      terms ^= terms >> 32;
      sums_[i] += terms;
      positions_[i] += kWords * kIndexFactor;
    }
  }

  [[nodiscard, gnu::always_inline]] std::uint64_t total() const noexcept {
    std::uint64_t sum = 0;
    for (int word = 0; word < kWords; ++word) {
      sum += sums_[word / kLanes][word % kLanes];
    }
    return sum;
  }

 private:
  // Four words a vector: measured, GCC 12 splits a vector of twice the registers' width well and wider ones
  // badly.
  static constexpr int kLanes = 4;
  static constexpr int kWords = static_cast<int>(kLineBytes / kWordBytes);
  static constexpr int kVectors = kWords / kLanes;
  using Vector [[gnu::vector_size(kLanes * kWordBytes)]] = std::uint64_t;

  Vector sums_[kVectors] = {};
  Vector positions_[kVectors];
};

}  // namespace tutti::kv
