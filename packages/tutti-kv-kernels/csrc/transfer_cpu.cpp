// SPDX-License-Identifier: Apache-2.0
#include "transfer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "checksum.h"

namespace tutti::kv {
namespace {

template <typename Work>
void for_each_segment(std::int64_t segments, std::int64_t threads, const Work& work) noexcept {
  std::atomic<std::int64_t> next{0};
  const auto drain = [&] {
    for (std::int64_t i = next.fetch_add(1); i < segments; i = next.fetch_add(1)) {
      work(i);
    }
  };
  std::vector<std::jthread> helpers;
  try {
    for (std::int64_t i = 1; i < std::min(threads, segments); ++i) {
      helpers.emplace_back(drain);
    }
  } catch (const std::exception&) {
    // No room for another thread: those that run, at least this one, do the work.
  }
  drain();
}

std::uint64_t pack_pages(std::byte* slot, const std::byte* pages, std::span<const std::int64_t> offsets,
                         std::int64_t page_bytes) noexcept {
  if (page_bytes % kWordBytes == 0) {
    const std::int64_t words = page_bytes / kWordBytes;
    std::uint64_t sum = 0;
    std::uint64_t index = 0;
    for (const std::int64_t offset : offsets) {
      sum += copy_and_sum_words(slot + index * kWordBytes, pages + offset, words, index);
      index += static_cast<std::uint64_t>(words);
    }
    return finish_checksum(sum, index * kWordBytes);
  }
  // Words straddle pages here, so they can be summed only once they lie side by side.
  std::byte* at = slot;
  for (const std::int64_t offset : offsets) {
    std::memcpy(at, pages + offset, static_cast<std::size_t>(page_bytes));
    at += page_bytes;
  }
  return checksum(slot, at - slot);
}

}  // namespace

void gather_cpu(const TransferPlan& plan, const std::byte* pages, std::byte* window, std::int64_t* checksums,
                std::int64_t threads) noexcept {
  const std::int64_t used = plan.data_bytes();
  for_each_segment(plan.segments(), threads, [&](std::int64_t segment) {
    std::byte* slot = window + plan.slot_offsets[static_cast<std::size_t>(segment)];
    const std::uint64_t sum = pack_pages(slot, pages, plan.pages_of(segment), plan.page_bytes);
    std::memset(slot + used, 0, static_cast<std::size_t>(plan.slot_bytes - used));
    checksums[segment] = static_cast<std::int64_t>(sum);
  });
}

void scatter_cpu(const TransferPlan& plan, const std::byte* window, const std::int64_t* checksums, std::byte* pages,
                 bool* matched, std::int64_t threads) noexcept {
  for_each_segment(plan.segments(), threads, [&](std::int64_t segment) {
    const std::byte* at = window + plan.slot_offsets[static_cast<std::size_t>(segment)];
    matched[segment] = checksum(at, plan.data_bytes()) == static_cast<std::uint64_t>(checksums[segment]);
    if (!matched[segment]) {
      return;
    }
    for (const std::int64_t offset : plan.pages_of(segment)) {
      if (offset != TransferPlan::kSkipped) {
        std::memcpy(pages + offset, at, static_cast<std::size_t>(plan.page_bytes));
      }
      at += plan.page_bytes;
    }
  });
}

}  // namespace tutti::kv
