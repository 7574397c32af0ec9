// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "tutti/runtime/config.hpp"
#include "tutti/runtime/data_path.hpp"

namespace tutti::runtime::detail {

/// A regular file, opened once. O_DIRECT is a flag of the open file description that can be dropped while it
/// is in use, so one descriptor serves both modes and a flush sees the writes of both.
class FileTarget final : public Target {
 public:
  FileTarget(int fd, std::string path, std::uint64_t size, bool writable, bool direct, bool may_fall_back);
  ~FileTarget() override;

  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] bool direct() const noexcept { return direct_.load(std::memory_order_acquire); }
  [[nodiscard]] bool may_fall_back() const noexcept { return may_fall_back_; }

  /// Drops O_DIRECT. True for the one call that did it.
  bool drop_direct() noexcept;

 private:
  const int fd_;
  const std::string path_;
  std::atomic<bool> direct_;
  const bool may_fall_back_;
};

/// Opens files under one O_DIRECT policy and counts the targets that could not keep it.
class FileOpener {
 public:
  explicit FileOpener(DirectPolicy policy) : policy_(policy) {}

  /// The file must exist, be regular and not a symbolic link; it is never created or resized.
  /// @throws InvalidUri, SystemError with the path
  [[nodiscard]] std::unique_ptr<Target> open(const TargetUri& uri, bool writable);

  void count_fallback() noexcept { fallbacks_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t fallbacks() const noexcept {
    return fallbacks_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::string policy_name() const;

 private:
  int open_fd(const std::string& path, int flags, bool& direct);

  const DirectPolicy policy_;
  std::atomic<std::uint64_t> fallbacks_{0};
};

}  // namespace tutti::runtime::detail
