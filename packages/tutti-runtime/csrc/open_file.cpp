// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/detail/open_file.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace tutti::runtime::detail {
namespace {

// Not in the headers of every system that this is built on. struct open_how and RESOLVE_NO_SYMLINKS of
// linux/openat2.h; the number is the same on every architecture.
constexpr long kOpenat2 = 437;
constexpr std::uint64_t kResolveNoSymlinks = 0x04;
struct OpenHow {
  std::uint64_t flags;
  std::uint64_t mode;
  std::uint64_t resolve;
};

}  // namespace

FileIdentity identity_of(int fd, const struct stat& info) noexcept {
  // The kernel writes an int, although the request's number says long.
  int generation[2] = {0, 0};
  if (::ioctl(fd, FS_IOC_GETVERSION, generation) != 0) {
    generation[0] = 0;
  }
  return {info.st_dev, info.st_ino, static_cast<std::uint32_t>(generation[0])};
}

int open_no_follow(const std::string& path, int flags, NoFollow no_follow) noexcept {
  long fd = -1;
  if (no_follow == NoFollow::kAll) {
    const OpenHow how{static_cast<std::uint64_t>(flags), 0, kResolveNoSymlinks};
    fd = ::syscall(kOpenat2, AT_FDCWD, path.c_str(), &how, sizeof how);
  } else {
    fd = ::open(path.c_str(), flags | O_NOFOLLOW);
  }
  return fd < 0 ? -errno : static_cast<int>(fd);
}

}  // namespace tutti::runtime::detail
