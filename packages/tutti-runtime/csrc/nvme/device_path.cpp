// SPDX-License-Identifier: Apache-2.0
#include "device_path.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "issue/device_engine.hpp"
#include "nvme_target.hpp"
#include "tutti/runtime/error.hpp"

namespace tutti::runtime::nvme {
namespace {

// Commands in a row that only the host got through, after which all goes there.
constexpr std::uint32_t kStrikes = 3;

std::vector<Drive*> drives_of(const NvmePath& path) {
  std::vector<Drive*> drives;
  for (const NamedDrive& each : path.drives()) {
    drives.push_back(each.drive.get());
  }
  return drives;
}

class DevicePath final : public DataPath, private CompletionSink, private DeviceEnds {
 public:
  DevicePath(std::unique_ptr<NvmePath> next, std::unique_ptr<TeamHost> teams, const DeviceSettings& settings,
             std::string what, std::shared_ptr<detail::Notices> notices)
      : next_(std::move(next)),
        what_(std::move(what)),
        notices_(std::move(notices)),
        engine_(std::make_shared<DeviceEngine>(std::move(teams), drives_of(*next_), settings)) {}
  ~DevicePath() override { DevicePath::shutdown(); }

  void start(CompletionSink& sink) override {
    sink_ = &sink;
    engine_->start(*this);
    next_->start(*this);
  }

  std::unique_ptr<Target> open(const TargetUri& uri, bool writable) override {
    std::unique_ptr<Target> opened = next_->open(uri, writable);
    auto& target = static_cast<NvmeTarget&>(*opened);
    try {
      target.lease(target_lease(target));
    } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): the host carries out what it asks for
    }
    return opened;
  }

  void register_memory(Memory& memory) override {
    next_->register_memory(memory);
    std::vector<const DataWindow*> views;
    views.reserve(next_->drives().size());
    for (std::size_t i = 0; i < next_->drives().size(); ++i) {
      views.push_back(&next_->window(memory, i));
    }
    try {
      const std::uint32_t slot = engine_->tables().add_window(views);
      const std::lock_guard lock(mutex_);
      windows_.emplace(&memory, slot);
    } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): the host moves its bytes
    }
  }

  void unregister_memory(const Memory& memory) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      const auto place = windows_.find(&memory);
      if (place != windows_.end()) {
        if (place->second != DeviceTables::kNone) {
          engine_->tables().remove_window(place->second);
        }
        windows_.erase(place);
      }
    }
    next_->unregister_memory(memory);
  }

  void submit(std::span<const IoOp> ops) override {
    std::vector<DeviceOp> device;
    std::vector<IoOp> host;
    if (!given_up_.load(std::memory_order_acquire) && engine_->takes_more()) {
      sort(ops, device, host);
    }
    if (device.empty()) {
      next_->submit(ops);
      return;
    }
    if (!host.empty()) {
      next_->submit(host);
    }
    try {
      engine_->submit(device);
    } catch (const std::bad_alloc&) {  // others may be under way: these fail
      for (const DeviceOp& each : device) {
        end(each.op, ENOMEM);
      }
    }
  }

  void withdraw(const OpFilter& filter, std::int32_t status) noexcept override {
    try {
      for (const IoOp& op : engine_->withdraw(filter)) {
        end(op, status);
      }
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): they run on, as if begun
    }
    next_->withdraw(filter, status);
  }

  void shutdown() noexcept override {
    engine_->stop();
    next_->shutdown();
  }

  DataPathCaps caps() const override {
    DataPathCaps caps = next_->caps();
    const std::lock_guard lock(mutex_);
    if (given_up_.load(std::memory_order_relaxed)) {
      caps.stepped_down = because_;
      caps.features_unused["device_execution"] = because_;
      return caps;
    }
    caps.device_execution = true;
    caps.features_unused.erase("device_execution");
    caps.features_used["device_execution"] =
        what_ + ": " + std::to_string(engine_->teams()) +
        " teams of 32 lanes fill queues of their own; flushes, and what a team gives up, are the CPU's";
    return caps;
  }

  QueueLimits queue_limits() const noexcept override {
    QueueLimits limits = next_->queue_limits();
    std::uint64_t least = std::numeric_limits<std::uint32_t>::max();
    for (const NamedDrive& each : next_->drives()) {
      std::uint64_t room = 0;
      for (const auto& queue : each.drive->team_queues()) {
        room += queue->capacity();
      }
      least = std::min(least, room);
    }
    limits.per_root = std::max(limits.per_root, least);  // what waits in front can still be taken back
    return limits;
  }
  std::uint64_t step_downs() const noexcept override { return given_up_.load() ? 1 : 0; }

 private:
  /// Holds a target's place in the teams' tables.
  std::shared_ptr<const std::uint32_t> target_lease(const NvmeTarget& target) {
    const std::uint32_t drive = target.drive();
    const std::uint32_t slot = engine_->tables().add_place(drive, target.place(), target.nsid());
    if (slot == DeviceTables::kNone) {
      return nullptr;
    }
    return {new std::uint32_t(slot), [engine = engine_, drive](const std::uint32_t* held) {
              engine->tables().remove_place(drive, *held);
              delete held;
            }};
  }

  void sort(std::span<const IoOp> ops, std::vector<DeviceOp>& device, std::vector<IoOp>& host) const {
    const std::lock_guard lock(mutex_);
    for (const IoOp& op : ops) {
      const auto& target = static_cast<const NvmeTarget&>(*op.target);
      const auto window = windows_.find(op.memory);
      if (op.on_device && op.direction != Direction::kFlush && target.leased() != nullptr &&
          window != windows_.end() && window->second != DeviceTables::kNone) {
        device.push_back({op, target.drive(), *target.leased(), window->second});
      } else {
        host.push_back(op);
      }
    }
  }

  void end(IoOp op, std::int32_t status) noexcept {
    op.status = status;
    op.done = 0;
    sink_->complete({&op, 1});
  }

  // What drives say.
  void complete(std::span<const IoOp> ops) noexcept override {
    for (const IoOp& op : ops) {
      if (op.upper_error != 0 && op.status == 0 &&
          strikes_.fetch_add(1, std::memory_order_relaxed) + 1 >= kStrikes) {
        give_up("commands of " + what_ + " stayed away " + std::to_string(kStrikes) +
                " times in a row, at last with " + std::strerror(op.upper_error) +
                ", where the CPU's came back");
      }
    }
    sink_->complete(ops);
  }

  // What the engine says.
  void done(std::span<const IoOp> ops) noexcept override {
    if (std::any_of(ops.begin(), ops.end(), [](const IoOp& op) { return op.status == 0; })) {
      strikes_.store(0, std::memory_order_relaxed);
    }
    sink_->complete(ops);
  }
  void left_over(std::span<const IoOp> ops) noexcept override {
    try {
      next_->submit(ops);
    } catch (const std::bad_alloc&) {
      for (const IoOp& op : ops) {
        end(op, ENOMEM);
      }
    }
  }
  void broke(const std::string& why) noexcept override { give_up(what_ + " failed: " + why); }

  void give_up(std::string because) noexcept {
    const std::lock_guard lock(mutex_);
    if (!given_up_.load(std::memory_order_relaxed)) {
      because_ = std::move(because);
      given_up_.store(true, std::memory_order_release);
      if (notices_ != nullptr) {
        notices_->add("device_given_up", because_ + "; the CPU fills the queues from now on");
      }
    }
  }

  const std::unique_ptr<NvmePath> next_;
  const std::string what_;
  const std::shared_ptr<detail::Notices> notices_;
  CompletionSink* sink_ = nullptr;
  const std::shared_ptr<DeviceEngine> engine_;  ///< held by open targets too
  std::atomic<std::uint32_t> strikes_{0};
  std::atomic<bool> given_up_{false};

  mutable std::mutex mutex_;  ///< guards the rest
  std::unordered_map<const Memory*, std::uint32_t> windows_;
  std::string because_;
};

}  // namespace

std::unique_ptr<DataPath> make_device_path(std::unique_ptr<NvmePath> next, std::unique_ptr<TeamHost> teams,
                                           const DeviceSettings& settings, std::string what,
                                           std::shared_ptr<detail::Notices> notices) {
  return std::make_unique<DevicePath>(std::move(next), std::move(teams), settings, std::move(what),
                                      std::move(notices));
}

}  // namespace tutti::runtime::nvme
