// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "line_copy.h"
#include "segment_walk.h"

namespace tutti::kv {

// The checksum of one slot, taken bit by bit.
class SlotSum {
 public:
  SlotSum(const std::byte* slot, std::int64_t bytes) noexcept : slot_(slot), bytes_(bytes) {}

  // Sums up to `bytes` further bytes (whole lines of them).
  void advance(std::int64_t bytes) noexcept;
  // Copies lines, and sums as many of its own on the way.
  void advance_copying(std::byte* target, const std::byte* source, std::int64_t lines,
                       Stores stores) noexcept;
  // Sums what is left.
  [[nodiscard]] std::uint64_t finish() noexcept;

 private:
  const std::byte* slot_;
  std::int64_t bytes_;
  std::int64_t summed_ = 0;  // whole lines
  std::uint64_t sum_ = 0;
};

// Copies a verified slot to its blocks, and sums the next slot meanwhile: its bytes come from memory while
// those copied go to memory. Takes the parts of a SegmentWalk.
class Unpacker {
 public:
  Unpacker(const std::byte* slot, SlotSum& next, Stores stores) noexcept
      : at_(slot), next_(next), stores_(stores) {}

  void runs(const RunRow& row) noexcept;
  void missing(std::int64_t bytes) noexcept {
    finish();
    at_ += bytes;
  }
  // Copies what is still pending.
  void finish() noexcept { copy_pending(); }

 private:
  void take(const RunRow& part) noexcept;
  void copy_pending() noexcept;

  const std::byte* at_;
  // One part behind the walk: the address of the part after it is translated meanwhile.
  RunRow pending_{};
  SlotSum& next_;
  Stores stores_;
};

}  // namespace tutti::kv
