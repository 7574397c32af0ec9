// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

namespace tutti::runtime {

class StorageRuntime;

enum class DataPathChoice { kAuto, kUring, kPosix };
enum class DirectPolicy {
  kAuto,  ///< O_DIRECT where the file system takes it, else buffered
  kOn,    ///< O_DIRECT or an error
  kOff,   ///< buffered
};

struct FileConfig {
  DataPathChoice data_path = DataPathChoice::kAuto;
  DirectPolicy direct = DirectPolicy::kAuto;
  std::uint32_t queue_depth = 64;      ///< uring: operations in the ring at once, 1 to 4096
  std::uint32_t max_in_flight = 4096;  ///< accepted and not finished items, 1 to 1048576
  std::uint32_t threads = 4;           ///< posix: size of the pool, 1 to 256
};

/// @throws InvalidArgument for a number outside its range; SystemError when the data path cannot be made
/// (with kAuto only when neither can).
[[nodiscard]] std::unique_ptr<StorageRuntime> make_file_runtime(const FileConfig& config);

/// @throws InvalidArgument, SystemError
[[nodiscard]] std::unique_ptr<StorageRuntime> make_memory_runtime(std::uint32_t max_in_flight);

}  // namespace tutti::runtime
