// SPDX-License-Identifier: Apache-2.0
// What the engines of this folder share: memory for teams, and a queue pair as its team sees it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tutti/runtime/nvme/core/layer.hpp"
#include "tutti/runtime/nvme/core/ordered.hpp"
#include "tutti/runtime/nvme/queue_pair.hpp"
#include "tutti/runtime/nvme/team_host.hpp"

namespace tutti::runtime::nvme {

template <typename T>
T* shared_array(TeamHost& teams, std::size_t count) {
  return reinterpret_cast<T*>(teams.shared(std::max<std::size_t>(count, 1) * sizeof(T)));
}

template <typename T>
T* local_array(TeamHost& teams, std::size_t count) {
  return reinterpret_cast<T*>(teams.local(std::max<std::size_t>(count, 1) * sizeof(T)));
}

template <typename T>
void upload(TeamHost& teams, T* to, const T* from, std::size_t count) {
  teams.upload(reinterpret_cast<std::byte*>(to), from, count * sizeof(T));
}

/// What a lane's `control` points to. A line of its own: teams look at it again and again.
struct alignas(128) LaneControl {
  std::uint32_t error = 0;
};

/// A queue's share of its drive's issue window, when `queues` share it.
struct WindowShare {
  std::uint32_t commands;  ///< 0: what the queue takes
  std::uint64_t bytes;

  WindowShare(std::uint32_t window_commands, std::uint64_t window_bytes, std::uint32_t queues)
      : commands(window_commands == 0 ? 0 : std::max(window_commands / queues, 1U)),
        bytes(std::max<std::uint64_t>(window_bytes / queues, 1)) {}
};

/// Writes all of the lane but `drive`, `index`, `count` and `tables`. @throws SystemError without memory
void set_up_lane(TeamHost& teams, QueuePair& pair, const LaneControl& control, WindowShare share,
                 IssueLane& lane);

/// The controller has the pair anew; the lane's team is at rest and takes notice with its next layer.
void renew_lane(const QueuePair& pair, LaneControl& control, IssueLane& lane) noexcept;

}  // namespace tutti::runtime::nvme
