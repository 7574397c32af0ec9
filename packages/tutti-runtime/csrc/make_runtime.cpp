// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "tutti/runtime/config.hpp"
#include "tutti/runtime/detail/checks.hpp"
#include "tutti/runtime/detail/paths.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/storage_runtime.hpp"
#include "tutti/runtime/testing/fault_path.hpp"

namespace tutti::runtime {
namespace {

constexpr std::uint32_t kMaxQueueDepth = 4096;
constexpr std::uint32_t kMaxThreads = 256;
constexpr std::uint32_t kMaxStrikes = 1000;
constexpr std::uint32_t kMaxOpenFiles = 1 << 20;

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

}  // namespace

std::unique_ptr<StorageRuntime> make_file_runtime(const FileConfig& config) {
  detail::check_range("queue_depth", config.queue_depth, 1, kMaxQueueDepth);
  detail::check_range("threads", config.threads, 1, kMaxThreads);
  detail::check_range("step_down_after", config.step_down_after, 1, kMaxStrikes);
  detail::check_in_flight(config.max_in_flight, config.max_results);
  check_write_policy(config.write_policy);
  detail::check_range("max_open_files", std::max(config.max_open_files, 1U), 1, kMaxOpenFiles);
  const detail::FileSettings files = file_settings(config);
  Chosen chosen = choose(config, files);
  StorageRuntime::Options options;
  options.max_in_flight = config.max_in_flight;
  options.max_results = std::max(config.max_results, config.max_in_flight);
  options.chosen_because = std::move(chosen.because);
  options.notices = files.notices;
  auto scheduled = detail::make_scheduled_path(std::move(chosen.path), config.write_policy);
  return std::make_unique<StorageRuntime>(
      detail::make_striped_path(std::move(scheduled), detail::stripe_defaults(config.roots, config.unit)),
      std::move(options));
}

std::unique_ptr<StorageRuntime> make_memory_runtime(std::uint32_t max_in_flight,
                                                    const std::shared_ptr<testing::FaultControl>& fault) {
  detail::check_in_flight(max_in_flight, 1);
  return std::make_unique<StorageRuntime>(
      with_faults(detail::make_memory_path(), fault),
      StorageRuntime::Options{max_in_flight, "a memory runtime was asked for", 1 << 20, nullptr});
}

}  // namespace tutti::runtime
