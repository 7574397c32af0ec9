// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/runtime/nvme/core/data_window.hpp"
#include "tutti/runtime/nvme/transport.hpp"

namespace tutti::runtime::nvme {

/// Registered memory as one controller reaches it, with the list or table that all its commands share.
class DriveWindow {
 public:
  /// `use_sgl`: the controller takes SGLs; no PRP list is made then.
  /// @throws InvalidArgument where the bus cannot reach the memory; SystemError
  DriveWindow(Transport& transport, const Memory& memory, std::uint64_t page_bytes, bool use_sgl);

  [[nodiscard]] const DataWindow& view() const noexcept { return view_; }
  /// Bytes of the shared list or table.
  [[nodiscard]] std::uint64_t descriptor_bytes() const noexcept { return table_.size(); }

 private:
  void make_prp_table(Transport& transport);
  void make_sgl_table(Transport& transport);

  DmaMapping mapping_;
  std::vector<IovaRun> runs_;
  DmaMemory table_;
  DataWindow view_;
};

}  // namespace tutti::runtime::nvme
