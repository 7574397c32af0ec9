// SPDX-License-Identifier: Apache-2.0
#include "lanes.hpp"

namespace tutti::runtime::nvme {

void set_up_lane(TeamHost& teams, QueuePair& pair, const LaneControl& control, WindowShare share,
                 IssueLane& lane) {
  lane.sq = pair.submission_ring();
  lane.cq = pair.completion_ring();
  lane.ids = pair.command_ids();
  lane.ids.ids = local_array<std::uint16_t>(teams, lane.ids.capacity);
  lane.ids.free_slots = local_array<std::uint16_t>(teams, lane.ids.capacity);
  lane.ids.in_use = local_array<std::uint8_t>(teams, lane.ids.capacity);
  lane.flights = local_array<Flight>(teams, lane.ids.capacity);
  lane.sq_doorbell = pair.sq_doorbell();
  lane.cq_doorbell = pair.cq_doorbell();
  lane.queue_id = pair.id();
  lane.control = &control.error;
  lane.max_commands = share.commands == 0 ? lane.ids.capacity : std::min(share.commands, lane.ids.capacity);
  lane.max_bytes = share.bytes;
}

void renew_lane(const QueuePair& pair, LaneControl& control, IssueLane& lane) noexcept {
  lane.sq_doorbell = pair.sq_doorbell();
  lane.cq_doorbell = pair.cq_doorbell();
  lane.clear = LaneClear::kAgain;
  store_relaxed(&control.error, 0U);
  store_release(&lane.lost, 0U);  // whoever ends items does so after the old queue
}

}  // namespace tutti::runtime::nvme
