// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>

#include "nvme_path.hpp"
#include "nvme_target.hpp"

namespace tutti::runtime::nvme {

/// Opens nvme:// and file:// targets on drives.
/// @throws InvalidUri, SystemError; ExtentRefused for a file whose blocks are not proven.
[[nodiscard]] std::unique_ptr<NvmeTarget> open_target(std::span<const NamedDrive> drives,
                                                      const TargetUri& uri, bool writable);

}  // namespace tutti::runtime::nvme
