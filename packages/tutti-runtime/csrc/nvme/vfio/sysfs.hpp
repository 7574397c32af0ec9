// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tutti::runtime::nvme::vfio {

/// Number of the IOMMU group of a device that is ready to be opened: it exists, is behind an IOMMU, and is
/// bound to vfio-pci. @param bdf "0000:01:00.0"
/// @throws InvalidArgument for a malformed address; SystemError(ENODEV, ENOENT, EBUSY) with what to do
[[nodiscard]] std::string group_of(const std::string& root, const std::string& bdf);

}  // namespace tutti::runtime::nvme::vfio
