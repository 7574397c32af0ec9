// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "../drive_window.hpp"
#include "tutti/runtime/nvme/layer_engine.hpp"

namespace tutti::runtime::nvme {

/// A controller with the tables that its teams read.
struct LayerEngine::Drive {
  std::unique_ptr<Controller> controller;
  std::uint32_t queues = 0;
  std::uint32_t first_lane = 0;
  ShardPlace* places = nullptr;
  std::uint32_t* nsids = nullptr;
  DataWindow* windows = nullptr;
  std::vector<std::uint32_t> place_shifts;
  std::vector<std::unique_ptr<DriveWindow>> kept;
};

}  // namespace tutti::runtime::nvme
