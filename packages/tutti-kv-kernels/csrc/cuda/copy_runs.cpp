// SPDX-License-Identifier: Apache-2.0
#include "copy_runs.h"

#include <algorithm>
#include <tuple>

#include "../message.h"

namespace tutti::kv {
namespace {

// Runs of one block's part of the plane `index`.
std::int64_t runs_of(const DeviceGeometry& geometry, const TableLayer& layer, std::uint32_t index) {
  const TablePlane& plane = geometry.planes[index];
  const std::uint32_t end =
      index + 1 < layer.end_plane ? geometry.planes[index + 1].first_granule : layer.block_granules.divisor;
  return (end - plane.first_granule) / plane.run.divisor;
}

class Collector {
 public:
  Collector(const DeviceGeometry& geometry, bool to_slots) : geometry_(geometry), to_slots_(to_slots) {}

  void add_segment(const TableLayer& layer, std::span<const std::int64_t> ids, std::int64_t slot) {
    std::byte* at = geometry_.window.data + slot * geometry_.window.slot_bytes;
    std::byte* const end = at + geometry_.window.slot_bytes;
    const std::int64_t block_bytes = bytes_of(layer.block_granules.divisor);
    for (const std::int64_t id : ids) {
      if (id >= 0) {
        add_block(layer, id, at);
      } else if (to_slots_) {
        runs_.fills.push_back({at, static_cast<std::size_t>(block_bytes)});
      }
      at += block_bytes;
    }
    if (to_slots_ && at != end) {
      runs_.fills.push_back({at, static_cast<std::size_t>(end - at)});
    }
  }

  [[nodiscard]] CopyRuns take() { return std::move(runs_); }

 private:
  [[nodiscard]] std::int64_t bytes_of(std::uint32_t granules) const {
    return std::int64_t{granules} << geometry_.granule_shift;
  }

  void add_block(const TableLayer& layer, std::int64_t id, std::byte* slot) {
    for (std::uint32_t index = layer.first_plane; index < layer.end_plane; ++index) {
      const TablePlane& plane = geometry_.planes[index];
      const std::int64_t tokens = plane.tokens_per_block.divisor;
      std::byte* const base =
          plane.base + id / tokens * plane.block_stride + id % tokens * plane.token_stride;
      const std::int64_t run_bytes = bytes_of(plane.run.divisor);
      const std::int64_t middle = plane.counts[0].divisor;
      const std::int64_t inner = plane.counts[1].divisor;
      const std::int64_t runs = runs_of(geometry_, layer, index);
      for (std::int64_t run = 0; run < runs; ++run) {
        std::byte* page = base + run / inner / middle * plane.strides[0] +
                          run / inner % middle * plane.strides[1] + run % inner * plane.strides[2];
        add_run(page, slot + bytes_of(plane.first_granule) + run * run_bytes,
                static_cast<std::size_t>(run_bytes));
      }
    }
  }

  void add_run(std::byte* page, std::byte* slot, std::size_t bytes) {
    if (!runs_.copies.empty()) {
      CopyRun& last = runs_.copies.back();
      if (last.page + last.bytes == page && last.slot + last.bytes == slot) {
        last.bytes += bytes;
        return;
      }
    }
    runs_.copies.push_back({page, slot, bytes});
  }

  const DeviceGeometry& geometry_;
  bool to_slots_;
  CopyRuns runs_;
};

const TableLayer& layer_of(const DeviceGeometry& geometry, const HostSegments& segments, std::size_t i) {
  const std::int64_t layer = segments.layers.empty() ? 0 : segments.layers[i];
  if (layer < 0 || layer >= geometry.num_layers) {
    refuse("layers[", i, "] is ", layer, ", outside 0 to ", geometry.num_layers - 1);
  }
  return geometry.layers[layer];
}

void check_ids(const TableLayer& layer, std::span<const std::int64_t> ids, std::size_t row, bool may_miss) {
  for (std::size_t column = 0; column < ids.size(); ++column) {
    const std::int64_t id = ids[column];
    const bool is_none = may_miss && (id == kNoBlock || (id < 0 && layer.any_negative_id != 0));
    if (!is_none && (id < 0 || id >= layer.num_ids)) {
      refuse("block_ids[", row, ", ", column, "] is ", id, ", outside ", may_miss ? kNoBlock : 0, " to ",
             std::int64_t{layer.num_ids} - 1);
    }
  }
}

// Two copies into one place: the result would depend on their order, which copy engines do not keep.
void check_written_once(const CopyRuns& runs, bool to_slots) {
  std::vector<std::pair<const std::byte*, std::size_t>> targets;
  targets.reserve(runs.copies.size());
  for (const CopyRun& run : runs.copies) {
    targets.emplace_back(to_slots ? run.slot : run.page, run.bytes);
  }
  std::sort(targets.begin(), targets.end());
  for (std::size_t i = 1; i < targets.size(); ++i) {
    if (targets[i - 1].first + targets[i - 1].second > targets[i].first) {
      refuse(to_slots ? "slots repeat a slot; a gather writes each slot once"
                      : "block_ids repeat a block; a scatter writes each block once");
    }
  }
}

}  // namespace

std::int64_t most_runs_per_block(const DeviceGeometry& geometry) {
  std::int64_t most = 0;
  for (std::int32_t i = 0; i < geometry.num_layers; ++i) {
    const TableLayer& layer = geometry.layers[i];
    std::int64_t runs = 0;
    for (std::uint32_t index = layer.first_plane; index < layer.end_plane; ++index) {
      runs += runs_of(geometry, layer, index);
    }
    most = std::max(most, runs);
  }
  return most;
}

CopyRuns collect_runs(const DeviceGeometry& geometry, const HostSegments& segments, bool to_slots,
                      bool missing_blocks) {
  Collector collector(geometry, to_slots);
  for (std::size_t i = 0; i < segments.slots.size(); ++i) {
    const std::size_t row = i % static_cast<std::size_t>(segments.rows);
    const auto columns = static_cast<std::size_t>(segments.columns);
    const auto ids = segments.block_ids.subspan(row * columns, columns);
    const TableLayer& layer = layer_of(geometry, segments, i);
    check_ids(layer, ids, row, missing_blocks || !to_slots);
    const std::int64_t slot = segments.slots[i];
    if (slot < 0 || slot >= geometry.num_slots()) {
      refuse("slots[", i, "] is ", slot, ", outside the window's ", geometry.num_slots(), " slots");
    }
    if (segments.read_status.empty() || segments.read_status[i] == 0) {
      collector.add_segment(layer, ids, slot);
    }
  }
  CopyRuns runs = collector.take();
  check_written_once(runs, to_slots);
  return runs;
}

}  // namespace tutti::kv
