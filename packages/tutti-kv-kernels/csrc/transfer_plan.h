// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tutti::kv {

// Where the pages of one layer are, in bytes from the start of the pages buffer.
struct PagedLayout {
  std::int64_t storage_offset;
  std::int64_t block_stride;
  std::int64_t page_bytes;
  std::int64_t num_blocks;
};

// The packed side: slots of `slot_bytes` in a window of `window_bytes`.
struct WindowShape {
  std::int64_t window_bytes;
  std::int64_t slot_bytes;
};

enum class Direction { kGather, kScatter };

// A transfer whose every address has been checked. It holds byte offsets of its own rather than the caller's
// id tensors, so that nothing another thread (or the copy itself) writes can move an address after the check.
struct TransferPlan {
  static constexpr std::int64_t kSkipped = -1;

  std::int64_t page_bytes;
  std::int64_t slot_bytes;
  std::int64_t blocks_per_segment;
  std::vector<std::int64_t> slot_offsets;  // one a segment, from the start of the window
  std::vector<std::int64_t>
      page_offsets;  // blocks_per_segment a segment, from the start of pages, or kSkipped

  [[nodiscard]] std::int64_t segments() const noexcept {
    return static_cast<std::int64_t>(slot_offsets.size());
  }
  [[nodiscard]] std::int64_t data_bytes() const noexcept { return page_bytes * blocks_per_segment; }
  [[nodiscard]] std::span<const std::int64_t> pages_of(std::int64_t segment) const noexcept;
};

// @throws std::invalid_argument naming the field, when a page would lie outside `pages_bytes`.
void check_layout(const PagedLayout& layout, std::int64_t pages_bytes);

// Checks all ids and turns them into offsets. `block_ids` has slots.size() rows of `blocks_per_segment`.
// @throws std::invalid_argument naming the offending value and its place.
[[nodiscard]] TransferPlan make_transfer_plan(const PagedLayout& layout, const WindowShape& window,
                                              std::span<const std::int64_t> slots,
                                              std::span<const std::int64_t> block_ids,
                                              std::int64_t blocks_per_segment, Direction direction);

}  // namespace tutti::kv
