// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "geometry.h"

namespace tutti::kv {

// The packed side: slots of `slot_bytes` in a window of `window_bytes`.
struct WindowShape {
  std::int64_t window_bytes;
  std::int64_t slot_bytes;
};

enum class Direction { kGather, kScatter };

// What becomes of a segment in a scatter; the numbers are part of the operator's interface.
enum class Status : std::int32_t {
  kOk = 0,
  kMismatch = 1,    // the slot's bytes are not those that the checksum was taken of; nothing was written
  kNotRead = 2,     // the caller's read_status said that the slot was not filled; nothing was written
  kOutOfRange = 3,  // only where ids are checked on a device: an id named no block; nothing was written
};

// Which blocks go where, as the caller says it. Segment i packs row i % rows of `block_ids` (rows of
// `columns` ids) of layer `layers[i]` into slot `slots[i]`.
struct Segments {
  std::span<const std::int64_t> slots;
  std::span<const std::int64_t> layers;  // empty: layer 0 for all
  std::span<const std::int64_t> block_ids;
  std::int64_t columns;
  // Two numbers a segment, its first token and how many follow; empty for all tokens.
  std::span<const std::int64_t> token_ranges;
};

struct TokenRange {
  std::int64_t begin;
  std::int64_t end;
};

// A transfer whose every address has been checked. It holds ids of its own rather than the caller's tensors,
// so that nothing another thread (or the copy itself) writes can move an address after the check.
struct TransferPlan {
  struct Segment {
    std::int64_t slot_offset;  // from the start of the window
    const Layer* layer;
    std::int64_t first_id;  // index of its first id in block_ids
    TokenRange tokens;
    bool clipped;  // whether `tokens` leaves anything out
  };

  std::vector<Layer> layers;
  std::vector<Segment> segments;
  std::vector<std::int64_t> block_ids;  // kNoBlock or 0 <= id < num_ids
  std::int64_t columns;
  std::int64_t slot_bytes;

  [[nodiscard]] std::span<const std::int64_t> ids_of(const Segment& segment) const noexcept {
    return std::span(block_ids).subspan(static_cast<std::size_t>(segment.first_id),
                                        static_cast<std::size_t>(columns));
  }
  [[nodiscard]] std::int64_t data_bytes(const Segment& segment) const noexcept {
    return segment.layer->block_bytes * columns;
  }
};

// Checks everything and takes over the ids. `missing_blocks`: whether a gather may meet kNoBlock.
// Where ids count tokens, any negative id is kNoBlock.
// @throws std::invalid_argument naming the offending value and its place.
[[nodiscard]] TransferPlan make_transfer_plan(std::vector<Layer> layers, const WindowShape& window,
                                              const Segments& segments, Direction direction,
                                              bool missing_blocks);

}  // namespace tutti::kv
