// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "../drive.hpp"
#include "device_tables.hpp"
#include "lanes.hpp"

namespace tutti::runtime::nvme {

struct DeviceSettings {
  std::uint32_t window_commands = 0;  ///< of teams on one drive; 0: what the queues take
  std::uint64_t window_bytes = std::uint64_t{32} << 20;
  Duration command_timeout{5.0};
  Duration linger{0.002};  ///< see LayerEngineSettings
  Duration stay{0.05};
};

/// Teams on queues of drives that have threads of their own, and the ring of layers between them and one
/// submitter. The drives own the controllers: what must be made anew they make, and tell.
class DeviceLanes final : public TeamLanes {
 public:
  /// `mutex` guards `teams`. Makes itself known to the drives, which must not have started.
  /// @throws SystemError
  DeviceLanes(TeamHost& teams, std::mutex& mutex, const DeviceTables& tables, std::span<Drive* const> drives,
              std::uint32_t ring_entries, const DeviceSettings& settings);

  /// For one thread. Gives the layer the next ticket and the next slot, whose layer before must be done.
  /// @returns the ticket. Where teams do not start, is_broken() is true afterwards.
  std::uint64_t show(LayerDescriptor layer) noexcept;
  /// Whether nothing that was given up on the drive can reach memory any more.
  [[nodiscard]] bool is_settled(std::uint32_t drive) const noexcept;
  /// The lane that has item number `item` of a layer's part of a drive.
  [[nodiscard]] std::uint32_t lane_of(std::uint32_t drive, std::uint32_t item,
                                      std::uint64_t ticket) const noexcept;
  [[nodiscard]] std::uint32_t teams() const noexcept { return static_cast<std::uint32_t>(homes_.size()); }

  /// The teams' device is of no use any more: the drives are to delete all queues.
  void give_up() noexcept;
  /// Whether give_up() was called, or a team did not come to rest.
  [[nodiscard]] bool is_broken() const noexcept { return broken_.load(std::memory_order_acquire); }
  /// Lets teams leave and waits for them.
  void stop() noexcept;

  void halt(std::uint32_t drive) noexcept override;
  [[nodiscard]] bool is_lost(std::uint32_t drive, std::uint32_t queue) const noexcept override;
  [[nodiscard]] bool is_over() const noexcept override { return is_broken(); }
  void renew(std::uint32_t drive, std::uint32_t queue, const QueuePair& pair) noexcept override;
  void stays_away(std::uint32_t drive, bool safe) noexcept override;

 private:
  struct Side {
    std::uint32_t first_lane = 0;
    std::uint32_t queues = 0;
    std::atomic<bool> is_away{false};  ///< cannot reach memory
  };
  void rest(std::uint32_t lane, std::uint64_t layers) noexcept;
  /// Whether commands of the lane may be under way that its team does not wait for.
  [[nodiscard]] bool may_reach_memory(std::uint32_t lane) const noexcept;

  TeamHost& teams_;
  std::mutex& mutex_;
  std::vector<std::unique_ptr<Side>> sides_;
  std::vector<std::uint32_t> homes_;  ///< drive of each lane
  IssueLane* lanes_ = nullptr;
  LaneControl* controls_ = nullptr;
  /// Of a lane whose team is of no use: the controller has its queue no more.
  std::unique_ptr<std::atomic<bool>[]> orphaned_;
  std::uint64_t* tail_ = nullptr;
  std::uint32_t* stop_ = nullptr;
  LayerRing ring_;
  std::uint64_t shown_ = 0;  ///< guarded by mutex_
  std::atomic<bool> broken_{false};
};

}  // namespace tutti::runtime::nvme
