// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::runtime::nvme {

/// Registers of a device, mapped. Where the device is taken away, or its memory space is switched off, an
/// access is a SIGBUS. Then this mapping becomes memory of which every bit is 1, for good: that is what a bus
/// answers for a device that is gone, and drivers know it. Stores reach that memory alone, and are read back.
///
/// The first of these in a process installs a handler of SIGBUS, which stays. It sees to faults inside of
/// such mappings and gives every other one to the action that it found, as that asked for it (sa_mask,
/// SA_NODEFER, SA_RESETHAND). A handler that is installed later has to do the same with this one; those that
/// end the process (Python's faulthandler, enabled later) end it here too. So does the kernel where a thread
/// that blocks SIGBUS has the access.
class MappedRegisters {
 public:
  /// `offset` and `size` in bytes, of a file or device. @throws SystemError, ENOSPC for more than 256 at a
  /// time.
  MappedRegisters(int fd, std::uint64_t offset, std::uint64_t size);
  ~MappedRegisters();
  MappedRegisters(const MappedRegisters&) = delete;
  MappedRegisters& operator=(const MappedRegisters&) = delete;

  [[nodiscard]] std::byte* address() const noexcept { return address_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  /// Whether an access has found the device gone.
  [[nodiscard]] bool is_gone() const noexcept;

 private:
  std::byte* address_ = nullptr;
  std::uint64_t size_ = 0;
  std::byte* spare_ = nullptr;  ///< all ones, of the same size, until it takes the place
  std::size_t entry_ = 0;       ///< in the table that the handler reads
};

}  // namespace tutti::runtime::nvme
