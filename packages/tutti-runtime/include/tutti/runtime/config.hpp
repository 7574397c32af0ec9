// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/runtime/write_policy.hpp"

namespace tutti::runtime {

class StorageRuntime;
namespace testing {
class FaultControl;
}

enum class DataPathChoice { kAuto, kUring, kPosix, kCufile };
enum class DirectPolicy {
  kAuto,  ///< O_DIRECT where the file system takes it, else buffered
  kOn,    ///< O_DIRECT or an error
  kOff,   ///< buffered
};

/// Where a symbolic link in a target's path is refused.
enum class NoFollow {
  kLast,  ///< in the last component
  kAll,   ///< in any component; needs openat2 (Linux 5.6)
};

struct FileConfig {
  DataPathChoice data_path = DataPathChoice::kAuto;
  DirectPolicy direct = DirectPolicy::kAuto;
  std::uint32_t queue_depth = 64;       ///< uring: operations of one root in the ring at once, 1 to 4096
  std::uint32_t max_in_flight = 4096;   ///< accepted and not finished items, 1 to 1048576
  std::uint32_t max_results = 1 << 20;  ///< see StorageRuntime::Options; max_in_flight to 16777216
  std::uint32_t threads = 4;            ///< posix: for each root, cufile: in all; 1 to 256
  WritePolicy write_policy;             ///< how writes share a root with reads
  std::uint32_t step_down_after = 3;    ///< kAuto: failures in a row of the better data path, 1 to 1000
  std::uint32_t max_open_files = 0;     ///< descriptors; 0: a quarter of RLIMIT_NOFILE, at most 1024
  NoFollow no_follow = NoFollow::kLast;
  std::vector<std::string> roots;                ///< of striped targets whose URI names none
  std::uint64_t unit = std::uint64_t{1} << 20;   ///< of striped targets whose URI names none, in bytes
  std::shared_ptr<testing::FaultControl> fault;  ///< for tests: makes the chosen data path misbehave
  std::string cufile_library;  ///< cufile: path of libcufile.so.0; empty: the loader looks for it
};

/// @throws InvalidArgument for a number outside its range; SystemError when the data path cannot be made
/// (with kAuto only when neither can).
[[nodiscard]] std::unique_ptr<StorageRuntime> make_file_runtime(const FileConfig& config);

/// @throws InvalidArgument, SystemError
[[nodiscard]] std::unique_ptr<StorageRuntime> make_memory_runtime(
    std::uint32_t max_in_flight, const std::shared_ptr<testing::FaultControl>& fault = nullptr);

}  // namespace tutti::runtime
