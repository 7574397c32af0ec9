// SPDX-License-Identifier: Apache-2.0
#include "transfer_plan.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "message.h"

namespace tutti::kv {
namespace {

// Index of the second of two equal entries.
std::optional<std::size_t> find_repeated(std::span<const std::int64_t> values) {
  std::vector<std::pair<std::int64_t, std::size_t>> order;
  order.reserve(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    order.emplace_back(values[i], i);
  }
  std::sort(order.begin(), order.end());
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  const auto found = std::adjacent_find(order.begin(), order.end(), same);
  return found == order.end() ? std::nullopt : std::optional((found + 1)->second);
}

void check_window(const Layer& layer, const WindowShape& window, std::int64_t columns) {
  // Divides instead of multiplying: the product of two caller-supplied numbers may not fit.
  if (layer.block_bytes > window.slot_bytes / columns) {
    refuse("slot_bytes ", window.slot_bytes, " is too small for a segment of ", columns, " blocks of ",
           layer.block_bytes, " bytes");
  }
}

std::int64_t slot_offset_of(const WindowShape& window, std::span<const std::int64_t> slots, std::size_t i) {
  const std::int64_t count = window.window_bytes / window.slot_bytes;
  if (slots[i] < 0 || slots[i] >= count) {
    refuse("slots[", i, "] is ", slots[i], ", outside the window's ", count, " slots (window of ",
           window.window_bytes, " bytes, slot_bytes ", window.slot_bytes, ")");
  }
  return slots[i] * window.slot_bytes;
}

const Layer& layer_of(const std::vector<Layer>& layers, std::span<const std::int64_t> indices,
                      std::size_t i) {
  const auto index = static_cast<std::uint64_t>(indices.empty() ? 0 : indices[i]);
  if (index >= layers.size()) {
    refuse("layers[", i, "] is ", indices[i], ", outside 0 to ", layers.size() - 1);
  }
  return layers[index];
}

TokenRange tokens_of(const Layer& layer, const Segments& segments, std::size_t i) {
  if (layer.block_tokens == 0) {
    refuse("token_ranges[", i, "] cannot be applied: tokens do not divide the blocks of layer ",
           segments.layers.empty() ? 0 : segments.layers[i]);
  }
  const std::int64_t begin = segments.token_ranges[2 * i];
  const std::int64_t count = segments.token_ranges[2 * i + 1];
  const std::int64_t all = layer.block_tokens * segments.columns;
  if (begin < 0 || count < 0 || begin > all || count > all - begin) {
    refuse("token_ranges[", i, "] is ", begin, ", ", count, " (first token, tokens), outside the segment's ",
           all, " tokens");
  }
  return {begin, begin + count};
}

// The id as the plan keeps it.
std::int64_t checked_id(const Layer& layer, std::int64_t id, std::size_t row, std::int64_t column,
                        bool may_miss) {
  if (id < 0 && may_miss && (id == kNoBlock || counts_tokens(layer.planes.front()))) {
    return kNoBlock;
  }
  if (id < 0 || id >= layer.num_ids) {
    refuse("block_ids[", row, ", ", column, "] is ", id, ", outside ", may_miss ? kNoBlock : 0, " to ",
           layer.num_ids - 1, may_miss ? " (-1 skips a block)" : "");
  }
  return id;
}

void take_ids(TransferPlan& plan, const Segments& segments, bool may_miss) {
  const std::size_t rows = segments.block_ids.size() / static_cast<std::size_t>(segments.columns);
  plan.block_ids.reserve(segments.slots.size() * static_cast<std::size_t>(segments.columns));
  for (std::size_t i = 0; i < plan.segments.size(); ++i) {
    const std::size_t row = i % rows;
    const auto ids = segments.block_ids.subspan(row * static_cast<std::size_t>(segments.columns),
                                                static_cast<std::size_t>(segments.columns));
    plan.segments[i].first_id = static_cast<std::int64_t>(plan.block_ids.size());
    for (std::size_t column = 0; column < ids.size(); ++column) {
      plan.block_ids.push_back(
          checked_id(*plan.segments[i].layer, ids[column], row, static_cast<std::int64_t>(column), may_miss));
    }
  }
}

// Two blocks of a scatter that share a byte of their first run: the result would depend on their order. Runs
// are compared and not ids, because layers may share memory. require_planes_apart looks at all other runs.
void check_blocks_written_once(const TransferPlan& plan) {
  struct Run {
    std::int64_t storage, begin, end;
    std::size_t place;
  };
  std::vector<Run> runs;
  runs.reserve(plan.block_ids.size());
  const auto columns = static_cast<std::size_t>(plan.columns);
  for (std::size_t place = 0; place < plan.block_ids.size(); ++place) {
    const TransferPlan::Segment& segment = plan.segments[place / columns];
    if (const std::int64_t id = plan.block_ids[place]; id != kNoBlock) {
      const Plane& plane = segment.layer->merged.front();
      const std::int64_t begin = block_address(plane, id);
      runs.push_back({plane.storage, begin, begin + plane.run_bytes, place});
    }
  }
  const auto key = [](const Run& run) { return std::tuple(run.storage, run.begin, run.place); };
  std::sort(runs.begin(), runs.end(), [&](const Run& a, const Run& b) { return key(a) < key(b); });
  for (std::size_t i = 1; i < runs.size(); ++i) {
    if (runs[i].storage == runs[i - 1].storage && runs[i].begin < runs[i - 1].end) {
      const std::size_t place = std::max(runs[i].place, runs[i - 1].place);
      refuse("block_ids[", place / columns, ", ", place % columns, "] repeats block ", plan.block_ids[place],
             "; a scatter writes each block once");
    }
  }
}

}  // namespace

TransferPlan make_transfer_plan(std::vector<Layer> layers, const WindowShape& window,
                                const Segments& segments, Direction direction, bool missing_blocks) {
  if (window.slot_bytes <= 0) {
    refuse("slot_bytes must be positive, got ", window.slot_bytes);
  }
  if (segments.columns <= 0) {
    refuse("block_ids must have at least one block per segment, got ", segments.columns, " columns");
  }
  TransferPlan plan{.layers = std::move(layers),
                    .segments = {},
                    .block_ids = {},
                    .columns = segments.columns,
                    .slot_bytes = window.slot_bytes};
  plan.segments.reserve(segments.slots.size());
  for (std::size_t i = 0; i < segments.slots.size(); ++i) {
    const Layer& layer = layer_of(plan.layers, segments.layers, i);
    check_window(layer, window, segments.columns);
    TransferPlan::Segment segment{.slot_offset = slot_offset_of(window, segments.slots, i),
                                  .layer = &layer,
                                  .first_id = 0,
                                  .tokens = {0, layer.block_tokens * segments.columns},
                                  .clipped = false};
    if (!segments.token_ranges.empty()) {
      const TokenRange all = segment.tokens;
      segment.tokens = tokens_of(layer, segments, i);
      segment.clipped = segment.tokens.begin != all.begin || segment.tokens.end != all.end;
    }
    plan.segments.push_back(segment);
  }
  take_ids(plan, segments, missing_blocks || direction == Direction::kScatter);
  // Whatever is written must be written once: the result of two writers would depend on their order.
  if (direction == Direction::kScatter) {
    check_blocks_written_once(plan);
  } else if (const auto at = find_repeated(segments.slots)) {
    refuse("slots[", *at, "] repeats slot ", segments.slots[*at], "; a gather writes each slot once");
  }
  return plan;
}

}  // namespace tutti::kv
