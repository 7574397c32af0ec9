// SPDX-License-Identifier: Apache-2.0
// The drive's side of a queue pair that says success to everything and moves nothing: to measure what teams
// can submit when no drive holds them up.
#pragma once

#include <cstdint>

#include "tutti/runtime/nvme/core/annotate.hpp"
#include "tutti/runtime/nvme/core/command.hpp"
#include "tutti/runtime/nvme/core/completion.hpp"
#include "tutti/runtime/nvme/core/ordered.hpp"
#include "tutti/runtime/nvme/core/ring.hpp"
#include "tutti/runtime/nvme/core/team.hpp"

namespace tutti::runtime::nvme {

struct AnswerLane {
  const Command* commands = nullptr;
  Completion* completions = nullptr;
  const std::uint32_t* sq_doorbell = nullptr;
  const std::uint32_t* cq_doorbell = nullptr;
  std::uint32_t depth = 0;  ///< of both queues
  std::uint16_t queue_id = 0;
};

/// Until `stop` is not 0. The queues are new when it begins.
template <typename Team>
TUTTI_HD void answer(Team& team, const AnswerLane& lane, const std::uint32_t* stop) {
  std::uint32_t head = 0;
  std::uint32_t place = 0;
  bool phase = true;
  std::uint32_t idle = 0;
  while (team.lead([&] { return std::uint64_t{load_acquire(stop)}; }) == 0) {
    const auto tail =
        static_cast<std::uint32_t>(team.lead([&] { return std::uint64_t{load_acquire(lane.sq_doorbell)}; }));
    const auto taken =
        static_cast<std::uint32_t>(team.lead([&] { return std::uint64_t{load_acquire(lane.cq_doorbell)}; }));
    const std::uint32_t wanted = ring_used(head, tail, lane.depth);
    const std::uint32_t room = ring_space(taken, place, lane.depth);
    std::uint32_t count = wanted < room ? wanted : room;
    count = count < kTeamLanes ? count : kTeamLanes;
    if (count == 0) {
      team.pause(idle++);
      continue;
    }
    idle = 0;
    const std::uint32_t told = (head + count) % lane.depth;
    team.each([&](std::uint32_t i, auto&) {
      if (i >= count) {
        return;
      }
      const std::uint16_t cid = lane.commands[(head + i) % lane.depth].cid;
      const bool wraps = place + i >= lane.depth;
      Completion& entry = lane.completions[(place + i) % lane.depth];
      entry.dw0 = 0;
      entry.dw1 = 0;
      entry.dw2 = told | (std::uint32_t{lane.queue_id} << 16);
      store_release(&entry.dw3, cid | (phase != wraps ? 1U << 16 : 0U));
    });
    head = told;
    phase = phase != (place + count >= lane.depth);
    place = (place + count) % lane.depth;
  }
}

}  // namespace tutti::runtime::nvme
