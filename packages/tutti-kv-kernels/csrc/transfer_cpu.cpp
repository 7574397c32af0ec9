// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "checksum.h"
#include "line_copy.h"
#include "run_copy.h"
#include "segment_walk.h"
#include "transfer.h"

namespace tutti::kv {
namespace {

// Calls that move at least this much bypass the cache: it would not hold the result anyway.
constexpr std::int64_t kStreamingBytes = 8 << 20;

Stores stores_for(const TransferPlan& plan) noexcept {
  std::int64_t bytes = 0;
  for (const TransferPlan::Segment& segment : plan.segments) {
    bytes += plan.data_bytes(segment);
    if (bytes >= kStreamingBytes) {
      return Stores::kStreaming;
    }
  }
  return Stores::kCached;
}

// Gives each thread one run of segments, so that a thread knows which memory it needs next. `work(begin,
// end)`.
template <typename Work>
void split_segments(std::size_t segments, std::int64_t threads, const Work& work) noexcept {
  const std::size_t parts =
      std::clamp<std::size_t>(static_cast<std::size_t>(threads), 1, std::max<std::size_t>(segments, 1));
  const auto bound = [&](std::size_t part) {
    return segments / parts * part + std::min(part, segments % parts);
  };
  std::vector<std::jthread> helpers;
  std::size_t part = 1;
  try {
    for (; part < parts; ++part) {
      helpers.emplace_back([&work, begin = bound(part), end = bound(part + 1)] { work(begin, end); });
    }
  } catch (const std::exception&) {
    // The system has no thread left: this one does the rest.
    work(bound(part), segments);
  }
  work(0, bound(1));
}

// Takes rows one behind: a row is copied when the next one, whose memory it prefetches, is known.
class Packer {
 public:
  Packer(std::byte* slot, Stores stores) noexcept : slot_(slot), at_(slot), summed_(slot), stores_(stores) {}

  void runs(const RunRow& row) noexcept {
    copy_pending(row.data);
    pending_ = row;
  }

  void missing(std::int64_t bytes) noexcept {
    copy_pending(nullptr);
    std::memset(at_, 0, static_cast<std::size_t>(bytes));
    at_ += bytes;
    sum_behind(kSumBytes);
  }

  // Returns the checksum of all that was packed. `after` is the memory needed next.
  [[nodiscard]] std::uint64_t finish(const std::byte* after) noexcept {
    copy_pending(after);
    sum_behind(kWordBytes);
    const auto bytes = static_cast<std::uint64_t>(at_ - slot_);
    if (at_ != summed_) {
      std::uint64_t word = 0;
      std::memcpy(&word, summed_, static_cast<std::size_t>(at_ - summed_));
      sum_ += mix_word(word, bytes / kWordBytes);
    }
    return finish_checksum(sum_, bytes);
  }

 private:
  // What is summed after it was copied is summed in parts that are still in the first cache.
  static constexpr std::int64_t kSumBytes = 8192;

  void copy_pending(const std::byte* next) noexcept {
    const RunRow& row = pending_;
    if (row.run_bytes >= kLongRunBytes) {
      for (std::int64_t k = 0; k < row.count; ++k) {
        const std::byte* run = row.data + k * row.stride;
        const std::byte* ahead = k + 1 < row.count ? run + row.stride : next;
        copy_long_run(run, row.run_bytes, ahead == nullptr ? run : ahead);
      }
    } else if (row.count != 0) {
      const std::int64_t step = std::max<std::int64_t>(1, kSumBytes / row.run_bytes);
      for (std::int64_t k = 0; k < row.count; k += step) {
        const std::int64_t count = std::min(step, row.count - k);
        copy_runs({at_, row.run_bytes}, {row.data + k * row.stride, row.stride}, count, row.run_bytes);
        at_ += count * row.run_bytes;
        sum_behind(kSumBytes);
      }
    }
    pending_.count = 0;
  }

  void copy_long_run(const std::byte* run, std::int64_t bytes, const std::byte* ahead) noexcept {
    // Words that straddle runs can be summed only once they lie side by side.
    if (bytes % kWordBytes == 0 && (at_ - slot_) % kWordBytes == 0) {
      sum_behind(kWordBytes);
      sum_ += copy_and_sum_run(at_, run, bytes, static_cast<std::uint64_t>((at_ - slot_) / kWordBytes), ahead,
                               stores_);
      at_ += bytes;
      summed_ = at_;
    } else {
      copy_run(at_, run, bytes, ahead, Stores::kCached);
      at_ += bytes;
      sum_behind(kSumBytes);
    }
  }

  // Sums the whole words copied and not summed yet, if they are at least `bytes`.
  void sum_behind(std::int64_t bytes) noexcept {
    const std::int64_t behind = at_ - summed_;
    if (behind < bytes) {
      return;
    }
    const std::int64_t words = behind / kWordBytes;
    sum_ += sum_words(summed_, words, static_cast<std::uint64_t>((summed_ - slot_) / kWordBytes));
    summed_ += words * kWordBytes;
  }

  std::byte* slot_;
  std::byte* at_;
  std::byte* summed_;  // everything before it is in sum_; a whole number of words from slot_
  std::uint64_t sum_ = 0;
  RunRow pending_{};
  Stores stores_;
};

// Copies a verified slot to its blocks, while the slot needed next comes into the cache to be verified.
class Unpacker {
 public:
  Unpacker(const std::byte* slot, const std::byte* next_slot, Stores stores) noexcept
      : at_(slot), next_slot_(next_slot), stores_(stores) {}

  void runs(const RunRow& row) noexcept {
    if (row.run_bytes >= kLongRunBytes) {
      for (std::int64_t k = 0; k < row.count; ++k) {
        copy_long_run(row.data + k * row.stride, row.run_bytes);
      }
      return;
    }
    copy_runs({row.data, row.stride}, {at_, row.run_bytes}, row.count, row.run_bytes);
    skip(row.count * row.run_bytes);
  }

  void missing(std::int64_t bytes) noexcept { skip(bytes); }

 private:
  void copy_long_run(std::byte* run, std::int64_t bytes) noexcept {
    copy_run_to(run, at_, bytes, next_slot_, stores_);
    skip(bytes);
  }

  void skip(std::int64_t bytes) noexcept {
    at_ += bytes;
    next_slot_ += bytes;
  }

  const std::byte* at_;
  const std::byte* next_slot_;
  Stores stores_;
};

// Where the first run of a segment is, to be prefetched.
const std::byte* start_of(const TransferPlan& plan, const TransferPlan::Segment& segment,
                          std::span<std::byte* const> storages) noexcept {
  const std::int64_t id = plan.ids_of(segment).front();
  const Plane& plane = segment.layer->merged.front();
  return storages[static_cast<std::size_t>(plane.storage)] +
         block_address(plane, std::max<std::int64_t>(id, 0));
}

}  // namespace

void gather_cpu(const TransferPlan& plan, std::span<std::byte* const> storages, std::byte* window,
                std::int64_t* checksums, std::int64_t threads) noexcept {
  const Stores stores = stores_for(plan);
  split_segments(plan.segments.size(), threads, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const TransferPlan::Segment& segment = plan.segments[i];
      std::byte* slot = window + segment.slot_offset;
      Packer packer(slot, stores);
      SegmentWalk<Packer>(plan, segment, storages, packer).run();
      const std::uint64_t sum =
          packer.finish(start_of(plan, plan.segments[i + 1 < end ? i + 1 : i], storages));
      const std::int64_t used = plan.data_bytes(segment);
      std::memset(slot + used, 0, static_cast<std::size_t>(plan.slot_bytes - used));
      checksums[i] = static_cast<std::int64_t>(sum);
    }
    finish_stores();
  });
}

void scatter_cpu(const TransferPlan& plan, const std::byte* window, const std::int64_t* checksums,
                 const std::int32_t* read_status, std::span<std::byte* const> storages, std::int32_t* status,
                 std::int64_t threads) noexcept {
  const Stores stores = stores_for(plan);
  const auto outcome = [&](std::size_t i, const std::byte* slot) {
    if (read_status != nullptr && read_status[i] != 0) {
      return Status::kNotRead;
    }
    const std::uint64_t sum = checksum(slot, plan.data_bytes(plan.segments[i]));
    return sum == static_cast<std::uint64_t>(checksums[i]) ? Status::kOk : Status::kMismatch;
  };
  split_segments(plan.segments.size(), threads, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const TransferPlan::Segment& segment = plan.segments[i];
      const std::byte* slot = window + segment.slot_offset;
      const Status found = outcome(i, slot);
      status[i] = static_cast<std::int32_t>(found);
      if (found == Status::kOk) {
        Unpacker unpacker(slot, window + plan.segments[i + 1 < end ? i + 1 : i].slot_offset, stores);
        SegmentWalk<Unpacker>(plan, segment, storages, unpacker).run();
      }
    }
    finish_stores();
  });
}

}  // namespace tutti::kv
