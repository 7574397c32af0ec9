// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "tutti/runtime/error.hpp"

namespace tutti::runtime::nvme {

/// "LBA Out of Range (0x80), do not retry", in the specification's words where it is one that drivers meet.
[[nodiscard]] std::string describe_status(std::uint16_t status);

/// A command ended with a status other than success, or not at all. error_number() is its errno.
class CommandFailed : public SystemError {
 public:
  CommandFailed(int error_number, const std::string& message, std::uint16_t status)
      : SystemError(error_number, message), status_(status) {}

  /// Status field; 0 where the command did not end (error_number() says ETIMEDOUT, ENODEV or EIO).
  [[nodiscard]] std::uint16_t status() const noexcept { return status_; }

 private:
  std::uint16_t status_;
};

}  // namespace tutti::runtime::nvme
