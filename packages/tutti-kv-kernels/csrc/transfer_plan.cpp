// SPDX-License-Identifier: Apache-2.0
#include "transfer_plan.h"

#include <algorithm>
#include <optional>

#include "message.h"

namespace tutti::kv {
namespace {

// Index of the second of two equal entries, leaving out negative ones.
std::optional<std::size_t> find_repeated(std::span<const std::int64_t> values) {
  std::vector<std::size_t> order;
  order.reserve(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= 0) {
      order.push_back(i);
    }
  }
  std::sort(order.begin(), order.end(), [values](std::size_t a, std::size_t b) {
    return values[a] != values[b] ? values[a] < values[b] : a < b;
  });
  const auto same = [values](std::size_t a, std::size_t b) { return values[a] == values[b]; };
  const auto found = std::adjacent_find(order.begin(), order.end(), same);
  return found == order.end() ? std::nullopt : std::optional(*(found + 1));
}

void check_window(const PagedLayout& layout, const WindowShape& window, std::int64_t blocks_per_segment) {
  if (window.slot_bytes <= 0) {
    refuse("slot_bytes must be positive, got ", window.slot_bytes);
  }
  if (blocks_per_segment <= 0) {
    refuse("block_ids must have at least one block per segment, got ", blocks_per_segment, " columns");
  }
  // Divides instead of multiplying: the product of two caller-supplied numbers may not fit.
  if (layout.page_bytes > window.slot_bytes / blocks_per_segment) {
    refuse("slot_bytes ", window.slot_bytes, " is too small for a segment of ", blocks_per_segment,
           " blocks of ", layout.page_bytes, " bytes");
  }
}

std::vector<std::int64_t> slot_offsets_of(const WindowShape& window, std::span<const std::int64_t> slots) {
  const std::int64_t count = window.window_bytes / window.slot_bytes;
  std::vector<std::int64_t> offsets;
  offsets.reserve(slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0 || slots[i] >= count) {
      refuse("slots[", i, "] is ", slots[i], ", outside the window's ", count, " slots (window of ",
             window.window_bytes, " bytes, slot_bytes ", window.slot_bytes, ")");
    }
    offsets.push_back(slots[i] * window.slot_bytes);
  }
  return offsets;
}

std::vector<std::int64_t> page_offsets_of(const PagedLayout& layout, std::span<const std::int64_t> block_ids,
                                          std::int64_t columns, Direction direction) {
  const std::int64_t lowest = direction == Direction::kScatter ? TransferPlan::kSkipped : 0;
  std::vector<std::int64_t> offsets;
  offsets.reserve(block_ids.size());
  for (std::size_t i = 0; i < block_ids.size(); ++i) {
    const std::int64_t id = block_ids[i];
    if (id < lowest || id >= layout.num_blocks) {
      const auto row = static_cast<std::int64_t>(i) / columns;
      const auto column = static_cast<std::int64_t>(i) % columns;
      refuse("block_ids[", row, ", ", column, "] is ", id, ", outside ", lowest, " to ",
             layout.num_blocks - 1, direction == Direction::kScatter ? " (-1 skips a block)" : "");
    }
    offsets.push_back(id < 0 ? TransferPlan::kSkipped : layout.storage_offset + id * layout.block_stride);
  }
  return offsets;
}

}  // namespace

std::span<const std::int64_t> TransferPlan::pages_of(std::int64_t segment) const noexcept {
  const auto columns = static_cast<std::size_t>(blocks_per_segment);
  return std::span(page_offsets).subspan(static_cast<std::size_t>(segment) * columns, columns);
}

void check_layout(const PagedLayout& layout, std::int64_t pages_bytes) {
  if (layout.page_bytes <= 0 || layout.num_blocks <= 0 || layout.storage_offset < 0 ||
      layout.block_stride < layout.page_bytes) {
    refuse(
        "layout must have page_bytes > 0, num_blocks > 0, storage_offset >= 0 and block_stride >= "
        "page_bytes, got ",
        "storage_offset ", layout.storage_offset, ", block_stride ", layout.block_stride, ", page_bytes ",
        layout.page_bytes, ", num_blocks ", layout.num_blocks);
  }
  const std::int64_t room = pages_bytes - layout.storage_offset;
  if (room < layout.page_bytes || (room - layout.page_bytes) / layout.block_stride < layout.num_blocks - 1) {
    refuse("layout reaches beyond pages: ", layout.num_blocks, " blocks of ", layout.page_bytes,
           " bytes, block_stride ", layout.block_stride, ", from storage_offset ", layout.storage_offset,
           ", but pages has ", pages_bytes, " bytes");
  }
}

TransferPlan make_transfer_plan(const PagedLayout& layout, const WindowShape& window,
                                std::span<const std::int64_t> slots, std::span<const std::int64_t> block_ids,
                                std::int64_t blocks_per_segment, Direction direction) {
  check_window(layout, window, blocks_per_segment);
  TransferPlan plan{
      .page_bytes = layout.page_bytes,
      .slot_bytes = window.slot_bytes,
      .blocks_per_segment = blocks_per_segment,
      .slot_offsets = slot_offsets_of(window, slots),
      .page_offsets = page_offsets_of(layout, block_ids, blocks_per_segment, direction),
  };
  // Whatever is written must be written once: the result of two writers would depend on their order.
  if (direction == Direction::kGather) {
    if (const auto at = find_repeated(slots)) {
      refuse("slots[", *at, "] repeats slot ", slots[*at], "; a gather writes each slot once");
    }
  } else if (const auto at = find_repeated(block_ids)) {
    const auto columns = static_cast<std::size_t>(blocks_per_segment);
    refuse("block_ids[", *at / columns, ", ", *at % columns, "] repeats block ", block_ids[*at],
           "; a scatter writes each block once");
  }
  return plan;
}

}  // namespace tutti::kv
