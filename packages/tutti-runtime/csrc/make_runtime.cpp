// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include "tutti/runtime/config.hpp"
#include "tutti/runtime/detail/paths.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/storage_runtime.hpp"

namespace tutti::runtime {
namespace {

constexpr std::uint32_t kMaxQueueDepth = 4096;
constexpr std::uint32_t kMaxInFlight = 1 << 20;
constexpr std::uint32_t kMaxThreads = 256;

void check_range(const char* key, std::uint32_t value, std::uint32_t most) {
  if (value < 1 || value > most) {
    throw InvalidArgument(std::string(key) + "=" + std::to_string(value) + " must be between 1 and " +
                          std::to_string(most));
  }
}

struct Chosen {
  std::unique_ptr<DataPath> path;
  std::string because;
};

Chosen choose(const FileConfig& config) {
  if (config.data_path == DataPathChoice::kPosix) {
    return {detail::make_posix_path(config.direct, config.threads), "data_path=\"posix\" was asked for"};
  }
  if (config.data_path == DataPathChoice::kUring) {
    return {detail::make_uring_path(config.direct, config.queue_depth), "data_path=\"uring\" was asked for"};
  }
  try {
    return {detail::make_uring_path(config.direct, config.queue_depth), "io_uring works here"};
  } catch (const SystemError& error) {
    return {detail::make_posix_path(config.direct, config.threads),
            std::string("no io_uring here: ") + error.what()};
  }
}

}  // namespace

std::unique_ptr<StorageRuntime> make_file_runtime(const FileConfig& config) {
  check_range("queue_depth", config.queue_depth, kMaxQueueDepth);
  check_range("max_in_flight", config.max_in_flight, kMaxInFlight);
  check_range("threads", config.threads, kMaxThreads);
  Chosen chosen = choose(config);
  return std::make_unique<StorageRuntime>(
      std::move(chosen.path), StorageRuntime::Options{config.max_in_flight, std::move(chosen.because)});
}

std::unique_ptr<StorageRuntime> make_memory_runtime(std::uint32_t max_in_flight) {
  check_range("max_in_flight", max_in_flight, kMaxInFlight);
  return std::make_unique<StorageRuntime>(
      detail::make_memory_path(), StorageRuntime::Options{max_in_flight, "a memory runtime was asked for"});
}

}  // namespace tutti::runtime
