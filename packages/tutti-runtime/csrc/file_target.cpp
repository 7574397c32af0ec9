// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/detail/file_target.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace tutti::runtime::detail {
namespace {

/// What a path that names another file now, or nothing, answers.
int gone(int error) noexcept {
  return error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENXIO ? ESTALE : error;
}

}  // namespace

FileTarget::FileTarget(int fd, std::string path, std::uint64_t size, bool writable, bool direct,
                       bool may_fall_back)
    : FileTarget(fd, std::move(path), size, writable, direct, may_fall_back, Details{}) {}

FileTarget::FileTarget(int fd, std::string path, std::uint64_t size, bool writable, bool direct,
                       bool may_fall_back, Details details)
    : Target(size, writable),
      // A device opened exclusively would be up for grabs while it is closed.
      PooledFile(fd, !details.is_device),
      path_(std::move(path)),
      direct_(direct),
      may_fall_back_(may_fall_back),
      details_(std::move(details)) {
  if (details_.pool != nullptr) {
    details_.pool->add(*this);
  }
}

FileTarget::~FileTarget() {
  if (details_.pool != nullptr) {
    details_.pool->remove(*this);
  }
}

TargetInfo FileTarget::info() const {
  TargetInfo info = Target::info();
  info.kind = details_.is_device ? "device" : "file";
  info.path = path_;
  info.offset = details_.base;
  info.direct = direct();
  info.root = details_.root;
  info.inode = details_.identity.inode;
  return info;
}

bool FileTarget::drop_direct() noexcept {
  // The flag before the bookkeeping, and by every caller: when any of them returns, a retry is buffered.
  const int flags = ::fcntl(fd(), F_GETFL);
  ::fcntl(fd(), F_SETFL, flags & ~O_DIRECT);
  return direct_.exchange(false, std::memory_order_acq_rel);
}

int FileTarget::begin_use(Direction direction, Patience patience) noexcept {
  if (details_.pool == nullptr) {
    return 0;
  }
  const int error = details_.pool->acquire(*this, patience);
  if (error != 0 || direction != Direction::kFlush) {
    return error;
  }
  const int earlier = details_.pool->take_sync_error(*this);
  if (earlier != 0) {
    details_.pool->release(*this);
  }
  return earlier;
}

void FileTarget::end_use(Direction direction, bool succeeded) noexcept {
  if (details_.pool == nullptr) {
    return;
  }
  const bool flushed = direction == Direction::kFlush && succeeded;
  if (flushed || (direction == Direction::kWrite && !direct())) {
    details_.pool->set_unsynced(*this, !flushed);
  }
  details_.pool->release(*this);
}

int FileTarget::reopen() noexcept {
  // Looked at first, as when it was opened: another thing under this name may not like to be opened.
  struct stat info{};
  if (::lstat(path_.c_str(), &info) != 0) {
    return -gone(errno);
  }
  if (!S_ISREG(info.st_mode) || info.st_ino != details_.identity.inode) {
    return -ESTALE;
  }
  const int mode = (writable() ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  const int direct_flag = direct() ? O_DIRECT : 0;
  const int opened = open_no_follow(path_, mode | direct_flag, details_.no_follow);
  if (opened < 0) {
    return -gone(-opened);
  }
  int error = ::fstat(opened, &info) != 0 ? errno : 0;
  const bool same = error == 0 && S_ISREG(info.st_mode) && identity_of(opened, info) == details_.identity &&
                    static_cast<std::uint64_t>(info.st_size) >= details_.needed_size;
  if (error == 0 && !same) {
    error = ESTALE;
  }
  if (error == 0 && ::fcntl(opened, F_SETFL, direct_flag) != 0) {
    error = errno;
  }
  if (error != 0) {
    ::close(opened);
    return -error;
  }
  return opened;
}

}  // namespace tutti::runtime::detail
