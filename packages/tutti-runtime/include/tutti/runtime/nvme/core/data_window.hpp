// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tutti/runtime/nvme/core/annotate.hpp"
#include "tutti/runtime/nvme/core/data_pointer.hpp"
#include "tutti/runtime/nvme/core/iova_map.hpp"
#include "tutti/runtime/nvme/core/prp.hpp"
#include "tutti/runtime/nvme/core/sgl.hpp"

namespace tutti::runtime::nvme {

/// A registered window as one controller reaches it. No command needs a list of its own: its descriptors are
/// in the command, or in the window's shared table.
struct DataWindow {
  IovaMap map;  ///< places are offsets in the window; runs begin and end on whole granules
  std::uint64_t size = 0;
  std::uint32_t page_shift = 12;     ///< of the controller's memory pages (CC.MPS)
  std::uint64_t prp_table_iova = 0;  ///< 0: there is none, and commands take two pages at most
  std::uint64_t sgl_table_iova = 0;  ///< 0: there is none, and SGL commands take one run
  std::uint32_t sgl_granule_shift = 16;
  bool use_sgl = false;  ///< the controller takes SGLs in I/O commands
};

/// Data block, or a segment of whole granules. @returns bytes that `out` covers.
TUTTI_HD std::uint64_t describe_with_sgl(const DataWindow& window, std::uint64_t offset, std::uint64_t length,
                                         std::uint64_t iova, std::uint64_t in_run,
                                         DataPointer& out) noexcept {
  constexpr std::uint64_t most = std::uint64_t{1} << 31;
  const std::uint64_t granule = std::uint64_t{1} << window.sgl_granule_shift;
  std::uint64_t part = in_run < length ? in_run : length;
  part = part < most ? part : most;
  const std::uint64_t granules = length >> window.sgl_granule_shift;
  if (part == length || window.sgl_table_iova == 0 || (offset & (granule - 1)) != 0 || granules < 2) {
    out = sgl_pointer(iova, static_cast<std::uint32_t>(part), kSglDataBlock);
    return part;
  }
  const std::uint64_t first = offset >> window.sgl_granule_shift;
  out = sgl_pointer(window.sgl_table_iova + first * kSglDescriptorBytes,
                    static_cast<std::uint32_t>(granules * kSglDescriptorBytes), kSglLastSegment);
  return granules << window.sgl_granule_shift;
}

/// Writes the data pointer for as much of a range as one command can take without a list of its own.
/// @returns bytes covered from `offset` on, whole pages unless it is the end of the range; 0 when the offset
/// is not in the window.
TUTTI_HD std::uint64_t describe(const DataWindow& window, std::uint64_t offset, std::uint64_t length,
                                DataPointer& out) noexcept {
  const std::uint64_t page = std::uint64_t{1} << window.page_shift;
  std::uint64_t iova = 0;
  const std::uint64_t in_run = translate(window.map, offset, iova);
  if (in_run == 0 || length == 0) {
    return 0;
  }
  const std::uint64_t first = page - (iova & (page - 1));
  if (length <= first) {
    out = prp_pointer(iova, 0);
    return length;
  }
  if (window.use_sgl && length > first + page) {
    return describe_with_sgl(window, offset, length, iova, in_run, out);
  }
  const std::uint64_t second_page = (offset + first) >> window.page_shift;
  std::uint64_t pages = 1 + ((length - first + page - 1) >> window.page_shift);
  pages = window.prp_table_iova != 0 ? prp_table_pages(second_page - 1, pages, window.page_shift)
                                     : (pages < 2 ? pages : 2);
  if (pages == 2) {
    std::uint64_t next = 0;
    if (translate(window.map, offset + first, next) == 0) {
      return 0;
    }
    out = prp_pointer(iova, next);
  } else {
    out = prp_pointer(
        iova, window.prp_table_iova + prp_table_index(second_page, window.page_shift) * kPrpEntryBytes);
  }
  const std::uint64_t covered = first + ((pages - 1) << window.page_shift);
  return covered < length ? covered : length;
}

}  // namespace tutti::runtime::nvme
