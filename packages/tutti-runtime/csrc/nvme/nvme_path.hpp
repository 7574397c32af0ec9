// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "drive.hpp"
#include "drive_window.hpp"
#include "tutti/runtime/data_path.hpp"
#include "tutti/runtime/nvme/config.hpp"

namespace tutti::runtime::nvme {

struct NamedDrive {
  std::string name;
  std::unique_ptr<Drive> drive;
  std::vector<BlockDevice> block_devices;
};

/// Operations on namespaces, driven by the CPU: one thread a drive.
class NvmePath final : public DataPath {
 public:
  /// `no_device`: why no device submits.
  NvmePath(std::vector<NamedDrive> drives, bool use_sgl, std::string no_device);
  ~NvmePath() override;

  void start(CompletionSink& sink) override;
  std::unique_ptr<Target> open(const TargetUri& uri, bool writable) override;
  void register_memory(Memory& memory) override;
  void unregister_memory(const Memory& memory) noexcept override;
  void submit(std::span<const IoOp> ops) override;
  void withdraw(const OpFilter& filter, std::int32_t status) noexcept override;
  void shutdown() noexcept override;
  DataPathCaps caps() const override;
  QueueLimits queue_limits() const noexcept override;

  [[nodiscard]] const std::vector<NamedDrive>& drives() const noexcept { return drives_; }
  /// Registered memory as a drive reaches it, good until it is unregistered.
  [[nodiscard]] const DataWindow& window(const Memory& memory, std::size_t drive) const;

 private:
  [[nodiscard]] std::string describe(const DriveFacts& facts) const;
  void submit_sorted(std::vector<std::vector<DriveOp>>& sorted);

  const std::vector<NamedDrive> drives_;
  const bool use_sgl_;
  const std::string no_device_;
  mutable std::shared_mutex mutex_;
  std::unordered_map<const Memory*, std::vector<std::unique_ptr<DriveWindow>>> windows_;
};

}  // namespace tutti::runtime::nvme
