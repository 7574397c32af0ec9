// SPDX-License-Identifier: Apache-2.0
#include "packer.h"

#include <algorithm>
#include <cstring>

#include "checksum.h"
#include "run_copy.h"

namespace tutti::kv {
namespace {

// A part is short enough to be fetched into the first cache while those before it are copied.
constexpr std::int64_t kPartBytes = 4096;
constexpr std::int64_t kShortPartBytes = 1024;

bool is_long(const RunRow& part) noexcept { return part.run_bytes >= kLongRunBytes && part.count == 1; }

[[gnu::always_inline]] inline void prefetch(const RunRow& part) noexcept {
  if (part.stride < 2 * kLineBytes) {
    const std::int64_t span = (part.count - 1) * part.stride + part.run_bytes;
    for (std::int64_t at = 0; at < span; at += kLineBytes) {
      __builtin_prefetch(part.data + at);
    }
    return;
  }
  for (std::int64_t k = 0; k < part.count; ++k) {
    for (std::int64_t at = 0; at < part.run_bytes; at += kLineBytes) {
      __builtin_prefetch(part.data + k * part.stride + at);
    }
  }
}

}  // namespace

void Packer::runs(const RunRow& row) noexcept {
  if (row.run_bytes < kLongRunBytes) {
    const std::int64_t step = std::max<std::int64_t>(1, kShortPartBytes / row.run_bytes);
    for (std::int64_t k = 0; k < row.count; k += step) {
      const RunRow part{row.data + k * row.stride, std::min(step, row.count - k), row.stride, row.run_bytes};
      prefetch(part);
      queue(part);
    }
    return;
  }
  for (std::int64_t k = 0; k < row.count; ++k) {
    std::byte* run = row.data + k * row.stride;
    for (std::int64_t at = 0; at < row.run_bytes; at += kPartBytes) {
      const RunRow part{run + at, 1, 0, std::min(kPartBytes, row.run_bytes - at)};
      if (row.run_bytes % kWordBytes != 0) {
        prefetch(part);  // goes through the buffer, which does not fetch ahead
      }
      queue(part);
    }
  }
}

void Packer::missing(std::int64_t bytes) noexcept {
  write_queued(nullptr);
  while (bytes > 0) {
    const std::int64_t count = std::min(bytes, kBufferBytes - buffered_);
    std::memset(buffer_.data() + buffered_, 0, static_cast<std::size_t>(count));
    buffered_ += count;
    bytes -= count;
    if (buffered_ == kBufferBytes) {
      write_buffer();
    }
  }
}

std::uint64_t Packer::finish(const std::byte* after) noexcept {
  write_queued(after);
  write_buffer();
  return finish_checksum(sum_, static_cast<std::uint64_t>(written_));
}

void Packer::queue(const RunRow& part) noexcept {
  if (queued_ == kAheadParts) {
    write_oldest(part.data);
  }
  queue_[queued_++] = part;
}

void Packer::write_oldest(const std::byte* ahead) noexcept {
  const RunRow part = queue_[0];
  std::copy(queue_.begin() + 1, queue_.end(), queue_.begin());
  --queued_;
  if (is_long(part) && part.run_bytes % kWordBytes == 0 && buffered_ % kWordBytes == 0) {
    write_buffer();
    write(part.data, part.run_bytes, ahead);
  } else if (part.run_bytes % kLineBytes == 0 && buffered_ % kWordBytes == 0) {
    write_buffer();
    sum_ += copy_and_sum_runs(slot_ + written_, {part.data, part.stride}, part.count, part.run_bytes,
                              static_cast<std::uint64_t>(written_ / kWordBytes), stores_);
    written_ += part.count * part.run_bytes;
  } else {
    buffer_runs(part);
  }
}

void Packer::write_queued(const std::byte* after) noexcept {
  while (queued_ > 0) {
    write_oldest(after == nullptr ? queue_[0].data : after);
  }
}

void Packer::buffer_runs(const RunRow& row) noexcept {
  for (std::int64_t k = 0; k < row.count;) {
    const std::int64_t fit = std::min((kBufferBytes - buffered_) / row.run_bytes, row.count - k);
    const std::byte* run = row.data + k * row.stride;
    if (fit > 0) {
      copy_runs({buffer_.data() + buffered_, row.run_bytes}, {run, row.stride}, fit, row.run_bytes,
                Stores::kCached);
      buffered_ += fit * row.run_bytes;
      k += fit;
      continue;
    }
    for (std::int64_t at = 0; at < row.run_bytes;) {
      const std::int64_t count = std::min(row.run_bytes - at, kBufferBytes - buffered_);
      std::memcpy(buffer_.data() + buffered_, run + at, static_cast<std::size_t>(count));
      buffered_ += count;
      at += count;
      if (buffered_ == kBufferBytes) {
        write_buffer();
      }
    }
    ++k;
  }
}

void Packer::write_buffer() noexcept {
  if (buffered_ > 0) {
    write(buffer_.data(), buffered_, buffer_.data());
    buffered_ = 0;
  }
}

void Packer::write(const std::byte* source, std::int64_t bytes, const std::byte* ahead) noexcept {
  std::byte* target = slot_ + written_;
  auto index = static_cast<std::uint64_t>(written_ / kWordBytes);
  const std::int64_t lines = bytes / kLineBytes;
  const std::int64_t whole = lines * kLineBytes;
  sum_ += copy_and_sum_lines(target, source, lines, source, index, ahead, stores_);
  if (whole < bytes) {
    index += static_cast<std::uint64_t>(whole / kWordBytes);
    std::memcpy(target + whole, source + whole, static_cast<std::size_t>(bytes - whole));
    sum_ += sum_tail(source + whole, bytes - whole, index);
  }
  written_ += bytes;
}

}  // namespace tutti::kv
