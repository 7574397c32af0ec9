// SPDX-License-Identifier: Apache-2.0
// How long a team stays: for what its start was made for, a little longer for more, and never for ever.
#include <array>
#include <cstdint>
#include <vector>

#include "../check.hpp"
#include "tutti/runtime/nvme/core/issue.hpp"

using namespace tutti::runtime::nvme;

namespace {

constexpr std::uint32_t kLayers = 3;
constexpr std::uint64_t kEver = UINT64_MAX;

/// Time that passes only when somebody pauses.
struct Host {
  std::uint64_t now = 0;
  std::uint32_t pauses = 0;

  [[nodiscard]] std::uint64_t now_ns() const { return now; }
  void pause(std::uint32_t) {
    ++pauses;
    ++now;
  }
};

/// One lane without a queue, and layers without items.
struct Desk {
  Desk(std::uint64_t linger_ns, std::uint64_t stay_ns) {
    std::uint64_t ticket = 0;
    for (LayerDescriptor& each : slots) {
      each.ranges = &range;
      each.done = &done;
      each.ticket = ++ticket;
      each.teams_left = 1;
    }
    ring = {slots.data(), kLayers, &tail, &stop, linger_ns, stay_ns};
    lane.control = &control;
    lane.clear = LaneClear::kKeep;
  }

  void run(std::uint64_t until) {
    LoopTeam<LaneState, Host> team(host);
    serve(team, ring, &lane, until);
  }

  Host host;
  LayerRange range;
  std::array<LayerDescriptor, kLayers> slots{};
  std::uint64_t done = 0;
  std::uint64_t tail = kLayers;
  std::uint32_t stop = 0;
  std::uint32_t control = 0;
  LayerRing ring;
  IssueLane lane;
};

void a_team_without_time_serves_its_own_start_and_leaves() {
  Desk desk(kEver, 0);
  desk.run(1);
  CHECK(desk.lane.layers == 1 && desk.done == 1);
  desk.run(1);  // a start whose layers an earlier one has served
  CHECK(desk.lane.layers == 1 && desk.host.pauses == 0);
  desk.run(3);
  CHECK(desk.lane.layers == 3 && desk.done == 3);
}

void a_team_with_time_takes_what_there_is() {
  Desk desk(0, kEver);
  desk.run(1);
  CHECK(desk.lane.layers == kLayers && desk.done == kLayers && desk.host.pauses == 0);
}

void a_team_without_work_leaves_by_itself() {
  Desk desk(1000, kEver);
  desk.run(1);
  CHECK(desk.lane.layers == kLayers && desk.host.now == 1000);
  Desk short_stay(kEver, 500);
  short_stay.run(1);
  CHECK(short_stay.host.now == 500);
}

void a_team_that_is_told_to_leaves_at_once() {
  Desk desk(kEver, kEver);
  desk.stop = 1;
  desk.run(1);
  CHECK(desk.lane.layers == kLayers && desk.host.pauses == 0);
}

}  // namespace

int main() {
  a_team_without_time_serves_its_own_start_and_leaves();
  a_team_with_time_takes_what_there_is();
  a_team_without_work_leaves_by_itself();
  a_team_that_is_told_to_leaves_at_once();
  return 0;
}
