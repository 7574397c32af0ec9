// SPDX-License-Identifier: Apache-2.0
#include "nvme_path.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "nvme_target.hpp"
#include "open_target.hpp"

namespace tutti::runtime::nvme {

NvmePath::NvmePath(std::vector<NamedDrive> drives, bool use_sgl, std::string no_device)
    : drives_(std::move(drives)), use_sgl_(use_sgl), no_device_(std::move(no_device)) {}

NvmePath::~NvmePath() { NvmePath::shutdown(); }

const DataWindow& NvmePath::window(const Memory& memory, std::size_t drive) const {
  const std::shared_lock lock(mutex_);
  return windows_.at(&memory)[drive]->view();
}

void NvmePath::start(CompletionSink& sink) {
  for (const NamedDrive& each : drives_) {
    each.drive->start(sink);
  }
}

std::unique_ptr<Target> NvmePath::open(const TargetUri& uri, bool writable) {
  return open_target(drives_, uri, writable);
}

void NvmePath::register_memory(Memory& memory) {
  std::vector<std::unique_ptr<DriveWindow>> windows;
  for (const NamedDrive& each : drives_) {
    const DriveFacts& facts = each.drive->facts();
    windows.push_back(std::make_unique<DriveWindow>(each.drive->transport(), memory, facts.page_bytes,
                                                    use_sgl_ && facts.identity.takes_sgl()));
  }
  const std::unique_lock lock(mutex_);
  windows_.emplace(&memory, std::move(windows));
}

void NvmePath::unregister_memory(const Memory& memory) noexcept {
  std::vector<std::unique_ptr<DriveWindow>> windows;
  const std::unique_lock lock(mutex_);
  const auto place = windows_.find(&memory);
  if (place != windows_.end()) {
    windows = std::move(place->second);
    windows_.erase(place);
  }
}

void NvmePath::submit(std::span<const IoOp> ops) {
  std::vector<std::vector<DriveOp>> sorted(drives_.size());
  {
    const std::shared_lock lock(mutex_);
    const Memory* last = nullptr;
    const std::vector<std::unique_ptr<DriveWindow>>* windows = nullptr;
    for (const IoOp& op : ops) {
      const auto* const target = static_cast<const NvmeTarget*>(op.target);
      if (op.memory != nullptr && op.memory != last) {
        last = op.memory;
        windows = &windows_.at(op.memory);
      }
      const DataWindow* const window = op.memory != nullptr ? &(*windows)[target->drive()]->view() : nullptr;
      sorted[target->drive()].push_back({op, target, window});
    }
  }
  submit_sorted(sorted);
}

void NvmePath::withdraw(const OpFilter& filter, std::int32_t status) noexcept {
  for (const NamedDrive& each : drives_) {
    each.drive->withdraw(filter, status);
  }
}

void NvmePath::shutdown() noexcept {
  for (const NamedDrive& each : drives_) {
    each.drive->stop();
  }
  const std::unique_lock lock(mutex_);
  windows_.clear();
}

DataPathCaps NvmePath::caps() const {
  DataPathCaps caps;
  caps.name = "nvme";
  caps.direct = "none";
  caps.features_used["host_execution"] = "the CPU fills the queues: one thread for each drive";
  caps.features_unused["device_execution"] = no_device_;
  caps.device_memory = true;
  for (const NamedDrive& each : drives_) {
    caps.device_memory = caps.device_memory && each.drive->facts().transport.device_memory;
    caps.features_used["controller " + each.name] = describe(each.drive->facts());
  }
  return caps;
}

QueueLimits NvmePath::queue_limits() const noexcept {
  QueueLimits limits;
  for (const NamedDrive& each : drives_) {
    limits.per_root = std::min<std::uint64_t>(limits.per_root, each.drive->max_in_flight());
  }
  return limits;
}

std::string NvmePath::describe(const DriveFacts& facts) const {
  const std::string largest = facts.identity.mdts == 0
                                  ? "no limit of MDTS"
                                  : "MDTS of " + std::to_string(facts.max_command_bytes) + " bytes";
  return facts.name + ", " + facts.identity.model + ", " + std::to_string(facts.queues) +
         " queue pair(s) of " + std::to_string(facts.queue_entries) + " entries, " + largest + ", " +
         (use_sgl_ && facts.identity.takes_sgl() ? "SGL" : "PRP");
}

/// A drive that cannot take its part fails it: the others have taken theirs.
void NvmePath::submit_sorted(std::vector<std::vector<DriveOp>>& sorted) {
  bool any = false;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i].empty()) {
      continue;
    }
    try {
      drives_[i].drive->submit(sorted[i]);
    } catch (const std::bad_alloc&) {
      if (!any) {
        throw;
      }
      drives_[i].drive->refuse(sorted[i], ENOMEM);
    }
    any = true;
  }
}

}  // namespace tutti::runtime::nvme
