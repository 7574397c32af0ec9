// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device_geometry.h"

namespace tutti::kv {

// The ids of a transfer, in host memory. Segment i has row i % rows of block_ids.
struct HostSegments {
  std::span<const std::int64_t> slots;
  std::span<const std::int64_t> layers;       // empty: layer 0 for all
  std::span<const std::int32_t> read_status;  // empty: all were read
  std::span<const std::int64_t> block_ids;
  std::int64_t rows;
  std::int64_t columns;
};

// Bytes that are contiguous on both sides, and bytes of slots that no page has.
struct CopyRun {
  std::byte* page;
  std::byte* slot;
  std::size_t bytes;
};
struct Fill {
  std::byte* slot;
  std::size_t bytes;
};
struct CopyRuns {
  std::vector<CopyRun> copies;
  std::vector<Fill> fills;
};

// Runs of a block, of the layer that has most.
[[nodiscard]] std::int64_t most_runs_per_block(const DeviceGeometry& geometry);

// The runs of a transfer, neighbours joined. `to_slots`: with what must be zero in the slots.
// @throws std::invalid_argument naming an id that is out of range, and for a second writer of a slot or
// block.
[[nodiscard]] CopyRuns collect_runs(const DeviceGeometry& geometry, const HostSegments& segments,
                                    bool to_slots, bool missing_blocks);

}  // namespace tutti::kv
