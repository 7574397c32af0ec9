// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstring>
#include <string>

#include "tutti/runtime/error.hpp"

namespace tutti::runtime::nvme::vfio {

/// @throws SystemError with errno, what failed, and a hint
[[noreturn]] inline void fail(const std::string& what, const std::string& path,
                              const std::string& hint = {}) {
  const int error = errno;
  throw SystemError(error, what + ": " + std::strerror(error) + (hint.empty() ? "" : "; " + hint), path);
}

}  // namespace tutti::runtime::nvme::vfio
