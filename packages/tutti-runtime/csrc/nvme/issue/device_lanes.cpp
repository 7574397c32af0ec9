// SPDX-License-Identifier: Apache-2.0
#include "device_lanes.hpp"

#include <exception>
#include <new>

#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/backoff.hpp"

namespace tutti::runtime::nvme {
namespace {

// A team that is told to give up does so within some rounds. One that does not hangs.
constexpr std::chrono::seconds kLongestRest(10);

/// Layers of one item go to all queues in turns.
std::uint32_t turn_of(std::uint64_t ticket) { return static_cast<std::uint32_t>(ticket % 64); }

std::uint64_t to_ns(Duration seconds) { return static_cast<std::uint64_t>(seconds.count() * 1e9); }

}  // namespace

DeviceLanes::DeviceLanes(TeamHost& teams, std::mutex& mutex, const DeviceTables& tables,
                         std::span<Drive* const> drives, std::uint32_t ring_entries,
                         const DeviceSettings& settings)
    : teams_(teams), mutex_(mutex) {
  tail_ = shared_array<std::uint64_t>(teams, 1);
  stop_ = shared_array<std::uint32_t>(teams, 1);
  ring_ = {shared_array<LayerDescriptor>(teams, ring_entries),
           ring_entries,
           tail_,
           stop_,
           to_ns(settings.linger),
           to_ns(settings.stay)};
  std::uint32_t count = 0;
  for (const Drive* drive : drives) {
    count += static_cast<std::uint32_t>(drive->team_queues().size());
  }
  lanes_ = shared_array<IssueLane>(teams, count);
  controls_ = shared_array<LaneControl>(teams, count);
  orphaned_ = std::make_unique<std::atomic<bool>[]>(count);
  for (std::uint32_t i = 0; i < drives.size(); ++i) {
    Side& side = *sides_.emplace_back(std::make_unique<Side>());
    side.first_lane = static_cast<std::uint32_t>(homes_.size());
    side.queues = static_cast<std::uint32_t>(drives[i]->team_queues().size());
    for (std::uint32_t queue = 0; queue < side.queues; ++queue) {
      IssueLane& lane = *new (lanes_ + homes_.size()) IssueLane;
      set_up_lane(teams, *drives[i]->team_queues()[queue], controls_[homes_.size()],
                  {settings.window_commands, settings.window_bytes, side.queues}, lane);
      lane.number = static_cast<std::uint32_t>(homes_.size());
      lane.drive = i;
      lane.index = queue;
      lane.count = side.queues;
      lane.tables = tables.of(i);
      homes_.push_back(i);
    }
    drives[i]->serve_teams(*this, i);
  }
}

std::uint64_t DeviceLanes::show(LayerDescriptor layer) noexcept {
  const std::lock_guard lock(mutex_);
  layer.ticket = shown_ + 1;
  layer.teams_left = teams();
  layer.turn = turn_of(layer.ticket);
  ring_.slots[shown_ % ring_.depth] = layer;
  store_release(tail_, layer.ticket);
  shown_ = layer.ticket;
  try {
    teams_.start(ring_, lanes_, teams(), shown_);
  } catch (const std::exception&) {
    broken_.store(true, std::memory_order_release);  // teams that are there may take it all the same
  }
  return shown_;
}

/// Once it is over, what a lane says counts no more: a team that has not heard of it may still write there.
bool DeviceLanes::may_reach_memory(std::uint32_t lane) const noexcept {
  return (is_broken() || load_acquire(&lanes_[lane].lost) != 0) &&
         !orphaned_[lane].load(std::memory_order_acquire);
}

bool DeviceLanes::is_settled(std::uint32_t drive) const noexcept {
  const Side& side = *sides_[drive];
  if (side.is_away.load(std::memory_order_acquire)) {
    return true;
  }
  for (std::uint32_t lane = side.first_lane; lane < side.first_lane + side.queues; ++lane) {
    if (may_reach_memory(lane)) {
      return false;
    }
  }
  return true;
}

std::uint32_t DeviceLanes::lane_of(std::uint32_t drive, std::uint32_t item,
                                   std::uint64_t ticket) const noexcept {
  const Side& side = *sides_[drive];
  const std::uint32_t turn = turn_of(ticket) % side.queues;
  return side.first_lane + (item % side.queues + side.queues - turn) % side.queues;
}

void DeviceLanes::give_up() noexcept {
  const std::lock_guard lock(mutex_);
  broken_.store(true, std::memory_order_release);
  for (LaneControl* each = controls_; each != controls_ + teams(); ++each) {
    store_release(&each->error, std::uint32_t{kItemNotIssued});
  }
}

void DeviceLanes::stop() noexcept {
  store_release(stop_, 1U);
  const std::lock_guard lock(mutex_);
  try {
    teams_.join();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the device is gone, and its teams with it
  }
}

/// Waits until the lane's team has passed so many layers.
void DeviceLanes::rest(std::uint32_t lane, std::uint64_t layers) noexcept {
  const TimePoint latest = Clock::now() + kLongestRest;
  Backoff backoff;
  while (!is_broken() && load_acquire(&lanes_[lane].layers) < layers) {
    if (Clock::now() >= latest) {
      broken_.store(true, std::memory_order_release);
    }
    backoff.pause();
  }
}

void DeviceLanes::halt(std::uint32_t drive) noexcept {
  Side& side = *sides_[drive];
  std::uint64_t layers = 0;
  {
    // A layer that is shown later is begun by teams that know of this.
    const std::lock_guard lock(mutex_);
    layers = shown_;
    for (std::uint32_t lane = side.first_lane; lane < side.first_lane + side.queues; ++lane) {
      store_release(&controls_[lane].error, std::uint32_t{kItemNotIssued});
    }
  }
  for (std::uint32_t lane = side.first_lane; lane < side.first_lane + side.queues; ++lane) {
    rest(lane, layers);
  }
  side.is_away.store(false, std::memory_order_release);
}

bool DeviceLanes::is_lost(std::uint32_t drive, std::uint32_t queue) const noexcept {
  return may_reach_memory(sides_[drive]->first_lane + queue);
}

void DeviceLanes::renew(std::uint32_t drive, std::uint32_t queue, const QueuePair& pair) noexcept {
  const std::uint32_t lane = sides_[drive]->first_lane + queue;
  // Nothing is shown meanwhile, and a team that has passed all layers does not look at its lane.
  const std::lock_guard lock(mutex_);
  rest(lane, shown_);
  if (is_broken()) {
    orphaned_[lane].store(true, std::memory_order_release);
  } else {
    renew_lane(pair, controls_[lane], lanes_[lane]);
  }
}

void DeviceLanes::stays_away(std::uint32_t drive, bool safe) noexcept {
  sides_[drive]->is_away.store(safe, std::memory_order_release);
}

}  // namespace tutti::runtime::nvme
