// SPDX-License-Identifier: Apache-2.0
// Physical region pages (NVM Express Base Specification, "Physical Region Page Entry and List"). A list runs
// to the end of its memory page; the last entry of the page is data if it is the last of the command, and the
// address of the next list page otherwise.
#pragma once

#include <cstdint>

#include "tutti/runtime/nvme/core/annotate.hpp"
#include "tutti/runtime/nvme/core/data_pointer.hpp"
#include "tutti/runtime/nvme/core/iova_map.hpp"

namespace tutti::runtime::nvme {

inline constexpr std::uint32_t kPrpEntryBytes = 8;

TUTTI_HD std::uint64_t prp_entries_per_page(std::uint32_t page_shift) noexcept {
  return (std::uint64_t{1} << page_shift) / kPrpEntryBytes;
}

/// Memory for list pages, in one piece and page-aligned on the bus.
struct PrpListMemory {
  std::uint64_t* entries = nullptr;
  std::uint64_t iova = 0;
  std::uint32_t pages = 0;
};

/// Writes the entries of one command, with a list of its own when it needs more than two.
/// @returns false when a page is not in `map`, is off its alignment on the bus, or `list` is too small.
TUTTI_HD bool build_prp(const IovaMap& map, std::uint64_t place, std::uint64_t length,
                        std::uint32_t page_shift, const PrpListMemory& list, DataPointer& out) noexcept {
  const std::uint64_t page = std::uint64_t{1} << page_shift;
  std::uint64_t iova = 0;
  std::uint64_t in_run = translate(map, place, iova);
  if (in_run == 0 || iova % 4 != 0) {
    return false;
  }
  const std::uint64_t first = page - (iova & (page - 1));
  if (length <= first) {
    out = prp_pointer(iova, 0);
    return in_run >= length;
  }
  if (in_run < first) {
    return false;
  }
  const std::uint64_t prp1 = iova;
  const std::uint64_t left = (length - first + page - 1) >> page_shift;
  const std::uint64_t per_page = prp_entries_per_page(page_shift);
  std::uint64_t slot = 0;
  for (std::uint64_t i = 0; i < left; ++i) {
    const std::uint64_t done = first + (i << page_shift);
    const std::uint64_t part = length - done < page ? length - done : page;
    if (!translate_whole(map, place + done, part, iova) || (iova & (page - 1)) != 0) {
      return false;
    }
    if (left == 1) {
      out = prp_pointer(prp1, iova);
      return true;
    }
    if ((slot + 1) % per_page == 0 && i + 1 < left) {
      if ((slot + 1) / per_page >= list.pages) {
        return false;
      }
      list.entries[slot] = list.iova + (slot + 1) * kPrpEntryBytes;
      ++slot;
    }
    if (slot / per_page >= list.pages) {
      return false;
    }
    list.entries[slot++] = iova;
  }
  out = prp_pointer(prp1, list.iova);
  return true;
}

// One list for a whole window, shared by all commands: entry i names page i of the window, and PRP2 points
// into the middle of it. Every list page keeps its last entry for the address of the next one. A command
// whose last page is the first of a list page would have the drive take that address for data:
// prp_table_pages() makes it one page shorter.

TUTTI_HD std::uint64_t prp_table_slots(std::uint32_t page_shift) noexcept {
  return prp_entries_per_page(page_shift) - 1;
}

/// Memory that the list of a window of `pages` pages takes.
TUTTI_HD std::uint64_t prp_table_bytes(std::uint64_t pages, std::uint32_t page_shift) noexcept {
  const std::uint64_t slots = prp_table_slots(page_shift);
  return ((pages + slots - 1) / slots) << page_shift;
}

/// Where the entry of a window's page is, in entries from the beginning of the list.
TUTTI_HD std::uint64_t prp_table_index(std::uint64_t page, std::uint32_t page_shift) noexcept {
  const std::uint64_t slots = prp_table_slots(page_shift);
  return page / slots * prp_entries_per_page(page_shift) + page % slots;
}

/// Of `count` pages from window page `first` on, how many one command may take: all, or one less.
TUTTI_HD std::uint64_t prp_table_pages(std::uint64_t first, std::uint64_t count,
                                       std::uint32_t page_shift) noexcept {
  const bool ends_behind_a_pointer = count > 2 && (first + count - 1) % prp_table_slots(page_shift) == 0;
  return ends_behind_a_pointer ? count - 1 : count;
}

/// Writes the list of a window whose places count from 0 and whose runs lie on whole pages.
/// @returns false when a page is not in `map` or off its alignment.
TUTTI_HD bool write_prp_table(const IovaMap& map, std::uint64_t pages, std::uint32_t page_shift,
                              std::uint64_t* entries, std::uint64_t iova) noexcept {
  const std::uint64_t page_mask = (std::uint64_t{1} << page_shift) - 1;
  const std::uint64_t slots = prp_table_slots(page_shift);
  for (std::uint64_t page = 0; page < pages; ++page) {
    std::uint64_t where = 0;
    if (!translate_whole(map, page << page_shift, page_mask + 1, where) || (where & page_mask) != 0) {
      return false;
    }
    const std::uint64_t index = prp_table_index(page, page_shift);
    entries[index] = where;
    if (page % slots == slots - 1 && page + 1 < pages) {
      entries[index + 1] = iova + (index + 2) * kPrpEntryBytes;
    }
  }
  return true;
}

}  // namespace tutti::runtime::nvme
