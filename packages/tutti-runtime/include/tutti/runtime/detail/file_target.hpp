// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "tutti/runtime/config.hpp"
#include "tutti/runtime/data_path.hpp"
#include "tutti/runtime/detail/block_device.hpp"
#include "tutti/runtime/detail/fd_pool.hpp"
#include "tutti/runtime/detail/notices.hpp"
#include "tutti/runtime/detail/open_file.hpp"

namespace tutti::runtime::detail {

/// A regular file or block device. O_DIRECT is a flag of the open file description that can be dropped while
/// it is in use, so one descriptor serves both modes and a flush sees the writes of both.
class FileTarget final : public Target, public PooledFile {
 public:
  /// What else there is to know of a file that was opened by FileOpener.
  struct Details {
    std::shared_ptr<FdPool> pool;       ///< null: the descriptor stays open
    std::shared_ptr<const void> claim;  ///< of a device that is written
    bool is_device = false;
    std::uint64_t base = 0;         ///< where the target begins in the file
    std::uint64_t needed_size = 0;  ///< the least that the file must hold to be the same
    FileIdentity identity;
    std::uint64_t root = 0;  ///< number of the block device that the bytes are on
    NoFollow no_follow = NoFollow::kLast;
  };

  FileTarget(int fd, std::string path, std::uint64_t size, bool writable, bool direct, bool may_fall_back);
  FileTarget(int fd, std::string path, std::uint64_t size, bool writable, bool direct, bool may_fall_back,
             Details details);
  ~FileTarget() override;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] bool direct() const noexcept { return direct_.load(std::memory_order_acquire); }
  [[nodiscard]] bool may_fall_back() const noexcept { return may_fall_back_; }
  [[nodiscard]] std::uint64_t base() const noexcept { return details_.base; }
  [[nodiscard]] const FileIdentity& identity() const noexcept { return details_.identity; }
  [[nodiscard]] TargetInfo info() const override;

  /// Drops O_DIRECT. True for the one call that did it.
  bool drop_direct() noexcept;

  /// Makes fd() good for one system call of an operation. @returns 0; EAGAIN with Patience::kNever when it is
  /// to be tried again after an end_use(); or the errno that is the operation's status: ESTALE when the path
  /// no longer names this file, EMFILE, or a flush's error of an earlier write.
  [[nodiscard]] int begin_use(Direction direction, Patience patience) noexcept;
  /// Once for every begin_use() that gave 0.
  void end_use(Direction direction, bool succeeded) noexcept;

 private:
  [[nodiscard]] int reopen() noexcept override;

  const std::string path_;
  std::atomic<bool> direct_;
  const bool may_fall_back_;
  const Details details_;
};

/// How files are opened. A policy alone is the usual case. Copies share their pool and claims.
struct FileSettings {
  DirectPolicy direct = DirectPolicy::kAuto;
  NoFollow no_follow = NoFollow::kLast;
  std::shared_ptr<FdPool> pool;  ///< null: no limit
  std::shared_ptr<DeviceClaims> claims = std::make_shared<DeviceClaims>();
  std::shared_ptr<Notices> notices;  ///< may be null

  FileSettings(DirectPolicy policy) : direct(policy) {}  // NOLINT(google-explicit-constructor)
};

/// Opens files and block devices under one policy and counts the targets that could not keep O_DIRECT.
class FileOpener {
 public:
  explicit FileOpener(FileSettings settings) : settings_(std::move(settings)) {}

  /// What is opened must exist and not be a symbolic link; it is never created or resized. `file` takes
  /// regular files, `raw` block devices too: one that is opened writable is held exclusively, so a mounted
  /// device is refused (EBUSY), and nobody can mount it meanwhile.
  /// @throws InvalidUri, SystemError with the path
  [[nodiscard]] std::unique_ptr<Target> open(const TargetUri& uri, bool writable);

  void count_fallback() noexcept { fallbacks_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t fallbacks() const noexcept {
    return fallbacks_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::string policy_name() const;
  [[nodiscard]] std::uint32_t max_open_files() const noexcept {
    return settings_.pool != nullptr ? settings_.pool->counts().limit : 0;
  }

 private:
  int open_fd(const std::string& path, int flags, bool& direct);
  std::unique_ptr<Target> adopt(int fd, const TargetUri& uri, bool writable, bool direct,
                                std::shared_ptr<const void> claim);

  const FileSettings settings_;
  std::atomic<std::uint64_t> fallbacks_{0};
};

}  // namespace tutti::runtime::detail
