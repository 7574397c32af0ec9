// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace tutti::runtime::detail {

/// A block device's facts, by ioctl.
struct BlockDevice {
  std::uint64_t size = 0;
  std::uint32_t logical_block = 0;
  bool read_only = false;
};

/// @throws SystemError with the path
[[nodiscard]] BlockDevice query_block_device(int fd, const std::string& path);

/// The kernel's exclusive hold on block devices: while one is held nobody can mount the device, or hold it
/// himself. One hold serves all targets of a runtime on the device. Thread-safe.
class DeviceClaims {
 public:
  /// Holds the device until the last copy of the result is gone.
  /// @throws SystemError(EBUSY) when it is mounted or held by somebody else.
  [[nodiscard]] std::shared_ptr<const void> claim(const std::string& path, dev_t device);

 private:
  std::mutex mutex_;
  std::map<dev_t, std::weak_ptr<const void>> held_;
};

}  // namespace tutti::runtime::detail
