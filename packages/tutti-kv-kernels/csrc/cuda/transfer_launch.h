// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../transfer_plan.h"
#include "transfer_table.h"

namespace tutti::kv {

enum class KernelMode : std::uint32_t {
  kGather,    // pages to slots
  kScatter,   // slots to pages
  kSumPages,  // checksum of the pages alone
  kSumSlots,  // checksum of the slots alone
};

// One segment's part of the workspace: the checksum's two halves as they gather, and their meeting point.
// All zeros between launches.
struct SegmentSums {
  unsigned long long low;
  unsigned long long high;
  unsigned long long meeting;
};

// Arguments of one launch. Pointers are addresses of the device; optional ones may be null.
struct TransferLaunch {
  const std::int64_t* block_ids;         // [rows, columns]; segment i has row i % rows
  const std::int64_t* slots;             // [segments]
  const std::int64_t* layer_of_segment;  // optional [segments]; 0 without it
  const std::int64_t* token_ranges;      // optional [segments, 2]: first token, tokens
  const std::int32_t* read_status;       // optional [segments]; a segment takes part where it is 0
  std::int64_t* checksums;               // optional [segments]; written or compared
  std::int32_t* status;                  // optional [segments]
  SegmentSums* sums;                     // [segments] with checksums, else null
  std::byte* window;
  std::int64_t slot_bytes;
  std::int64_t num_slots;
  std::uint32_t segments;
  std::uint32_t columns;
  std::uint32_t num_layers;
  std::uint32_t granule_shift;
  // Segments are cut into spans of span_tiles tiles. A block moves one span at a time, its warps take turns.
  std::uint32_t segment_tiles;
  std::uint32_t span_tiles;
  std::uint32_t total_spans;
  FastDivisor segment_spans;
  FastDivisor rows;
  std::uint32_t compare;         // 1: checksums are expected values, 0: they are results
  std::uint32_t missing_blocks;  // 1: ids may say "no block"
};

}  // namespace tutti::kv
