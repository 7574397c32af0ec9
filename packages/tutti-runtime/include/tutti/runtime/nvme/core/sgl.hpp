// SPDX-License-Identifier: Apache-2.0
// Scatter gather lists (NVM Express Base Specification, "Scatter Gather List"): data blocks in segments; the
// last descriptor of a segment that another one follows says where that is and how long.
#pragma once

#include <cstdint>

#include "tutti/runtime/nvme/core/annotate.hpp"
#include "tutti/runtime/nvme/core/data_pointer.hpp"
#include "tutti/runtime/nvme/core/iova_map.hpp"

namespace tutti::runtime::nvme {

inline constexpr std::uint32_t kSglDescriptorBytes = 16;

TUTTI_HD SglDescriptor sgl_descriptor(std::uint64_t address, std::uint32_t length,
                                      std::uint8_t identifier) noexcept {
  return sgl_of(sgl_pointer(address, length, identifier));
}

/// Memory for descriptors, in one piece on the bus.
struct SglListMemory {
  SglDescriptor* descriptors = nullptr;
  std::uint64_t iova = 0;
  std::uint32_t count = 0;
  std::uint32_t per_segment =
      256;  ///< descriptors of one segment, its pointer to the next included; 2 or more
};

/// How many pieces a range has on the bus; 0 when part of it is not in the map.
TUTTI_HD std::uint32_t count_runs(const IovaMap& map, std::uint64_t place, std::uint64_t length) noexcept {
  std::uint32_t count = 0;
  for (std::uint64_t done = 0; done < length; ++count) {
    std::uint64_t iova = 0;
    const std::uint64_t run = translate(map, place + done, iova);
    if (run == 0) {
      return 0;
    }
    done += run;
  }
  return count;
}

/// Pointer to segment number `segment` of `left` data blocks that are still to come.
TUTTI_HD DataPointer sgl_segment_pointer(const SglListMemory& list, std::uint32_t segment,
                                         std::uint32_t left) noexcept {
  const bool last = left <= list.per_segment;
  const std::uint32_t descriptors = last ? left : list.per_segment;
  const std::uint64_t place = std::uint64_t{segment} * list.per_segment;
  return sgl_pointer(list.iova + place * kSglDescriptorBytes, descriptors * kSglDescriptorBytes,
                     last ? kSglLastSegment : kSglSegment);
}

/// Writes the descriptors of one command: none for a range in one piece, else segments in `list`.
/// @returns false when part of the range is not in `map`, or `list` is too small.
TUTTI_HD bool build_sgl(const IovaMap& map, std::uint64_t place, std::uint64_t length,
                        const SglListMemory& list, DataPointer& out) noexcept {
  const std::uint32_t blocks = count_runs(map, place, length);
  if (blocks == 0) {
    return false;
  }
  std::uint64_t iova = 0;
  if (blocks == 1) {
    static_cast<void>(translate(map, place, iova));
    out = sgl_pointer(iova, static_cast<std::uint32_t>(length), kSglDataBlock);
    return true;
  }
  out = sgl_segment_pointer(list, 0, blocks);
  std::uint64_t done = 0;
  std::uint32_t slot = 0;
  for (std::uint32_t left = blocks; left > 0; ++slot) {
    if (slot >= list.count) {
      return false;
    }
    // How many descriptors the segment had left at its beginning decides whether it ends with a pointer.
    const std::uint32_t inside = slot % list.per_segment;
    if (inside == list.per_segment - 1 && left > 1) {
      list.descriptors[slot] = sgl_of(sgl_segment_pointer(list, slot / list.per_segment + 1, left));
      continue;
    }
    const std::uint64_t run = translate(map, place + done, iova);
    const std::uint64_t part = run < length - done ? run : length - done;
    list.descriptors[slot] = sgl_descriptor(iova, static_cast<std::uint32_t>(part), kSglDataBlock);
    done += part;
    --left;
  }
  return true;
}

// One table for a whole window, shared by all commands: descriptor i covers granule i, which is in one piece
// on the bus (a GPU's memory comes in 64 KiB pages). A command over whole granules points into the middle of
// it.

TUTTI_HD std::uint64_t sgl_table_bytes(std::uint64_t window_bytes, std::uint32_t granule_shift) noexcept {
  const std::uint64_t granule = std::uint64_t{1} << granule_shift;
  return ((window_bytes + granule - 1) >> granule_shift) * kSglDescriptorBytes;
}

/// @returns false when a granule is not in one piece.
TUTTI_HD bool write_sgl_table(const IovaMap& map, std::uint64_t window_bytes, std::uint32_t granule_shift,
                              SglDescriptor* descriptors) noexcept {
  const std::uint64_t granule = std::uint64_t{1} << granule_shift;
  for (std::uint64_t place = 0; place < window_bytes; place += granule) {
    const std::uint64_t size = window_bytes - place < granule ? window_bytes - place : granule;
    std::uint64_t iova = 0;
    if (!translate_whole(map, place, size, iova)) {
      return false;
    }
    descriptors[place >> granule_shift] =
        sgl_descriptor(iova, static_cast<std::uint32_t>(size), kSglDataBlock);
  }
  return true;
}

}  // namespace tutti::runtime::nvme
