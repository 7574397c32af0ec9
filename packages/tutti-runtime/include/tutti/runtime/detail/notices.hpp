// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace tutti::runtime::detail {

/// What a user should hear of once: ways that were given up. Thread-safe.
class Notices {
 public:
  /// Only the first of a kind is kept.
  void add(const std::string& kind, std::string text) {
    std::lock_guard lock(mutex_);
    if (kinds_.insert(kind).second) {
      texts_.push_back(std::move(text));
      count_.store(static_cast<std::uint32_t>(texts_.size()), std::memory_order_release);
    }
  }

  [[nodiscard]] std::uint32_t count() const noexcept { return count_.load(std::memory_order_acquire); }

  [[nodiscard]] std::vector<std::string> texts() const {
    std::lock_guard lock(mutex_);
    return texts_;
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::string> kinds_;
  std::vector<std::string> texts_;
  std::atomic<std::uint32_t> count_{0};
};

}  // namespace tutti::runtime::detail
