// SPDX-License-Identifier: Apache-2.0
#include "drive_window.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "tutti/runtime/error.hpp"

namespace tutti::runtime::nvme {
namespace {

/// The transport's runs as places in the window; those that meet on the bus become one.
std::vector<IovaRun> merge(const std::vector<DmaRun>& mapped) {
  std::vector<IovaRun> runs;
  std::uint64_t begin = 0;
  for (const DmaRun& run : mapped) {
    if (!runs.empty() && runs.back().iova + runs.back().size == run.iova) {
      runs.back().size += run.size;
    } else {
      runs.push_back({begin, run.size, run.iova});
    }
    begin += run.size;
  }
  return runs;
}

/// The largest power of two that every run begins at: between two multiples of it, memory is in one piece.
std::uint32_t granule_shift(const std::vector<IovaRun>& runs) {
  constexpr int most = 30;  // a descriptor's length has 32 bits
  std::uint64_t begins = 0;
  for (const IovaRun& run : runs) {
    begins |= run.begin;
  }
  return static_cast<std::uint32_t>(std::min(begins == 0 ? most : std::countr_zero(begins), most));
}

}  // namespace

DriveWindow::DriveWindow(Transport& transport, const Memory& memory, std::uint64_t page_bytes, bool use_sgl)
    : mapping_(transport.map(memory.address, memory.size, memory.kind, memory.device)),
      runs_(merge(mapping_.runs())) {
  view_.map = {runs_.data(), static_cast<std::uint32_t>(runs_.size())};
  view_.size = memory.size;
  view_.page_shift = static_cast<std::uint32_t>(std::countr_zero(page_bytes));
  view_.use_sgl = use_sgl;
  for (const IovaRun& run : runs_) {
    const bool last = run.begin + run.size == memory.size;
    if (run.iova % page_bytes != 0 || (run.size % page_bytes != 0 && !last)) {
      throw InvalidArgument(transport.name() + ": memory lies off the controller's pages of " +
                            std::to_string(page_bytes) + " bytes on the bus");
    }
  }
  if (use_sgl) {
    make_sgl_table(transport);
  } else {
    make_prp_table(transport);
  }
}

void DriveWindow::make_prp_table(Transport& transport) {
  const std::uint64_t page = std::uint64_t{1} << view_.page_shift;
  const std::uint64_t pages = view_.size / page;
  if (pages <= 2) {
    return;  // both fit into a command
  }
  table_ = transport.allocate(prp_table_bytes(pages, view_.page_shift), MemoryKind::kHost);
  auto* const entries = reinterpret_cast<std::uint64_t*>(table_.address());
  if (!write_prp_table(view_.map, pages, view_.page_shift, entries, table_.iova())) {
    throw InvalidArgument(transport.name() + ": part of the memory is not on the bus");
  }
  view_.prp_table_iova = table_.iova();
}

void DriveWindow::make_sgl_table(Transport& transport) {
  if (runs_.size() < 2) {
    return;  // one data block describes any slice
  }
  view_.sgl_granule_shift = granule_shift(runs_);
  table_ = transport.allocate(sgl_table_bytes(view_.size, view_.sgl_granule_shift), MemoryKind::kHost);
  auto* const descriptors = reinterpret_cast<SglDescriptor*>(table_.address());
  if (!write_sgl_table(view_.map, view_.size, view_.sgl_granule_shift, descriptors)) {
    throw InvalidArgument(transport.name() + ": part of the memory is not on the bus");
  }
  view_.sgl_table_iova = table_.iova();
}

}  // namespace tutti::runtime::nvme
