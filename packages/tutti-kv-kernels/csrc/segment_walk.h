// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transfer_plan.h"

namespace tutti::kv {

// Equally spaced runs: run k is run_bytes bytes at data + k * stride.
struct RunRow {
  std::byte* data;
  std::int64_t count;
  std::int64_t stride;
  std::int64_t run_bytes;
};

// Calls `sink.runs(row)` and `sink.missing(bytes)` for the parts of one segment in packed order.
template <typename Sink>
class SegmentWalk {
 public:
  SegmentWalk(const TransferPlan& plan, const TransferPlan::Segment& segment,
              std::span<std::byte* const> storages, Sink& sink) noexcept
      : plan_(plan), segment_(segment), storages_(storages), sink_(sink) {}

  void run() noexcept {
    const Layer& layer = *segment_.layer;
    std::int64_t first_token = 0;
    for (const std::int64_t id : plan_.ids_of(segment_)) {
      const TokenRange tokens = clip(segment_.tokens, first_token, layer.block_tokens);
      first_token += layer.block_tokens;
      if (id == kNoBlock || (segment_.clipped && tokens.begin == tokens.end)) {
        sink_.missing(layer.block_bytes);
      } else if (!segment_.clipped || tokens.end - tokens.begin == layer.block_tokens) {
        for (const Plane& plane : layer.merged) {
          whole_plane(plane, id);
        }
      } else {
        for (const Plane& plane : layer.planes) {
          clipped_plane(plane, id, clip(tokens, plane.first_token, plane.counts[plane.token_dim]));
        }
      }
    }
  }

 private:
  // The part of `range` that lies in [first, first + count), counted from `first`.
  static TokenRange clip(const TokenRange& range, std::int64_t first, std::int64_t count) noexcept {
    const std::int64_t begin = std::clamp<std::int64_t>(range.begin - first, 0, count);
    return {begin, std::clamp(range.end - first, begin, count)};
  }

  void whole_plane(const Plane& plane, std::int64_t id) noexcept {
    std::byte* block = storages_[static_cast<std::size_t>(plane.storage)] + block_address(plane, id);
    for (std::int64_t i = 0; i < plane.counts[0]; ++i) {
      for (std::int64_t j = 0; j < plane.counts[1]; ++j) {
        sink_.runs(RunRow{block + i * plane.strides[0] + j * plane.strides[1], plane.counts[2],
                          plane.strides[2], plane.run_bytes});
      }
    }
  }

  void clipped_plane(const Plane& plane, std::int64_t id, const TokenRange& tokens) noexcept {
    std::byte* block = storages_[static_cast<std::size_t>(plane.storage)] + block_address(plane, id);
    TokenRange ranges[Plane::kDims] = {{0, plane.counts[0]}, {0, plane.counts[1]}, {0, plane.counts[2]}};
    ranges[plane.token_dim] = tokens;
    const auto inside = [&](int dim, std::int64_t index) {
      return index >= ranges[dim].begin && index < ranges[dim].end;
    };
    for (std::int64_t i = 0; i < plane.counts[0]; ++i) {
      for (std::int64_t j = 0; j < plane.counts[1]; ++j) {
        if (inside(0, i) && inside(1, j)) {
          std::byte* row = block + i * plane.strides[0] + j * plane.strides[1];
          sink_.missing(ranges[2].begin * plane.run_bytes);
          sink_.runs(RunRow{row + ranges[2].begin * plane.strides[2], ranges[2].end - ranges[2].begin,
                            plane.strides[2], plane.run_bytes});
          sink_.missing((plane.counts[2] - ranges[2].end) * plane.run_bytes);
        } else {
          sink_.missing(plane.counts[2] * plane.run_bytes);
        }
      }
    }
  }

  const TransferPlan& plan_;
  const TransferPlan::Segment& segment_;
  std::span<std::byte* const> storages_;
  Sink& sink_;
};

}  // namespace tutti::kv
