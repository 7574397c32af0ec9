// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "tutti/runtime/error.hpp"

namespace tutti::runtime::nvme::vfio {

/// Owns a file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  [[nodiscard]] int get() const noexcept { return fd_; }

 private:
  int fd_;
};

/// @throws SystemError with errno, what failed, and a hint
[[noreturn]] inline void fail(const std::string& what, const std::string& path,
                              const std::string& hint = {}) {
  const int error = errno;
  throw SystemError(error, what + ": " + std::strerror(error) + (hint.empty() ? "" : "; " + hint), path);
}

}  // namespace tutti::runtime::nvme::vfio
