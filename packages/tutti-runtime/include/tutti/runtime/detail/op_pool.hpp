// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tutti/runtime/data_path.hpp"

namespace tutti::runtime::detail {

/// A bounded number of threads that take operations off one queue and report them when they are done: what a
/// data path needs whose calls block.
class OpPool {
 public:
  /// Brings the operation to its end: sets `status` and `done`. Runs on many threads at once.
  using Run = std::function<void(IoOp&)>;

  OpPool(std::string thread_name, std::uint32_t threads, Run run)
      : thread_name_(std::move(thread_name)), thread_count_(threads), run_(std::move(run)) {}
  ~OpPool() { shutdown(); }
  OpPool(const OpPool&) = delete;
  OpPool& operator=(const OpPool&) = delete;

  /// @throws SystemError when the threads cannot be started.
  void start(CompletionSink& sink);

  /// Takes every operation, or throws and takes none.
  void submit(std::span<const IoOp> ops);

  /// Completes with `status` what `filter` names and no thread has begun.
  void withdraw(const OpFilter& filter, std::int32_t status) noexcept;

  /// Ends the threads when the queue is empty.
  void shutdown() noexcept;

 private:
  void work() noexcept;

  const std::string thread_name_;
  const std::uint32_t thread_count_;
  const Run run_;
  CompletionSink* sink_ = nullptr;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<IoOp> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tutti::runtime::detail
