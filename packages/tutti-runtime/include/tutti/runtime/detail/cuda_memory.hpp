// SPDX-License-Identifier: Apache-2.0
// Memory as CUDA sees it: pinned host ranges, device ranges, and the NUMA node beside a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tutti/runtime/shim/cuda.hpp"

namespace tutti::runtime::detail {

/// Pins a range of host memory for every CUDA device while it lives, so that copies from and to it run
/// asynchronously and streams can wait on words in it. Memory that CUDA has pinned already is left as it is.
class HostPin {
 public:
  /// @throws InvalidArgument for a device that is not there; SystemError, ENOMEM when the system has no more
  /// memory to lock, EEXIST when CUDA has pinned a part of the range.
  HostPin(std::byte* address, std::uint64_t size, int device);
  ~HostPin();
  HostPin(const HostPin&) = delete;
  HostPin& operator=(const HostPin&) = delete;

 private:
  shim::PrimaryContext context_;
  std::byte* address_;
  bool ours_ = false;
};

/// @returns the device that owns the range. @throws InvalidArgument unless both of its ends are memory of one
/// device, which is `device` when that is not kAnyDevice; SystemError without CUDA.
int require_device_memory(std::uint64_t address, std::uint64_t size, int device);

/// The address under which kernels on `device` see pinned host memory. @throws SystemError
[[nodiscard]] std::uint64_t device_pointer(std::byte* address, int device);

/// "0000:3b:00.0". @throws InvalidArgument, SystemError
[[nodiscard]] std::string pci_bus_id(int device);

/// Number of the NUMA node that the system names for a PCI device; -1 where it names none.
[[nodiscard]] int numa_node(const std::string& pci_bus_id);

/// Makes pages of the range that do not exist yet come from `node` while it has any free. @throws SystemError
void prefer_node(std::byte* address, std::uint64_t size, int node);

}  // namespace tutti::runtime::detail
