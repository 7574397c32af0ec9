// SPDX-License-Identifier: Apache-2.0
// What the host does when teams give up a queue.
#include <algorithm>
#include <cerrno>
#include <string>

#include "engine_drive.hpp"
#include "lanes.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/core/ordered.hpp"
#include "tutti/runtime/nvme/layer_engine.hpp"

namespace tutti::runtime::nvme {
namespace {

constexpr Clock::duration kLookEvery = std::chrono::milliseconds(10);

bool is_lost(const IssueLane& lane) { return load_relaxed(&lane.lost) != 0; }

}  // namespace

/// A controller that failed answers nothing: its teams need not wait for the deadline.
void LayerEngine::watch() {
  const TimePoint now = Clock::now();
  if (now - looked_ < kLookEvery) {
    return;
  }
  looked_ = now;
  if (const int error = teams_->check(); error != 0) {
    throw SystemError(error, "the teams' device has failed");
  }
  for (std::uint32_t i = 0; i < queues_.size(); ++i) {
    const int error = drives_[queues_[i].drive].controller->check_alive();
    if (error != 0) {
      store_relaxed(&controls_[i].error, static_cast<std::uint32_t>(error));
    }
  }
}

bool LayerEngine::any_lost() const { return std::any_of(lanes_, lanes_ + queues_.size(), is_lost); }

void LayerEngine::recover() {
  down_ = false;
  for (std::uint32_t i = 0; i < drives_.size(); ++i) {
    const IssueLane* const first = lanes_ + drives_[i].first_lane;
    if (std::any_of(first, first + drives_[i].queues, is_lost)) {
      recover(i);
    }
  }
}

/// In order of force: new queues, a controller reset, cutting the device off from memory.
void LayerEngine::recover(std::uint32_t number) {
  Drive& drive = drives_[number];
  if (drive.controller->check_alive() == 0 && remake_lost(number)) {
    return;
  }
  try {
    drive.controller->reset();
    ++counters_.resets;
    for (std::uint32_t i = 0; i < drive.queues; ++i) {
      const std::uint32_t lane = drive.first_lane + i;
      queues_[lane].pair->clear();
      drive.controller->create(*queues_[lane].pair);
      renew(lane);
    }
  } catch (const Error& error) {
    cut_off(number, error.what());
  }
}

bool LayerEngine::remake_lost(std::uint32_t number) {
  Drive& drive = drives_[number];
  try {
    for (std::uint32_t i = 0; i < drive.queues; ++i) {
      const std::uint32_t lane = drive.first_lane + i;
      if (lanes_[lane].lost != 0) {
        drive.controller->remake(*queues_[lane].pair);
        ++counters_.remade;
        renew(lane);
      }
    }
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// The controller has new queues for this lane.
void LayerEngine::renew(std::uint32_t number) {
  renew_lane(*queues_[number].pair, controls_[number], lanes_[number]);
}

/// Nothing of it may touch memory once its layer is reported. It is tried again by a later submit.
void LayerEngine::cut_off(std::uint32_t number, const char* why) {
  Drive& drive = drives_[number];
  Transport& transport = drive.controller->transport();
  for (std::uint32_t i = 0; i < drive.queues; ++i) {
    IssueLane& lane = lanes_[drive.first_lane + i];
    lane.lost = lane.lost != 0 ? lane.lost : std::uint32_t{EIO};
  }
  down_ = true;
  retry_at_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(settings_.retry_after);
  // First: without its registers a device may still copy.
  if (!transport.set_bus_master(false) && drive.controller->check_alive() != ENODEV) {
    throw SystemError(EIO, transport.name() + ": it does not come back (" + why +
                               ") and cannot be kept from memory: do not use what its layers read into");
  }
}

}  // namespace tutti::runtime::nvme
