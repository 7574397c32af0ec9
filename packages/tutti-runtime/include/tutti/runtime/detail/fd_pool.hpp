// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

namespace tutti::runtime::detail {

/// A file that stays open in name while its descriptor comes and goes. Belongs to at most one FdPool.
class PooledFile {
 public:
  PooledFile(const PooledFile&) = delete;
  PooledFile& operator=(const PooledFile&) = delete;

  /// Good between FdPool::acquire() and release(), and always for a file in no pool.
  [[nodiscard]] int fd() const noexcept { return fd_; }

 protected:
  /// @param may_close false for what must be held all the time, such as an exclusively opened device.
  PooledFile(int fd, bool may_close) noexcept : fd_(fd), may_close_(may_close) {}
  ~PooledFile();

  /// Opens the file again and proves that it is the same one. @returns the descriptor or -errno.
  [[nodiscard]] virtual int reopen() noexcept = 0;

 private:
  friend class FdPool;

  int fd_;
  const bool may_close_;
  std::uint32_t users_ = 0;         ///< between acquire() and release()
  bool opening_ = false;            ///< one thread is in reopen()
  std::uint32_t retiring_ = 0;      ///< threads that write dirty pages out before their descriptor goes
  bool unsynced_ = false;           ///< buffered writes that no fdatasync on this descriptor has covered
  std::int32_t sync_error_ = 0;     ///< of that last fdatasync; the next flush reports it
  PooledFile* previous_ = nullptr;  ///< in the list of idle files
  PooledFile* next_ = nullptr;
};

/// What acquire() does when no descriptor is to be had because all are in use.
enum class Patience {
  kWait,   ///< waits until one is released
  kNever,  ///< gives EAGAIN: the caller has some in use itself and comes back
  kForce,  ///< goes over the limit: the caller has none in use, and nobody may ever wake it
};

/// Keeps at most `limit` descriptors open by closing the least recently used idle ones. Thread-safe; no lock
/// is held in a system call.
class FdPool {
 public:
  struct Counts {
    std::uint32_t limit;
    std::uint32_t open;
    std::uint64_t closed;  ///< descriptors closed to make room
    std::uint64_t reopened;
  };

  explicit FdPool(std::uint32_t limit) noexcept : limit_(limit) {}

  /// Calls `open` (descriptor or -errno) with room for one more, again after EMFILE and ENFILE while there
  /// are idle files to close. The descriptor must then be handed to add() or to drop().
  [[nodiscard]] int open_new(const std::function<int()>& open);
  void add(PooledFile& file) noexcept;
  void drop(int fd) noexcept;

  /// Closes the descriptor. Nothing may be using the file.
  void remove(PooledFile& file) noexcept;

  /// Makes file.fd() good until release(). @returns 0, the errno of the file's reopening, or EAGAIN.
  [[nodiscard]] int acquire(PooledFile& file, Patience patience) noexcept;
  void release(PooledFile& file) noexcept;

  /// Between acquire() and release(): the page cache now holds writes of this descriptor, or a flush has
  /// covered them.
  void set_unsynced(PooledFile& file, bool unsynced) noexcept;
  /// An error that no flush has reported yet, once; else 0.
  [[nodiscard]] int take_sync_error(PooledFile& file) noexcept;

  [[nodiscard]] Counts counts() const noexcept;

 private:
  using Lock = std::unique_lock<std::mutex>;

  void link_idle(PooledFile& file) noexcept;
  void unlink_idle(PooledFile& file) noexcept;
  bool close_one(Lock& lock) noexcept;
  void note_change() noexcept;
  void make_room(Lock& lock) noexcept;
  void count_user(PooledFile& file) noexcept;
  int open_with_room(Lock& lock, const std::function<int()>& open, bool force);

  const std::uint32_t limit_;
  mutable std::mutex mutex_;  ///< guards everything below and the private part of every file
  std::condition_variable changed_;
  std::uint32_t open_ = 0;     ///< descriptors that exist or are about to
  std::uint32_t closing_ = 0;  ///< of those, the ones that a thread is closing to make room
  std::uint32_t in_use_ = 0;   ///< files with users
  std::uint32_t opening_ = 0;  ///< descriptors that are about to exist
  std::uint64_t changes_ = 0;  ///< moments at which a descriptor may have become free
  std::uint64_t closed_ = 0;
  std::uint64_t reopened_ = 0;
  PooledFile* oldest_ = nullptr;
  PooledFile* newest_ = nullptr;
};

}  // namespace tutti::runtime::detail
