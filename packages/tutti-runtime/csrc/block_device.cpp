// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/detail/block_device.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tutti/runtime/error.hpp"

namespace tutti::runtime::detail {
namespace {

class Claim {
 public:
  explicit Claim(int fd) : fd_(fd) {}
  ~Claim() { ::close(fd_); }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

 private:
  int fd_;
};

}  // namespace

BlockDevice query_block_device(int fd, const std::string& path) {
  BlockDevice device;
  int logical_block = 0;
  int read_only = 0;
  if (::ioctl(fd, BLKGETSIZE64, &device.size) != 0 || ::ioctl(fd, BLKSSZGET, &logical_block) != 0 ||
      ::ioctl(fd, BLKROGET, &read_only) != 0) {
    const int error = errno;
    throw SystemError(error, std::string("cannot ask the block device: ") + std::strerror(error), path);
  }
  device.logical_block = static_cast<std::uint32_t>(logical_block);
  device.read_only = read_only != 0;
  return device;
}

std::shared_ptr<const void> DeviceClaims::claim(const std::string& path, dev_t device) {
  std::lock_guard lock(mutex_);
  if (auto held = held_[device].lock()) {
    return held;
  }
  // O_EXCL without O_CREAT is the hold: open(2).
  const int fd = ::open(path.c_str(), O_RDONLY | O_EXCL | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) {
    const int error = errno;
    throw SystemError(error,
                      error == EBUSY ? "the block device is in use: it is mounted, or another opener holds it"
                                     : std::string("cannot hold the block device: ") + std::strerror(error),
                      path);
  }
  auto held = std::make_shared<const Claim>(fd);
  struct stat info{};
  if (::fstat(fd, &info) != 0 || !S_ISBLK(info.st_mode) || info.st_rdev != device) {
    throw SystemError(ESTALE, "the path names another device than a moment ago", path);
  }
  held_[device] = held;
  return held;
}

}  // namespace tutti::runtime::detail
