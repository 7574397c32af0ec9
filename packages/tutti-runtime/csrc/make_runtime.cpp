// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <utility>

#include "tutti/runtime/config.hpp"
#include "tutti/runtime/detail/paths.hpp"
#include "tutti/runtime/detail/uri_text.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/storage_runtime.hpp"
#include "tutti/runtime/testing/fault_path.hpp"

namespace tutti::runtime {
namespace {

constexpr std::uint32_t kMaxQueueDepth = 4096;
constexpr std::uint32_t kMaxInFlight = 1 << 20;
constexpr std::uint32_t kMaxThreads = 256;
constexpr std::uint32_t kMaxStrikes = 1000;
constexpr std::uint32_t kMaxResults = 1 << 24;
constexpr std::uint32_t kMaxOpenFiles = 1 << 20;

void check_range(const char* key, std::uint32_t value, std::uint32_t most) {
  if (value < 1 || value > most) {
    throw InvalidArgument(std::string(key) + "=" + std::to_string(value) + " must be between 1 and " +
                          std::to_string(most));
  }
}

// What `auto` leaves out, and why: caps() tell it.
constexpr const char* kNotCufile =
    "cufile is used only where it is asked for, as it serves memory of a GPU and not of the host";

struct Chosen {
  std::unique_ptr<DataPath> path;
  std::string because;
};

/// Well under the process's limit: the program around the runtime needs descriptors of its own.
std::uint32_t default_max_open_files() {
  constexpr std::uint64_t most = 1024;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return most;
  }
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(limit.rlim_cur / 4, 1, most));
}

detail::FileSettings file_settings(const FileConfig& config) {
  detail::FileSettings files(config.direct);
  files.no_follow = config.no_follow;
  files.notices = std::make_shared<detail::Notices>();
  files.pool = std::make_shared<detail::FdPool>(config.max_open_files != 0 ? config.max_open_files
                                                                           : default_max_open_files());
  return files;
}

std::unique_ptr<DataPath> with_faults(std::unique_ptr<DataPath> path,
                                      const std::shared_ptr<testing::FaultControl>& fault) {
  return fault != nullptr ? testing::make_fault_path(std::move(path), fault) : std::move(path);
}

Chosen choose(const FileConfig& config, const detail::FileSettings& files) {
  if (config.data_path == DataPathChoice::kPosix) {
    return {with_faults(detail::make_posix_path(files, config.threads), config.fault),
            "data_path=\"posix\" was asked for"};
  }
  if (config.data_path == DataPathChoice::kUring) {
    return {with_faults(detail::make_uring_path(files, config.queue_depth), config.fault),
            "data_path=\"uring\" was asked for"};
  }
  if (config.data_path == DataPathChoice::kCufile) {
    return {with_faults(detail::make_cufile_path(files, config.threads, config.cufile_library), config.fault),
            "data_path=\"cufile\" was asked for"};
  }
  const auto make_posix = [files, threads = config.threads] {
    return detail::make_posix_path(files, threads);
  };
  try {
    auto uring = with_faults(detail::make_uring_path(files, config.queue_depth), config.fault);
    return {detail::make_stepping_path(std::move(uring), make_posix, config.step_down_after, files.notices),
            std::string("io_uring works here; ") + kNotCufile};
  } catch (const SystemError& error) {
    const std::string why = std::string("no io_uring here: ") + error.what();
    files.notices->add("data_path", why + "; using a pool of threads");
    return {with_faults(make_posix(), config.fault), why + "; " + kNotCufile};
  }
}

// One grammar for roots and units: what a URI may name, the configuration may.
detail::StripeDefaults stripe_defaults(const FileConfig& config) {
  detail::StripeDefaults defaults{{}, config.unit};
  if (!std::has_single_bit(config.unit) || config.unit < kIoAlignment || config.unit > kMaxStripeUnit) {
    throw InvalidArgument("unit=" + std::to_string(config.unit) +
                          " must be a power of two from 4096 to 1073741824");
  }
  for (const std::string& root : config.roots) {
    if (const char* rule = detail::add_root(defaults.roots, root)) {
      throw InvalidArgument("roots: '" + root + "' breaks the rule: " + rule);
    }
  }
  return defaults;
}

}  // namespace

std::unique_ptr<StorageRuntime> make_file_runtime(const FileConfig& config) {
  check_range("queue_depth", config.queue_depth, kMaxQueueDepth);
  check_range("max_in_flight", config.max_in_flight, kMaxInFlight);
  check_range("threads", config.threads, kMaxThreads);
  check_range("step_down_after", config.step_down_after, kMaxStrikes);
  check_range("max_results", config.max_results, kMaxResults);
  check_write_policy(config.write_policy);
  check_range("max_open_files", std::max(config.max_open_files, 1U), kMaxOpenFiles);
  const detail::FileSettings files = file_settings(config);
  Chosen chosen = choose(config, files);
  StorageRuntime::Options options;
  options.max_in_flight = config.max_in_flight;
  options.max_results = std::max(config.max_results, config.max_in_flight);
  options.chosen_because = std::move(chosen.because);
  options.notices = files.notices;
  auto scheduled = detail::make_scheduled_path(std::move(chosen.path), config.write_policy);
  return std::make_unique<StorageRuntime>(
      detail::make_striped_path(std::move(scheduled), stripe_defaults(config)), std::move(options));
}

std::unique_ptr<StorageRuntime> make_memory_runtime(std::uint32_t max_in_flight,
                                                    const std::shared_ptr<testing::FaultControl>& fault) {
  check_range("max_in_flight", max_in_flight, kMaxInFlight);
  return std::make_unique<StorageRuntime>(
      with_faults(detail::make_memory_path(), fault),
      StorageRuntime::Options{max_in_flight, "a memory runtime was asked for", 1 << 20, nullptr});
}

}  // namespace tutti::runtime
