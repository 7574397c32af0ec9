// SPDX-License-Identifier: Apache-2.0
// The NVMe data path with several threads on several drives, in peace and under faults: meant for the
// sanitizers.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../check.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/config.hpp"
#include "tutti/runtime/nvme/core/completion.hpp"
#include "tutti/runtime/nvme/soft.hpp"
#include "tutti/runtime/storage_runtime.hpp"

using namespace tutti::runtime;
using nvme::SoftControl;
using nvme::SoftFault;
using nvme::SoftRule;
using nvme::SoftSettings;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kPiece = 12288;
constexpr std::uint64_t kPieces = 20;
constexpr std::uint64_t kArea = 256 * 1024;  // of one thread
constexpr int kThreads = 3;
constexpr int kDrives = 2;

/// Whether teams of threads submit, in a device's place.
bool by_device = false;

SubmitOptions options_of_all() {
  SubmitOptions options;
  options.on_device = by_device;
  return options;
}

struct Rig {
  explicit Rig(const SoftSettings& base, double command_timeout = 5, bool no_switch = false);

  void end(bool violations_allowed = false) {
    for (const auto& control : controls) {
      control->heal();
    }
    CHECK(runtime->shutdown(Duration(60)));
    runtime.reset();
    for (const auto& control : controls) {
      for (const std::string& each : control->violations()) {
        std::fprintf(stderr, "violation: %s\n", each.c_str());
      }
      CHECK(violations_allowed || control->violations().empty());
    }
  }

  std::vector<std::shared_ptr<SoftControl>> controls;
  std::unique_ptr<StorageRuntime> runtime;
};

/// A bus that cannot cut its device off from memory.
class NoSwitch final : public nvme::Transport {
 public:
  explicit NoSwitch(std::unique_ptr<nvme::Transport> next) : next_(std::move(next)) {}
  std::string name() const override { return next_->name(); }
  std::uint32_t read32(std::uint32_t offset) override { return next_->read32(offset); }
  std::uint64_t read64(std::uint32_t offset) override { return next_->read64(offset); }
  void write32(std::uint32_t offset, std::uint32_t value) override { next_->write32(offset, value); }
  void write64(std::uint32_t offset, std::uint64_t value) override { next_->write64(offset, value); }
  std::uint32_t* doorbell(std::uint32_t offset) override { return next_->doorbell(offset); }
  nvme::DmaMemory allocate(std::uint64_t size, MemoryKind kind) override {
    return next_->allocate(size, kind);
  }
  nvme::DmaMapping map(std::byte* address, std::uint64_t size, MemoryKind kind, int device) override {
    return next_->map(address, size, kind, device);
  }
  nvme::TransportCaps caps() const override { return next_->caps(); }

 private:
  std::unique_ptr<nvme::Transport> next_;
};

Rig::Rig(const SoftSettings& base, double command_timeout, bool no_switch) {
  nvme::NvmeConfig config;
  for (int i = 0; i < kDrives; ++i) {
    SoftSettings settings = base;
    settings.name = "disk" + std::to_string(i);
    settings.timeout_ms = 500;
    settings.namespaces.push_back({4 * kMiB, "", 512, 0});
    controls.push_back(std::make_shared<SoftControl>());
    config.controllers.push_back(
        {settings.name,
         [settings, no_switch, control = controls.back()]() -> std::unique_ptr<nvme::Transport> {
           auto soft = nvme::make_soft_transport(settings, control);
           return no_switch ? std::unique_ptr<nvme::Transport>(std::make_unique<NoSwitch>(std::move(soft)))
                            : std::move(soft);
         },
         {}});
  }
  config.queues = 2;
  config.queue_entries = 8;
  config.device_executor = by_device ? nvme::DeviceExecutor::kCpu : nvme::DeviceExecutor::kNone;
  config.command_timeout = command_timeout;
  config.admin_timeout = command_timeout < 0.1 ? 0.5 : 2;  // the tests of drives that stay silent wait for it
  config.retry_after = 0.01;
  runtime = make_nvme_runtime(config);
}

std::vector<IoRequest> requests(Direction direction, std::uint64_t memory, std::uint64_t target) {
  std::vector<IoRequest> batch;
  for (std::uint64_t i = 0; i < kPieces; ++i) {
    const std::uint64_t place = i * 7 % kPieces * kPiece;
    batch.push_back({static_cast<std::uint32_t>(direction), 0, memory, i * kPiece, target, place, kPiece});
  }
  return batch;
}

Completion run(StorageRuntime& runtime, const std::vector<IoRequest>& batch) {
  std::vector<std::int32_t> errors(batch.size());
  const auto handle = runtime.submit(batch, errors, options_of_all());
  CHECK(handle);
  auto done = runtime.wait(*handle, Duration(60));
  CHECK(done && done->status.size() == batch.size());
  return *done;
}

/// Writes, reads and compares; with `may_fail`, what succeeded must still be right.
void work(StorageRuntime& runtime, int number, int rounds, bool may_fail) {
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(65536, kArea));
  std::memset(memory, 0, kArea);
  const std::string uri = "nvme://disk" + std::to_string(number % kDrives) +
                          "/1?offset=" + std::to_string(static_cast<std::uint64_t>(number) * kArea) +
                          "&size=" + std::to_string(kArea);
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t window = runtime.register_memory(reinterpret_cast<std::uint64_t>(memory), kArea);
    const std::uint64_t target = runtime.open(uri, true);
    const auto value = static_cast<std::byte>(number * 64 + round % 64);
    std::memset(memory, static_cast<int>(value), kArea);
    const Completion wrote = run(runtime, requests(Direction::kWrite, window, target));
    std::memset(memory, 0, kArea);
    const Completion read = run(runtime, requests(Direction::kRead, window, target));
    for (std::uint64_t i = 0; i < kPieces; ++i) {
      CHECK(may_fail || (wrote.status[i] == 0 && read.status[i] == 0));
      if (wrote.status[i] != 0 || read.status[i] != 0) {
        continue;
      }
      for (std::uint64_t byte = 0; byte < kPiece; ++byte) {
        CHECK(memory[i * kPiece + byte] == value);
      }
    }
    runtime.close(target);
    runtime.unregister_memory(window);
  }
  std::free(memory);
}

void on_all_threads(Rig& rig, int rounds, bool may_fail) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&rig, i, rounds, may_fail] { work(*rig.runtime, i, rounds, may_fail); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

void bytes_arrive_whatever_the_drive_is_like() {
  SoftSettings scattered;
  scattered.dma_granule = 4096;
  scattered.mdts_bytes = 8192;
  SoftSettings lists;
  lists.dma_granule = 8192;
  lists.sgl = true;
  SoftSettings slow;
  slow.latency = 0.0002;
  for (const SoftSettings& each : {SoftSettings{}, scattered, lists, slow}) {
    Rig rig(each);
    on_all_threads(rig, 12, false);
    rig.end();
  }
}

void faults_cost_only_what_they_hit() {
  constexpr SoftFault faults[] = {SoftFault::kDropCompletion,  SoftFault::kLateCompletion,
                                  SoftFault::kWrongPhase,      SoftFault::kDuplicateCompletion,
                                  SoftFault::kStrayCompletion, SoftFault::kBadHead,
                                  SoftFault::kFatal,           SoftFault::kReset,
                                  SoftFault::kIgnoreDoorbell,  SoftFault::kReorder};
  for (const SoftFault fault : faults) {
    Rig rig(SoftSettings{}, 0.3);
    SoftRule rule;
    rule.fault = fault;
    rule.skip = 30;
    rule.delay = 0.01;
    rule.hold = 1;
    rig.controls[0]->add(rule);
    on_all_threads(rig, 6, true);
    for (const auto& control : rig.controls) {
      control->heal();
    }
    on_all_threads(rig, 2, false);
    // Completions that nobody asked for take places that the driver does not know of.
    rig.end(fault == SoftFault::kDuplicateCompletion || fault == SoftFault::kStrayCompletion);
  }
}

// A command that the controller has not begun is withdrawn; one that it has is late, and its memory stays.
void canceled_and_late_items_end() {
  SoftSettings slow;
  slow.latency = 0.6;
  Rig rig(slow);
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(65536, kArea));
  std::memset(memory, 1, kArea);
  const std::uint64_t window = rig.runtime->register_memory(reinterpret_cast<std::uint64_t>(memory), kArea);
  const std::uint64_t target = rig.runtime->open("nvme://disk0/1", true);
  const std::vector<IoRequest> batch = requests(Direction::kRead, window, target);
  std::vector<std::int32_t> errors(batch.size());
  SubmitOptions options = options_of_all();
  options.deadline = Clock::now() + std::chrono::milliseconds(200);
  const auto handle = rig.runtime->submit(batch, errors, options);
  const auto done = rig.runtime->wait(*handle, Duration(60));
  CHECK(done && done->late_handle);
  for (const std::int32_t status : done->status) {
    CHECK(status == ETIMEDOUT);
  }
  CHECK_THROWS(Busy, rig.runtime->unregister_memory(window));
  const auto late = rig.runtime->wait(*done->late_handle, Duration(60));
  CHECK(late && late->status.size() <= 14);  // two queues of eight entries
  const auto again = rig.runtime->submit(batch, errors, options_of_all());
  rig.runtime->cancel(*again);
  const auto canceled = rig.runtime->wait(*again, Duration(60));
  std::set<std::int32_t> seen(canceled->status.begin(), canceled->status.end());
  seen.erase(0);
  CHECK(seen == std::set<std::int32_t>{ECANCELED});
  rig.runtime->unregister_memory(window);
  rig.end();
  std::free(memory);
}

// What a silent device may still write to stays in use: the item is late, not over.
void memory_stays_while_a_device_may_reach_it(Direction direction, std::uint64_t pieces) {
  Rig rig(SoftSettings{}, 0.05, true);
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(65536, kArea));
  std::memset(memory, 1, kArea);
  const std::uint64_t window = rig.runtime->register_memory(reinterpret_cast<std::uint64_t>(memory), kArea);
  const std::uint64_t target = rig.runtime->open("nvme://disk0/1", true);
  SoftRule rule;
  rule.fault = SoftFault::kStuck;
  rig.controls[0]->add(rule);
  std::vector<IoRequest> batch = requests(direction, window, target);
  batch.resize(pieces);
  std::vector<std::int32_t> errors(batch.size());
  SubmitOptions options = options_of_all();
  options.deadline = Clock::now() + std::chrono::milliseconds(100);
  const auto handle = rig.runtime->submit(batch, errors, options);
  const auto done = rig.runtime->wait(*handle, Duration(60));
  CHECK(done && done->late_handle);
  CHECK(!rig.runtime->wait(*done->late_handle, Duration(1.5)));  // reset was tried and not answered by now
  CHECK_THROWS(Busy, rig.runtime->unregister_memory(window));
  CHECK(!rig.runtime->shutdown(Duration(0.01)));
  rig.controls[0]->heal();
  rig.end();
  std::free(memory);
}

void a_runtime_ends_while_a_drive_is_away() {
  for (const SoftFault fault : {SoftFault::kUnplug, SoftFault::kStuck}) {
    Rig rig(SoftSettings{}, 0.05);
    SoftRule rule;
    rule.fault = fault;
    rig.controls[0]->add(rule);
    on_all_threads(rig, 2, true);
    CHECK(rig.runtime->shutdown(Duration(60)));
    rig.runtime.reset();
  }
}

}  // namespace

int main() {
  for (const bool device : {false, true}) {
    by_device = device;
    bytes_arrive_whatever_the_drive_is_like();
    faults_cost_only_what_they_hit();
    canceled_and_late_items_end();
    memory_stays_while_a_device_may_reach_it(Direction::kRead, kPieces);
    memory_stays_while_a_device_may_reach_it(Direction::kWrite, 1);  // nothing of it is sent again
    a_runtime_ends_while_a_drive_is_away();
  }
}
