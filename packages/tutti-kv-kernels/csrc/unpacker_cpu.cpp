// SPDX-License-Identifier: Apache-2.0
#include "unpacker.h"

#include <algorithm>
#include <cstring>

#include "checksum.h"
#include "run_copy.h"

namespace tutti::kv {
namespace {

constexpr std::int64_t kPartBytes = 4096;
// Short runs are copied in smaller parts, with as much of the next slot summed after each.
constexpr std::int64_t kShortPartBytes = 1024;

}  // namespace

void SlotSum::advance(std::int64_t bytes) noexcept {
  const std::int64_t lines = std::min(bytes, bytes_ - summed_) / kLineBytes;
  sum_ += sum_words(slot_ + summed_, lines * kLineBytes / kWordBytes,
                    static_cast<std::uint64_t>(summed_ / kWordBytes));
  summed_ += lines * kLineBytes;
}

void SlotSum::advance_copying(std::byte* target, const std::byte* source, std::int64_t lines,
                              Stores stores) noexcept {
  const std::int64_t both = std::min(lines, (bytes_ - summed_) / kLineBytes);
  const std::byte* own = slot_ + summed_;
  if (both > 0) {
    // A part ahead, but not beyond the slot.
    const std::byte* ahead = own + std::min(kPartBytes, bytes_ - summed_ - both * kLineBytes);
    sum_ += copy_and_sum_lines(target, source, both, own, static_cast<std::uint64_t>(summed_ / kWordBytes),
                               ahead, stores);
  }
  summed_ += both * kLineBytes;
  const std::int64_t copied = both * kLineBytes;
  copy_lines(target + copied, source + copied, lines - both, source + copied, stores);
}

std::uint64_t SlotSum::finish() noexcept {
  sum_ += sum_tail(slot_ + summed_, bytes_ - summed_, static_cast<std::uint64_t>(summed_ / kWordBytes));
  summed_ = bytes_;
  return finish_checksum(sum_, static_cast<std::uint64_t>(bytes_));
}

void Unpacker::runs(const RunRow& row) noexcept {
  if (row.run_bytes < kLongRunBytes) {
    const std::int64_t step = std::max<std::int64_t>(1, kShortPartBytes / row.run_bytes);
    for (std::int64_t k = 0; k < row.count; k += step) {
      take({row.data + k * row.stride, std::min(step, row.count - k), row.stride, row.run_bytes});
    }
    return;
  }
  for (std::int64_t k = 0; k < row.count; ++k) {
    std::byte* run = row.data + k * row.stride;
    for (std::int64_t at = 0; at < row.run_bytes; at += kPartBytes) {
      take({run + at, 1, 0, std::min(kPartBytes, row.run_bytes - at)});
    }
  }
}

void Unpacker::take(const RunRow& part) noexcept {
  __builtin_prefetch(part.data, 1);
  copy_pending();
  pending_ = part;
}

void Unpacker::copy_pending() noexcept {
  const RunRow& part = pending_;
  const std::int64_t bytes = part.count * part.run_bytes;
  if (part.count == 1 && bytes >= kLongRunBytes) {
    const std::int64_t lines = bytes / kLineBytes;
    const std::int64_t whole = lines * kLineBytes;
    next_.advance_copying(part.data, at_, lines, stores_);
    std::memcpy(part.data + whole, at_ + whole, static_cast<std::size_t>(bytes - whole));
  } else if (part.count > 0) {
    copy_runs({part.data, part.stride}, {at_, part.run_bytes}, part.count, part.run_bytes, stores_);
    next_.advance(bytes);
  }
  at_ += bytes;
  pending_.count = 0;
}

}  // namespace tutti::kv
