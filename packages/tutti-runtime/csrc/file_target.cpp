// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/detail/file_target.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tutti/runtime/error.hpp"

namespace tutti::runtime::detail {
namespace {

[[noreturn]] void refuse(int error, const std::string& what, const std::string& path) {
  throw SystemError(error, what + ": " + std::strerror(error), path);
}

/// Closes on the way out unless released.
class UniqueFd {
 public:
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  [[nodiscard]] int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

void require_regular(const struct stat& info, const std::string& path) {
  if (S_ISREG(info.st_mode)) {
    return;
  }
  if (S_ISDIR(info.st_mode)) {
    throw SystemError(EISDIR, "a target must be a regular file; this is a directory", path);
  }
  if (S_ISLNK(info.st_mode)) {
    throw SystemError(ELOOP, "a target must not be a symbolic link; open the file that it names", path);
  }
  throw SystemError(EINVAL, "a target must be a regular file; this is a FIFO, socket or device", path);
}

void set_flags(int fd, int flags, const std::string& path) {
  if (::fcntl(fd, F_SETFL, flags) != 0) {
    refuse(errno, "cannot set the file's flags", path);
  }
}

}  // namespace

FileTarget::FileTarget(int fd, std::string path, std::uint64_t size, bool writable, bool direct,
                       bool may_fall_back)
    : Target(size, writable),
      fd_(fd),
      path_(std::move(path)),
      direct_(direct),
      may_fall_back_(may_fall_back) {}

FileTarget::~FileTarget() { ::close(fd_); }

bool FileTarget::drop_direct() noexcept {
  // The flag before the bookkeeping, and by every caller: when any of them returns, a retry is buffered.
  const int flags = ::fcntl(fd_, F_GETFL);
  ::fcntl(fd_, F_SETFL, flags & ~O_DIRECT);
  return direct_.exchange(false, std::memory_order_acq_rel);
}

std::string FileOpener::policy_name() const {
  switch (policy_) {
    case DirectPolicy::kOn:
      return "on";
    case DirectPolicy::kOff:
      return "off";
    case DirectPolicy::kAuto:
      break;
  }
  return "auto";
}

int FileOpener::open_fd(const std::string& path, int flags, bool& direct) {
  if (direct) {
    const int fd = ::open(path.c_str(), flags | O_DIRECT);
    if (fd >= 0 || errno != EINVAL) {
      return fd;
    }
    if (policy_ == DirectPolicy::kOn) {
      throw SystemError(EINVAL, "the file system refuses O_DIRECT; use direct=\"auto\" or \"off\"", path);
    }
    direct = false;
    count_fallback();
  }
  return ::open(path.c_str(), flags);
}

std::unique_ptr<Target> FileOpener::open(const TargetUri& uri, bool writable) {
  if (uri.scheme != Scheme::kFile) {
    throw InvalidUri("target 'mem://" + uri.path + "': a file runtime opens file:///absolute/path only");
  }
  const std::string& path = uri.path;
  struct stat info{};
  // Looked at before it is opened, because opening a FIFO or a device can block or have effects.
  if (::lstat(path.c_str(), &info) != 0) {
    refuse(errno, "cannot look at the target", path);
  }
  require_regular(info, path);

  bool direct = policy_ != DirectPolicy::kOff;
  // O_NONBLOCK: should a FIFO have taken the file's place meanwhile, open() does not wait for its other end.
  const int flags = (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK;
  UniqueFd fd(open_fd(path, flags, direct));
  if (fd.get() < 0) {
    refuse(errno, "cannot open the target", path);
  }
  if (::fstat(fd.get(), &info) != 0) {
    refuse(errno, "cannot look at the opened target", path);
  }
  require_regular(info, path);
  // io_uring answers EAGAIN instead of waiting on a descriptor that is O_NONBLOCK.
  set_flags(fd.get(), direct ? O_DIRECT : 0, path);
  auto target = std::make_unique<FileTarget>(fd.get(), path, static_cast<std::uint64_t>(info.st_size),
                                             writable, direct, policy_ == DirectPolicy::kAuto);
  fd.release();
  return target;
}

}  // namespace tutti::runtime::detail
