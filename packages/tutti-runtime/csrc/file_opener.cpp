// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tutti/runtime/detail/file_target.hpp"
#include "tutti/runtime/error.hpp"

namespace tutti::runtime::detail {
namespace {

[[noreturn]] void refuse(int error, const std::string& what, const std::string& path) {
  throw SystemError(error, what + ": " + std::strerror(error), path);
}

/// Gives the descriptor back to where it came from, unless released.
class UniqueFd {
 public:
  UniqueFd(int fd, FdPool* pool) : fd_(fd), pool_(pool) {}
  ~UniqueFd() {
    if (fd_ >= 0) {
      pool_ != nullptr ? pool_->drop(fd_) : static_cast<void>(::close(fd_));
    }
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  [[nodiscard]] int get() const { return fd_; }
  void release() { fd_ = -1; }

 private:
  int fd_;
  FdPool* pool_;
};

void require_kind(const struct stat& info, bool devices, const std::string& path) {
  if (S_ISREG(info.st_mode) || (devices && S_ISBLK(info.st_mode))) {
    return;
  }
  const std::string wanted =
      devices ? "a raw target must be a block device or an image file" : "a target must be a regular file";
  if (S_ISDIR(info.st_mode)) {
    throw SystemError(EISDIR, wanted + "; this is a directory", path);
  }
  if (S_ISLNK(info.st_mode)) {
    throw SystemError(ELOOP, "a target must not be a symbolic link; open the file that it names", path);
  }
  if (S_ISBLK(info.st_mode)) {
    throw SystemError(EINVAL, wanted + "; this is a block device, which raw:// opens", path);
  }
  throw SystemError(EINVAL, wanted + "; this is a FIFO, socket or character device", path);
}

/// Bytes that the opened file or device holds.
std::uint64_t capacity_of(int fd, const struct stat& info, bool writable, const std::string& path) {
  if (S_ISREG(info.st_mode)) {
    return static_cast<std::uint64_t>(info.st_size);
  }
  const BlockDevice device = query_block_device(fd, path);
  if (device.logical_block > kIoAlignment) {
    throw SystemError(EINVAL,
                      "the device's logical block has " + std::to_string(device.logical_block) +
                          " bytes; offsets are multiples of 4096, so it must not be larger",
                      path);
  }
  if (writable && device.read_only) {
    throw SystemError(EROFS, "the block device is read-only; open it with writable=False", path);
  }
  return device.size;
}

/// Bytes of the target, which for raw is a slice of what there is. Never adds offset and size.
std::uint64_t slice_size(const TargetUri& uri, std::uint64_t capacity) {
  if (uri.scheme == Scheme::kFile) {
    return capacity;
  }
  const std::uint64_t rest =
      uri.offset > capacity ? 0 : (capacity - uri.offset) / kIoAlignment * kIoAlignment;
  if (rest == 0 || uri.size > rest) {
    throw InvalidUri("target 'raw://" + uri.path + "?offset=" + std::to_string(uri.offset) +
                     "&size=" + std::to_string(uri.size) + "': it holds " + std::to_string(capacity) +
                     " bytes, and the slice must lie inside");
  }
  return uri.size != 0 ? uri.size : rest;
}

}  // namespace

std::string FileOpener::policy_name() const {
  switch (settings_.direct) {
    case DirectPolicy::kOn:
      return "on";
    case DirectPolicy::kOff:
      return "off";
    case DirectPolicy::kAuto:
      break;
  }
  return "auto";
}

/// A descriptor or -errno.
int FileOpener::open_fd(const std::string& path, int flags, bool& direct) {
  const auto attempt = [&](int all_flags) {
    const auto open = [&] { return open_no_follow(path, all_flags, settings_.no_follow); };
    return settings_.pool != nullptr ? settings_.pool->open_new(open) : open();
  };
  if (direct) {
    const int fd = attempt(flags | O_DIRECT);
    if (fd != -EINVAL) {
      return fd;
    }
    if (settings_.direct == DirectPolicy::kOn) {
      throw SystemError(EINVAL, "the file system refuses O_DIRECT; use direct=\"auto\" or \"off\"", path);
    }
    direct = false;
    count_fallback();
  }
  return attempt(flags);
}

std::unique_ptr<Target> FileOpener::open(const TargetUri& uri, bool writable) {
  if (uri.scheme != Scheme::kFile && uri.scheme != Scheme::kRaw) {
    throw InvalidUri(std::string("target '") + (uri.scheme == Scheme::kNvme ? "nvme://" : "mem://") +
                     uri.path + "': a file runtime opens file:///absolute/path, striped:// and raw:// only");
  }
  const std::string& path = uri.path;
  struct stat info{};
  // Looked at before it is opened, because opening a FIFO or a device can block or have effects.
  if (::lstat(path.c_str(), &info) != 0) {
    refuse(errno, "cannot look at the target", path);
  }
  require_kind(info, uri.scheme == Scheme::kRaw, path);

  bool direct = settings_.direct != DirectPolicy::kOff;
  // O_NONBLOCK: should a FIFO have taken the file's place meanwhile, open() does not wait for its other end.
  std::shared_ptr<const void> claim;
  if (writable && S_ISBLK(info.st_mode)) {
    claim = settings_.claims->claim(path, info.st_rdev);
  }
  const int flags = (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  const int fd = open_fd(path, flags, direct);
  if (fd == -ENOSYS && settings_.no_follow == NoFollow::kAll) {
    throw SystemError(ENOSYS, "nofollow=\"all\" needs openat2 (Linux 5.6); use nofollow=\"last\"", path);
  }
  if (fd == -ELOOP && settings_.no_follow == NoFollow::kAll) {
    throw SystemError(ELOOP, "a component of the path is a symbolic link, which nofollow=\"all\" refuses",
                      path);
  }
  if (fd < 0) {
    refuse(-fd, "cannot open the target", path);
  }
  return adopt(fd, uri, writable, direct, std::move(claim));
}

std::unique_ptr<Target> FileOpener::adopt(int descriptor, const TargetUri& uri, bool writable, bool direct,
                                          std::shared_ptr<const void> claim) {
  UniqueFd fd(descriptor, settings_.pool.get());
  const std::string& path = uri.path;
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) {
    refuse(errno, "cannot look at the opened target", path);
  }
  require_kind(info, uri.scheme == Scheme::kRaw, path);
  if (writable && S_ISBLK(info.st_mode) && claim == nullptr) {
    throw SystemError(ESTALE, "the path became a block device while it was opened", path);
  }
  const std::uint64_t size = slice_size(uri, capacity_of(fd.get(), info, writable, path));
  // io_uring answers EAGAIN instead of waiting on a descriptor that is O_NONBLOCK.
  if (::fcntl(fd.get(), F_SETFL, direct ? O_DIRECT : 0) != 0) {
    refuse(errno, "cannot set the file's flags", path);
  }
  FileTarget::Details details;
  details.pool = settings_.pool;
  details.claim = std::move(claim);
  details.is_device = S_ISBLK(info.st_mode);
  details.base = uri.offset;
  details.needed_size = uri.offset + size;
  details.identity = identity_of(fd.get(), info);
  details.root = details.is_device ? info.st_rdev : info.st_dev;
  details.no_follow = settings_.no_follow;
  const bool may_fall_back = settings_.direct == DirectPolicy::kAuto;
  auto target =
      std::make_unique<FileTarget>(fd.get(), path, size, writable, direct, may_fall_back, std::move(details));
  fd.release();
  target->set_root(target->info().root);
  return target;
}

}  // namespace tutti::runtime::detail
