// SPDX-License-Identifier: Apache-2.0
// A device that fails while its teams have work: the CPU does what is left, and a team that comes late
// reaches no queue any more.
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../check.hpp"
#include "nvme/device_path.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/soft.hpp"
#include "tutti/runtime/storage_runtime.hpp"

using namespace tutti::runtime;
using nvme::IssueLane;
using nvme::LayerRing;
using nvme::SoftControl;
using nvme::SoftFault;
using nvme::SoftRule;
using nvme::SoftSettings;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kItems = 24;
constexpr std::uint32_t kTeams = 2;

/// What a test does to the device.
struct Switch {
  std::atomic<int> error{0};            ///< what check() says
  std::atomic<bool> refuses{false};     ///< start() throws, after it has started the teams
  std::atomic<bool> holds_back{false};  ///< start() is carried out by release()
};

class FailingTeams final : public nvme::TeamHost {
 public:
  explicit FailingTeams(Switch& what) : what_(what), next_(nvme::make_cpu_teams()) {}

  MemoryKind queue_memory() const noexcept override { return next_->queue_memory(); }
  std::byte* shared(std::uint64_t size) override { return next_->shared(size); }
  std::byte* local(std::uint64_t size) override { return next_->local(size); }
  void upload(std::byte* local, const void* from, std::uint64_t size) override {
    next_->upload(local, from, size);
  }
  void download(void* to, const std::byte* local, std::uint64_t size) override {
    next_->download(to, local, size);
  }
  void start(const LayerRing& ring, IssueLane* lanes, std::uint32_t count, std::uint64_t until) override {
    if (what_.holds_back) {
      held_ = {&ring, lanes, count, until};
      return;
    }
    next_->start(ring, lanes, count, until);
    if (what_.refuses) {
      throw SystemError(EAGAIN, "a test's device does not start");
    }
  }
  void start_answering(const nvme::AnswerLane*, std::uint32_t, const std::uint32_t*) override {}
  void join() override { next_->join(); }
  int check() noexcept override { return what_.error; }

  void release() { next_->start(*held_.ring, held_.lanes, held_.count, held_.until); }

 private:
  struct Held {
    const LayerRing* ring = nullptr;
    IssueLane* lanes = nullptr;
    std::uint32_t count = 0;
    std::uint64_t until = 0;
  };
  Switch& what_;
  const std::unique_ptr<nvme::TeamHost> next_;
  Held held_;
};

struct Rig {
  Rig() {
    SoftSettings soft;
    soft.name = "disk0";
    soft.timeout_ms = 500;
    soft.namespaces.push_back({4 * kMiB, "", 512, 0});
    nvme::DriveSettings settings;
    settings.queue_entries = 64;
    settings.command_timeout = Duration(60);
    settings.team_queues = kTeams;
    std::vector<nvme::NamedDrive> drives;
    drives.push_back(
        {"disk0",
         std::make_unique<nvme::Drive>(nvme::make_soft_transport(soft, control), settings, nullptr),
         {}});
    auto host = std::make_unique<FailingTeams>(what);
    teams = host.get();
    nvme::DeviceSettings device;
    device.command_timeout = settings.command_timeout;
    runtime = std::make_unique<StorageRuntime>(
        nvme::make_device_path(std::make_unique<nvme::NvmePath>(std::move(drives), true, ""), std::move(host),
                               device, "a test's device", nullptr),
        StorageRuntime::Options{});
    memory = static_cast<std::byte*>(std::aligned_alloc(65536, kMiB));
    std::memset(memory, 0, kMiB);
    window = runtime->register_memory(reinterpret_cast<std::uint64_t>(memory), kMiB);
    target = runtime->open("nvme://disk0/1", true);
  }
  ~Rig() { std::free(memory); }

  std::uint64_t submit(Direction direction) {
    std::vector<IoRequest> batch;
    batch.reserve(kItems);
    for (std::uint64_t i = 0; i < kItems; ++i) {
      batch.push_back(
          {static_cast<std::uint32_t>(direction), 0, window, i * kPage, target, i * kPage, kPage});
    }
    std::vector<std::int32_t> errors(batch.size());
    SubmitOptions options;
    options.on_device = true;
    const auto handle = runtime->submit(batch, errors, options);
    CHECK(handle);
    return *handle;
  }
  void require_success(std::uint64_t handle) {
    const auto done = runtime->wait(handle, Duration(60));
    CHECK(done);
    for (const std::int32_t status : done->status) {
      CHECK(status == 0);
    }
  }
  void require_bytes(int value) const {
    for (std::uint64_t i = 0; i < kItems * kPage; ++i) {
      CHECK(memory[i] == static_cast<std::byte>(value));
    }
  }
  /// All of the teams' queues are gone, and none was made instead.
  void require_given_up() {
    CHECK(!runtime->caps().path.device_execution);
    CHECK(control->counters().queues_made == 1 + kTeams);
    CHECK(control->counters().queues_deleted == kTeams);
  }
  void end() {
    CHECK(runtime->shutdown(Duration(60)));
    runtime.reset();
    for (const std::string& each : control->violations()) {
      std::fprintf(stderr, "violation: %s\n", each.c_str());
    }
    CHECK(control->violations().empty());
  }

  Switch what;
  std::shared_ptr<SoftControl> control = std::make_shared<SoftControl>();
  FailingTeams* teams = nullptr;
  std::unique_ptr<StorageRuntime> runtime;
  std::byte* memory = nullptr;
  std::uint64_t window = 0;
  std::uint64_t target = 0;
};

void what_a_failed_device_had_under_way_is_read_by_the_cpu() {
  Rig rig;
  std::memset(rig.memory, 7, kMiB);
  rig.require_success(rig.submit(Direction::kWrite));
  std::memset(rig.memory, 0, kMiB);
  SoftRule lost;
  lost.fault = SoftFault::kDropCompletion;
  rig.control->add(lost);
  const std::uint64_t handle = rig.submit(Direction::kRead);
  CHECK(rig.control->wait_faults(1, Duration(60)));
  rig.what.error = EIO;
  rig.require_success(handle);
  rig.require_bytes(7);
  rig.require_given_up();
  std::memset(rig.memory, 0, kMiB);
  rig.require_success(rig.submit(Direction::kRead));
  rig.require_bytes(7);
  rig.end();
}

void teams_that_start_though_the_start_failed_do_no_harm() {
  Rig rig;
  std::memset(rig.memory, 9, kMiB);
  rig.what.refuses = true;
  rig.require_success(rig.submit(Direction::kWrite));
  std::memset(rig.memory, 0, kMiB);
  rig.require_success(rig.submit(Direction::kRead));
  rig.require_bytes(9);
  CHECK(!rig.runtime->caps().path.device_execution);
  rig.end();
}

void a_team_that_comes_late_does_nothing() {
  Rig rig;
  std::memset(rig.memory, 5, kMiB);
  rig.what.holds_back = true;
  const std::uint64_t handle = rig.submit(Direction::kWrite);
  rig.what.error = EIO;
  rig.require_success(handle);
  const std::uint64_t before = rig.control->counters().commands;
  rig.teams->release();
  rig.teams->join();
  CHECK(rig.control->counters().commands == before);
  CHECK(!rig.runtime->caps().path.device_execution);
  rig.end();
}

}  // namespace

int main() {
  what_a_failed_device_had_under_way_is_read_by_the_cpu();
  teams_that_start_though_the_start_failed_do_no_harm();
  a_team_that_comes_late_does_nothing();
  return 0;
}
