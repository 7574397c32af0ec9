// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <string>
#include <utility>

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
  return settings;
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
  std::vector<nvme::NamedDrive> drives;
  for (const nvme::ControllerConfig& each : config.controllers) {
    auto drive = std::make_unique<nvme::Drive>(each.open(), settings, options.notices);
    drives.push_back({each.name, std::move(drive), each.block_devices});
  }
  auto path = nvme::make_nvme_path(std::move(drives), config.sgl);
  if (config.fault != nullptr) {
    path = testing::make_fault_path(std::move(path), config.fault);
  }
  auto scheduled = detail::make_scheduled_path(std::move(path), config.write_policy);
  return std::make_unique<StorageRuntime>(detail::make_striped_path(std::move(scheduled), std::move(stripes)),
                                          std::move(options));
}

}  // namespace tutti::runtime
