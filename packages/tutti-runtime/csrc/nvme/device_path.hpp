// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "issue/device_lanes.hpp"
#include "nvme_path.hpp"
#include "tutti/runtime/detail/notices.hpp"
#include "tutti/runtime/nvme/team_host.hpp"

namespace tutti::runtime::nvme {

/// Lets teams carry out the operations that ask for it, on queues of the same drives; all others, flushes,
/// and what the teams could not do go to `next`, whose drives have team queues. `what`: where the teams run.
[[nodiscard]] std::unique_ptr<DataPath> make_device_path(std::unique_ptr<NvmePath> next,
                                                         std::unique_ptr<TeamHost> teams,
                                                         const DeviceSettings& settings, std::string what,
                                                         std::shared_ptr<detail::Notices> notices);

}  // namespace tutti::runtime::nvme
