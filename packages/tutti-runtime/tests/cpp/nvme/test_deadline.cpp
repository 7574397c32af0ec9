// SPDX-License-Identifier: Apache-2.0
// A team that did not run for longer than a command's deadline: what was answered meanwhile is not late.
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "layer_rig.hpp"
#include "nvme/drive_window.hpp"
#include "nvme/issue/lanes.hpp"
#include "tutti/runtime/nvme/core/issue.hpp"

namespace {

using namespace layer_rig;

constexpr std::uint64_t kTimeout = 5'000'000'000;

/// The drive works only while somebody asks for the time, and that takes longer than the deadline.
struct Host {
  SoftTransport& drive;
  bool answers;
  std::uint64_t now = 0;

  [[nodiscard]] std::uint64_t now_ns() {
    while (answers && drive.step()) {
    }
    return now += 2 * kTimeout;
  }
  void pause(std::uint32_t) {}
};

/// The status of a read of one page.
std::int32_t read_a_page(bool answers) {
  auto transport = make_soft_transport(one_namespace(), std::make_shared<SoftControl>());
  SoftTransport& drive = *transport;
  Controller controller(std::move(transport), options_for({}));
  const auto pair = controller.make_queue_pair(16, MemoryKind::kHost);
  const DmaMemory bytes = drive.allocate(kPage, MemoryKind::kHost);
  Memory memory;
  memory.address = bytes.address();
  memory.size = kPage;
  const DriveWindow window(drive, memory, controller.page_bytes(), false);
  drive.drive_by_hand();

  const auto teams = make_cpu_teams();
  const LaneControl control;
  IssueLane lane;
  set_up_lane(*teams, *pair, control, {0, kMiB, 1}, lane);
  const BlockExtent all{0, 0, 16};
  ShardPlace place;
  place.extents = {&all, 1};
  place.max_bytes = kPage;
  const std::uint32_t nsid = 1;
  const DataWindow view = window.view();
  lane.tables = {&place, &nsid, &view};

  const LayerItem item{0, 0, kPage, 0, 0, 0};
  const LayerRange range{0, 1};
  ItemProgress progress;
  std::int32_t status = -1;
  std::uint64_t done = 0;
  LayerDescriptor layer;
  layer.items = &item;
  layer.ranges = &range;
  layer.progress = &progress;
  layer.status = &status;
  layer.done = &done;
  layer.ticket = 1;
  layer.teams_left = 1;
  layer.timeout_ns = kTimeout;
  const std::uint64_t tail = 1;
  const std::uint32_t stop = 0;
  Host host{drive, answers};
  LoopTeam<LaneState, Host> team(host);
  serve(team, LayerRing{&layer, 1, &tail, &stop, 0, 0}, &lane, 1);
  CHECK(done == 1);
  std::atomic<bool> over{false};
  std::thread stepping([&] {
    while (!over) {
      drive.step();
    }
  });
  controller.shutdown();
  over = true;
  stepping.join();
  return status;
}

}  // namespace

int main() {
  CHECK(read_a_page(true) == 0);
  CHECK(read_a_page(false) == kItemTimedOut);
  return 0;
}
