// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "drive.hpp"
#include "tutti/runtime/data_path.hpp"
#include "tutti/runtime/nvme/config.hpp"

namespace tutti::runtime::nvme {

struct NamedDrive {
  std::string name;
  std::unique_ptr<Drive> drive;
  std::vector<BlockDevice> block_devices;
};

/// Operations on namespaces, driven by the CPU: one thread a drive.
[[nodiscard]] std::unique_ptr<DataPath> make_nvme_path(std::vector<NamedDrive> drives, bool use_sgl);

}  // namespace tutti::runtime::nvme
