// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/detail/fd_pool.hpp"

#include <unistd.h>

#include <cerrno>
#include <climits>
#include <utility>

namespace tutti::runtime::detail {
namespace {

// A clean file costs nothing to close, so a few of the oldest are looked at; the list may be long.
constexpr int kLooks = 16;
// Not an errno: every descriptor there may be is in use.
constexpr int kFull = INT_MIN;

}  // namespace

PooledFile::~PooledFile() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

void FdPool::link_idle(PooledFile& file) noexcept {
  file.previous_ = newest_;
  file.next_ = nullptr;
  (newest_ != nullptr ? newest_->next_ : oldest_) = &file;
  newest_ = &file;
}

void FdPool::unlink_idle(PooledFile& file) noexcept {
  (file.previous_ != nullptr ? file.previous_->next_ : oldest_) = file.next_;
  (file.next_ != nullptr ? file.next_->previous_ : newest_) = file.previous_;
  file.previous_ = file.next_ = nullptr;
}

/// Closes an idle file's descriptor; false when there is none.
bool FdPool::close_one(Lock& lock) noexcept {
  PooledFile* victim = oldest_;
  int looks = 0;
  for (PooledFile* file = oldest_; file != nullptr && looks < kLooks; file = file->next_, ++looks) {
    if (!file->unsynced_) {
      victim = file;
      break;
    }
  }
  if (victim == nullptr) {
    return false;
  }
  unlink_idle(*victim);
  const int fd = std::exchange(victim->fd_, -1);
  const bool sync = std::exchange(victim->unsynced_, false);
  victim->retiring_ += sync ? 1U : 0U;  // remove() waits: the result has to find the file
  ++closing_;
  ++closed_;
  lock.unlock();
  // An error of writing pages back is remembered per descriptor: a later one may never hear of it.
  const int error = sync && ::fdatasync(fd) != 0 ? errno : 0;
  ::close(fd);
  lock.lock();
  --closing_;
  --open_;
  if (sync) {
    --victim->retiring_;
    victim->sync_error_ = error != 0 ? error : victim->sync_error_;
  }
  changed_.notify_all();
  return true;
}

/// For those who wait for a descriptor.
void FdPool::note_change() noexcept {
  ++changes_;
  changed_.notify_all();
}

void FdPool::make_room(Lock& lock) noexcept {
  while (open_ >= limit_) {
    if (open_ - closing_ >= limit_ && close_one(lock)) {
      continue;
    }
    if (closing_ == 0) {
      return;
    }
    changed_.wait(lock);  // what other threads are about to close is still there
  }
}

int FdPool::open_with_room(Lock& lock, const std::function<int()>& open, bool force) {
  make_room(lock);
  if (open_ >= limit_ && in_use_ + opening_ > 0 && !force) {
    return kFull;
  }
  ++open_;
  ++opening_;
  int fd = 0;
  bool no_descriptor = false;
  do {
    lock.unlock();
    fd = open();
    lock.lock();
    no_descriptor = fd == -EMFILE || fd == -ENFILE;
  } while (no_descriptor && close_one(lock));
  --opening_;
  if (fd < 0) {
    --open_;
    note_change();
  }
  return no_descriptor && in_use_ + opening_ > 0 && !force ? kFull : fd;
}

int FdPool::open_new(const std::function<int()>& open) {
  Lock lock(mutex_);
  return open_with_room(lock, open, true);
}

void FdPool::add(PooledFile& file) noexcept {
  std::lock_guard lock(mutex_);
  if (file.may_close_) {
    link_idle(file);
  }
}

void FdPool::drop(int fd) noexcept {
  ::close(fd);
  std::lock_guard lock(mutex_);
  --open_;
  note_change();
}

void FdPool::remove(PooledFile& file) noexcept {
  int fd = -1;
  {
    Lock lock(mutex_);
    changed_.wait(lock, [&] { return file.retiring_ == 0; });
    fd = std::exchange(file.fd_, -1);
    if (fd < 0) {
      return;
    }
    if (file.may_close_) {
      unlink_idle(file);
    }
  }
  drop(fd);
}

void FdPool::count_user(PooledFile& file) noexcept {
  if (file.users_++ == 0) {
    ++in_use_;
  }
}

int FdPool::acquire(PooledFile& file, Patience patience) noexcept {
  Lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !file.opening_; });
    if (file.fd_ >= 0) {
      if (file.users_ == 0 && file.may_close_) {
        unlink_idle(file);
      }
      count_user(file);
      return 0;
    }
    file.opening_ = true;
    const int fd = open_with_room(lock, [&file] { return file.reopen(); }, patience == Patience::kForce);
    file.opening_ = false;
    changed_.notify_all();
    if (fd >= 0) {
      file.fd_ = fd;
      count_user(file);
      ++reopened_;
      return 0;
    }
    if (fd != kFull || patience == Patience::kNever) {
      return fd == kFull ? EAGAIN : -fd;
    }
    changed_.wait(lock, [this, seen = changes_] { return changes_ != seen; });
  }
}

void FdPool::release(PooledFile& file) noexcept {
  Lock lock(mutex_);
  if (--file.users_ > 0) {
    return;
  }
  --in_use_;
  note_change();
  if (file.may_close_) {
    link_idle(file);
    while (open_ - closing_ > limit_ && close_one(lock)) {
    }
  }
}

void FdPool::set_unsynced(PooledFile& file, bool unsynced) noexcept {
  std::lock_guard lock(mutex_);
  // A write that ended while the flush was under way may have missed it; alone, none can have.
  if (unsynced || file.users_ == 1) {
    file.unsynced_ = unsynced;
  }
}

int FdPool::take_sync_error(PooledFile& file) noexcept {
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return file.retiring_ == 0; });
  return std::exchange(file.sync_error_, 0);
}

FdPool::Counts FdPool::counts() const noexcept {
  std::lock_guard lock(mutex_);
  return {limit_, open_, closed_, reopened_};
}

}  // namespace tutti::runtime::detail
