// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/runtime/nvme/transport.hpp"
#include "tutti/runtime/write_policy.hpp"

namespace tutti::runtime {

class StorageRuntime;
namespace testing {
class FaultControl;
}

namespace nvme {

/// A block device of the kernel's whose blocks are those of a namespace: how files on it are found there.
struct BlockDevice {
  std::uint32_t major = 0;
  std::uint32_t minor = 0;
  std::uint32_t nsid = 1;
  std::uint64_t offset = 0;  ///< bytes from the namespace's first block to the device's (a partition's)
};

struct ControllerConfig {
  std::string name;  ///< in nvme:// URIs; unique in the runtime
  std::function<std::unique_ptr<Transport>()> open;
  std::vector<BlockDevice> block_devices;
};

/// Where the teams of lanes run that carry out what asks for a device.
enum class DeviceExecutor {
  kAuto,  ///< a CUDA device that every controller can be driven from, else none
  kNone,
  kCpu,  ///< threads: to test what a device would do
  kCuda,
};

struct NvmeConfig {
  std::vector<ControllerConfig> controllers;  ///< 1 to 64
  std::uint32_t queues = 1;                   ///< I/O queue pairs of a controller, 1 to 64
  std::uint32_t queue_entries = 256;          ///< of each, 2 to 4096
  std::uint64_t window_bytes = std::uint64_t{64}
                               << 20;  ///< under way on one controller at once, 4096 or more
  double command_timeout = 5;          ///< seconds until a command is given up, above 0
  double admin_timeout = 2;            ///< seconds of an admin command, above 0
  double retry_after = 1;              ///< seconds until a drive that is down is tried again, from 0
  bool sgl = true;                     ///< use SGLs where a controller takes them
  std::uint32_t window_commands = 0;   ///< under way on one controller at once; 0: what the queues take
  DeviceExecutor device_executor = DeviceExecutor::kAuto;
  int device = 0;                   ///< kCuda, kAuto: the CUDA device
  std::uint32_t device_queues = 2;  ///< queue pairs of a controller beside `queues`, a team each, 1 to 64
  std::uint32_t device_blocks = 4;  ///< kCuda: thread blocks at most, 1 to 8
  std::uint32_t max_in_flight = 4096;
  std::uint32_t max_results = 1 << 20;
  WritePolicy write_policy;
  std::vector<std::string> roots;                ///< of striped targets whose URI names none
  std::uint64_t unit = std::uint64_t{1} << 20;   ///< of striped targets whose URI names none, in bytes
  std::shared_ptr<testing::FaultControl> fault;  ///< for tests
};

}  // namespace nvme

/// Drives controllers of its own, without the kernel: opens nvme:// targets, file:// targets whose block
/// device a controller has, and striped:// targets over either.
/// @throws InvalidArgument for a setting outside its range; SystemError for a controller that does not come
/// up.
[[nodiscard]] std::unique_ptr<StorageRuntime> make_nvme_runtime(const nvme::NvmeConfig& config);

}  // namespace tutti::runtime
