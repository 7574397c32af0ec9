// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace tutti::runtime::detail {

/// Places in a table of fixed size, handed out as neighbours: first fit, which is enough for the few,
/// long-lived registrations that a staging window makes.
class BufferSlots {
 public:
  explicit BufferSlots(std::uint32_t count) : used_(count, false) {}

  /// First of `count` neighbouring free places, now taken; -1 when there are none.
  [[nodiscard]] int take(std::uint32_t count) {
    std::uint32_t run = 0;
    for (std::uint32_t i = 0; i < used_.size(); ++i) {
      run = used_[i] ? 0 : run + 1;
      if (run == count) {
        const std::uint32_t first = i + 1 - count;
        mark(first, count, true);
        return static_cast<int>(first);
      }
    }
    return -1;
  }

  void give_back(std::uint32_t first, std::uint32_t count) { mark(first, count, false); }

 private:
  void mark(std::uint32_t first, std::uint32_t count, bool used) {
    for (std::uint32_t i = first; i < first + count; ++i) {
      used_[i] = used;
    }
  }

  std::vector<bool> used_;
};

}  // namespace tutti::runtime::detail
