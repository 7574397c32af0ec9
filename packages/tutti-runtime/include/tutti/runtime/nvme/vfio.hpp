// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "tutti/runtime/nvme/transport.hpp"

namespace tutti::runtime::nvme {

/// A controller that the kernel has given to this process: bound to vfio-pci, behind an IOMMU.
struct VfioOptions {
  std::string bdf;         ///< "0000:01:00.0"
  std::string root = "/";  ///< where /sys and /dev are; another one for tests
};

/// Resets the device, lets it master the bus and maps its registers. What is mapped for it stays pinned
/// (RLIMIT_MEMLOCK). Without it the device is reset and given back to the kernel's vfio-pci.
/// @throws InvalidArgument for a malformed address; SystemError naming what is missing and how to mend it
[[nodiscard]] std::unique_ptr<Transport> open_vfio(const VfioOptions& options);

}  // namespace tutti::runtime::nvme
