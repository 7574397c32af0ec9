// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "line_copy.h"
#include "segment_walk.h"

namespace tutti::kv {

// Writes one segment's packed bytes to its slot and sums them on the way. Takes the parts of a SegmentWalk.
//
// Copies a few parts behind the walk, so that memory which is needed soon is being fetched. Long runs go to
// the slot directly. Everything else is collected in a buffer in the first cache and goes to the slot from
// there: a slot is then written in whole lines, and summed in whole words, however short or odd the runs are.
class Packer {
 public:
  Packer(std::byte* slot, Stores stores) noexcept : slot_(slot), stores_(stores) {}

  void runs(const RunRow& row) noexcept;
  void missing(std::int64_t bytes) noexcept;

  // Returns the checksum of all that was packed. `after` is the memory needed next.
  [[nodiscard]] std::uint64_t finish(const std::byte* after) noexcept;

 private:
  static constexpr std::size_t kAheadParts = 4;
  static constexpr std::int64_t kBufferBytes = 8192;

  void queue(const RunRow& part) noexcept;
  void write_oldest(const std::byte* ahead) noexcept;
  void write_queued(const std::byte* after) noexcept;
  void buffer_runs(const RunRow& row) noexcept;
  void write_buffer() noexcept;
  void write(const std::byte* source, std::int64_t bytes, const std::byte* ahead) noexcept;

  std::byte* slot_;
  Stores stores_;
  std::int64_t written_ = 0;  // bytes in the slot, all of them in sum_; whole words except at the very end
  std::uint64_t sum_ = 0;
  std::array<RunRow, kAheadParts> queue_{};
  std::size_t queued_ = 0;
  std::int64_t buffered_ = 0;
  alignas(kLineBytes) std::array<std::byte, kBufferBytes> buffer_;
};

}  // namespace tutti::kv
