// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "checksum.h"
#include "line_copy.h"
#include "transfer.h"

namespace tutti::kv {
namespace {

// Calls that move at least this much bypass the cache: it would not hold the result anyway.
constexpr std::int64_t kStreamingBytes = 8 << 20;
// Distance of the prefetch. Long enough to hide a miss of memory and address translation, short enough for
// L1.
constexpr std::int64_t kAheadBytes = 4096;

Stores stores_for(const TransferPlan& plan) noexcept {
  return plan.segments() * plan.data_bytes() >= kStreamingBytes ? Stores::kStreaming : Stores::kCached;
}

// Gives each thread one run of segments, so that a thread knows which memory it needs next. `work(begin,
// end)`.
template <typename Work>
void split_segments(std::int64_t segments, std::int64_t threads, const Work& work) noexcept {
  const std::int64_t parts = std::clamp<std::int64_t>(threads, 1, std::max<std::int64_t>(segments, 1));
  const auto bound = [&](std::int64_t part) {
    return segments / parts * part + std::min(part, segments % parts);
  };
  std::vector<std::jthread> helpers;
  std::int64_t part = 1;
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

// Copies one page and returns its checksum terms when kSum; page_bytes is then a multiple of a word.
template <bool kSum>
std::uint64_t copy_page(std::byte* target, const std::byte* page, std::int64_t page_bytes,
                        std::uint64_t first_index, const std::byte* next_page, Stores stores) noexcept {
  // Parts of equal size: each part prefetches as much as the next one needs, across the page's end too.
  const std::int64_t lines = page_bytes / kLineBytes;
  const std::int64_t parts = (page_bytes + kAheadBytes - 1) / kAheadBytes;
  std::uint64_t sum = 0;
  std::int64_t at = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t count = lines * (part + 1) / parts - lines * part / parts;
    const std::byte* ahead = part + 1 < parts ? page + at + count * kLineBytes : next_page;
    if constexpr (kSum) {
      sum += copy_and_sum_lines(target + at, page + at, count,
                                first_index + static_cast<std::uint64_t>(at / kWordBytes), ahead, stores);
    } else {
      copy_lines(target + at, page + at, count, ahead, stores);
    }
    at += count * kLineBytes;
  }
  std::memcpy(target + at, page + at, static_cast<std::size_t>(page_bytes - at));
  if constexpr (kSum) {
    sum += sum_words(page + at, (page_bytes - at) / kWordBytes,
                     first_index + static_cast<std::uint64_t>(at / kWordBytes));
  }
  return sum;
}

// Packs the pages at `offsets` into `slot` and returns the checksum. `after` is the page needed next.
std::uint64_t pack_segment(std::byte* slot, const std::byte* pages, std::span<const std::int64_t> offsets,
                           std::int64_t page_bytes, const std::byte* after, Stores stores) noexcept {
  const bool whole_words = page_bytes % kWordBytes == 0;
  std::uint64_t sum = 0;
  std::byte* at = slot;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const std::byte* page = pages + offsets[i];
    const std::byte* next = i + 1 < offsets.size() ? pages + offsets[i + 1] : after;
    if (whole_words) {
      sum += copy_page<true>(at, page, page_bytes, static_cast<std::uint64_t>((at - slot) / kWordBytes), next,
                             stores);
    } else {
      copy_page<false>(at, page, page_bytes, 0, next, Stores::kCached);
    }
    at += page_bytes;
  }
  // Where words straddle pages, they can be summed only once they lie side by side.
  return whole_words ? finish_checksum(sum, static_cast<std::uint64_t>(at - slot))
                     : checksum(slot, at - slot);
}

// Copies a verified slot to its pages, while the slot needed next comes into the cache to be verified.
void unpack_segment(const std::byte* slot, std::byte* pages, std::span<const std::int64_t> offsets,
                    std::int64_t page_bytes, const std::byte* next_slot, Stores stores) noexcept {
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const std::int64_t at = static_cast<std::int64_t>(i) * page_bytes;
    if (offsets[i] == TransferPlan::kSkipped) {
      continue;
    }
    std::byte* page = pages + offsets[i];
    if (i + 1 < offsets.size() && offsets[i + 1] != TransferPlan::kSkipped) {
      // Translates the next page's address early.
      __builtin_prefetch(pages + offsets[i + 1]);
    }
    const std::int64_t lines = page_bytes / kLineBytes;
    copy_lines(page, slot + at, lines, next_slot + at, stores);
    const std::int64_t copied = lines * kLineBytes;
    std::memcpy(page + copied, slot + at + copied, static_cast<std::size_t>(page_bytes - copied));
  }
}

}  // namespace

void gather_cpu(const TransferPlan& plan, const std::byte* pages, std::byte* window, std::int64_t* checksums,
                std::int64_t threads) noexcept {
  const Stores stores = stores_for(plan);
  const std::int64_t used = plan.data_bytes();
  split_segments(plan.segments(), threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t segment = begin; segment < end; ++segment) {
      const auto offsets = plan.pages_of(segment);
      const std::byte* after = pages + (segment + 1 < end ? plan.pages_of(segment + 1) : offsets).front();
      std::byte* slot = window + plan.slot_offsets[static_cast<std::size_t>(segment)];
      const std::uint64_t sum = pack_segment(slot, pages, offsets, plan.page_bytes, after, stores);
      std::memset(slot + used, 0, static_cast<std::size_t>(plan.slot_bytes - used));
      checksums[segment] = static_cast<std::int64_t>(sum);
    }
    finish_stores();
  });
}

void scatter_cpu(const TransferPlan& plan, const std::byte* window, const std::int64_t* checksums,
                 std::byte* pages, bool* matched, std::int64_t threads) noexcept {
  const Stores stores = stores_for(plan);
  split_segments(plan.segments(), threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t segment = begin; segment < end; ++segment) {
      const std::byte* slot = window + plan.slot_offsets[static_cast<std::size_t>(segment)];
      const std::int64_t next = std::min(segment + 1, end - 1);
      const std::byte* next_slot = window + plan.slot_offsets[static_cast<std::size_t>(next)];
      matched[segment] = checksum(slot, plan.data_bytes()) == static_cast<std::uint64_t>(checksums[segment]);
      if (matched[segment]) {
        unpack_segment(slot, pages, plan.pages_of(segment), plan.page_bytes, next_slot, stores);
      }
    }
    finish_stores();
  });
}

}  // namespace tutti::kv
