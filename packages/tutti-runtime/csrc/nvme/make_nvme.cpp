// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "device_path.hpp"
#include "nvme_path.hpp"
#include "tutti/runtime/detail/checks.hpp"
#include "tutti/runtime/detail/paths.hpp"
#include "tutti/runtime/detail/uri_text.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/config.hpp"
#include "tutti/runtime/storage_runtime.hpp"
#include "tutti/runtime/testing/fault_path.hpp"

namespace tutti::runtime {
namespace {

using nvme::NvmeConfig;

constexpr std::uint32_t kMaxControllers = 64;
constexpr std::uint32_t kMaxQueues = 64;
constexpr std::uint32_t kMaxQueueEntries = 4096;
constexpr std::uint32_t kMaxBlocks = 8;

void check_seconds(const char* key, double value, bool zero_allowed) {
  constexpr double most = 3600;
  if (!(value >= 0 && value <= most) || (value == 0 && !zero_allowed)) {
    throw InvalidArgument(std::string(key) + "=" + std::to_string(value) + " must be seconds " +
                          (zero_allowed ? "from 0" : "above 0") + " to 3600");
  }
}

void check_names(const NvmeConfig& config) {
  const std::size_t count = config.controllers.size();
  if (count < 1 || count > kMaxControllers) {
    throw InvalidArgument("controllers has " + std::to_string(count) + " entries and must have 1 to 64");
  }
  std::set<std::string> names;
  std::set<std::pair<std::uint32_t, std::uint32_t>> devices;
  for (const nvme::ControllerConfig& each : config.controllers) {
    if (!detail::is_controller_name(each.name) || !names.insert(each.name).second) {
      throw InvalidArgument("controllers: name='" + each.name +
                            "' must be one of its own, with 1 to 200 characters of A-Z a-z 0-9 . _ - :");
    }
    for (const nvme::BlockDevice& device : each.block_devices) {
      if (!devices.emplace(device.major, device.minor).second) {
        throw InvalidArgument("controllers: block device " + std::to_string(device.major) + ":" +
                              std::to_string(device.minor) + " stands twice");
      }
    }
  }
}

nvme::DriveSettings drive_settings(const NvmeConfig& config) {
  detail::check_range("queues", config.queues, 1, kMaxQueues);
  detail::check_range("queue_entries", config.queue_entries, 2, kMaxQueueEntries);
  detail::check_range("device_queues", config.device_queues, 1, kMaxQueues);
  detail::check_range("device_blocks", config.device_blocks, 1, kMaxBlocks);
  check_seconds("command_timeout", config.command_timeout, false);
  check_seconds("admin_timeout", config.admin_timeout, false);
  check_seconds("retry_after", config.retry_after, true);
  if (config.window_bytes < 4096) {
    throw InvalidArgument("window_bytes=" + std::to_string(config.window_bytes) + " must be 4096 or more");
  }
  nvme::DriveSettings settings;
  settings.queues = config.queues;
  settings.queue_entries = config.queue_entries;
  settings.window_bytes = config.window_bytes;
  settings.command_timeout = Duration(config.command_timeout);
  settings.admin_timeout = Duration(config.admin_timeout);
  settings.retry_after = Duration(config.retry_after);
  settings.sgl = config.sgl;
  settings.window_commands = config.window_commands;
  return settings;
}

using Transports = std::vector<std::unique_ptr<nvme::Transport>>;

/// Teams, or why there are none.
struct DeviceChoice {
  std::unique_ptr<nvme::TeamHost> teams;
  std::string what;
  std::string why_none;
};

/// Empty when teams of the kind can ring every controller's doorbells.
std::string unreachable(const Transports& transports, bool on_gpu) {
  for (const auto& each : transports) {
    const nvme::TransportCaps caps = each->caps();
    if (!caps.doorbell_stores || (on_gpu && !caps.gpu_doorbells)) {
      return each->name() + " has no doorbells that " + (on_gpu ? "a GPU" : "a thread") + " can store to" +
             (caps.limits.empty() ? "" : " (" + caps.limits + ")");
    }
  }
  return {};
}

constexpr const char* kUnproven =
    "submission by a GPU has not passed its tests on one: ask for it with device_executor=\"cuda\"";

/// @throws for an executor that was asked for and cannot be had.
DeviceChoice choose_device(const NvmeConfig& config, const Transports& transports) {
  using nvme::DeviceExecutor;
  const DeviceExecutor asked = config.device_executor;
  if (asked == DeviceExecutor::kNone) {
    return {nullptr, "", "device_executor=\"none\" was asked for"};
  }
  const bool on_gpu = asked != DeviceExecutor::kCpu;
  const std::string why = unreachable(transports, on_gpu);
  if (asked == DeviceExecutor::kAuto) {
    const std::string missing = why.empty() ? nvme::missing_kernel() : why;
    return {nullptr, "", missing.empty() ? kUnproven : missing};
  }
  if (!why.empty()) {
    throw InvalidArgument("device_executor: " + why);
  }
  if (!on_gpu) {
    return {nvme::make_cpu_teams(), "threads in a device's place", ""};
  }
  return {nvme::make_cuda_teams(config.device, config.device_blocks),
          "a kernel on CUDA device " + std::to_string(config.device), ""};
}

/// Half of what may be under way on a drive each, where teams share it with the CPU.
template <typename T>
T half(T window) {
  return window == 0 ? 0 : std::max<T>(window / 2, 1);
}

void require_team_queues(const std::vector<nvme::NamedDrive>& drives) {
  for (const nvme::NamedDrive& each : drives) {
    if (each.drive->team_queues().empty()) {
      throw InvalidArgument("device_executor: controller " + each.name +
                            " grants one I/O queue pair, and a device needs one of its own beside it");
    }
  }
}

nvme::DeviceSettings device_settings(const nvme::DriveSettings& drive) {
  nvme::DeviceSettings settings;
  settings.window_commands = drive.window_commands;
  settings.window_bytes = drive.window_bytes;
  settings.command_timeout = drive.command_timeout;
  return settings;
}

std::unique_ptr<DataPath> make_path(const NvmeConfig& config, nvme::DriveSettings settings,
                                    const std::shared_ptr<detail::Notices>& notices) {
  Transports transports;
  for (const nvme::ControllerConfig& each : config.controllers) {
    transports.push_back(each.open());
  }
  DeviceChoice device = choose_device(config, transports);
  if (device.teams != nullptr) {
    settings.team_queues = config.device_queues;
    settings.team_memory = device.teams->queue_memory();
    settings.window_commands = half(settings.window_commands);
    settings.window_bytes = half(settings.window_bytes);
  }
  std::vector<nvme::NamedDrive> drives;
  for (std::size_t i = 0; i < transports.size(); ++i) {
    auto drive = std::make_unique<nvme::Drive>(std::move(transports[i]), settings, notices);
    drives.push_back({config.controllers[i].name, std::move(drive), config.controllers[i].block_devices});
  }
  if (device.teams == nullptr) {
    return std::make_unique<nvme::NvmePath>(std::move(drives), config.sgl, device.why_none);
  }
  require_team_queues(drives);
  return nvme::make_device_path(std::make_unique<nvme::NvmePath>(std::move(drives), config.sgl, ""),
                                std::move(device.teams), device_settings(settings), device.what, notices);
}

}  // namespace

std::unique_ptr<StorageRuntime> make_nvme_runtime(const NvmeConfig& config) {
  check_names(config);
  const nvme::DriveSettings settings = drive_settings(config);
  detail::check_in_flight(config.max_in_flight, config.max_results);
  check_write_policy(config.write_policy);
  detail::StripeDefaults stripes = detail::stripe_defaults(config.roots, config.unit);
  StorageRuntime::Options options;
  options.max_in_flight = config.max_in_flight;
  options.max_results = std::max(config.max_results, config.max_in_flight);
  options.chosen_because = "an NVMe runtime was asked for";
  options.notices = std::make_shared<detail::Notices>();
  std::unique_ptr<DataPath> path = make_path(config, settings, options.notices);
  if (config.fault != nullptr) {
    path = testing::make_fault_path(std::move(path), config.fault);
  }
  auto scheduled = detail::make_scheduled_path(std::move(path), config.write_policy);
  return std::make_unique<StorageRuntime>(detail::make_striped_path(std::move(scheduled), std::move(stripes)),
                                          std::move(options));
}

}  // namespace tutti::runtime
