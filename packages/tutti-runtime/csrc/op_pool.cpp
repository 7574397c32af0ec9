// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/detail/op_pool.hpp"

#include <algorithm>
#include <system_error>

#include "tutti/runtime/detail/io_thread.hpp"
#include "tutti/runtime/error.hpp"

namespace tutti::runtime::detail {

void OpPool::start(CompletionSink& sink) {
  sink_ = &sink;
  try {
    for (std::uint32_t i = 0; i < thread_count_; ++i) {
      threads_.push_back(start_io_thread(thread_name_.c_str(), [this] { work(); }));
    }
  } catch (const std::system_error& error) {
    shutdown();
    throw SystemError(error.code().value(), "cannot start " + std::to_string(thread_count_) +
                                                " I/O threads: " + error.code().message());
  }
}

void OpPool::submit(std::span<const IoOp> ops) {
  {
    const std::lock_guard lock(mutex_);
    queue_.insert(queue_.end(), ops.begin(), ops.end());
  }
  ops.size() == 1 ? wake_.notify_one() : wake_.notify_all();
}

void OpPool::withdraw(const OpFilter& filter, std::int32_t status) noexcept {
  std::vector<IoOp> ended;
  {
    const std::lock_guard lock(mutex_);
    const auto gone =
        std::stable_partition(queue_.begin(), queue_.end(), [&](const IoOp& op) { return !filter(op); });
    ended.assign(gone, queue_.end());
    queue_.erase(gone, queue_.end());
  }
  for (IoOp& op : ended) {
    op.status = status;
  }
  if (!ended.empty()) {
    sink_->complete(ended);
  }
}

void OpPool::shutdown() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
  threads_.clear();
}

void OpPool::work() noexcept {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) {
      return;
    }
    IoOp op = queue_.front();
    queue_.pop_front();
    lock.unlock();
    run_(op);
    sink_->complete({&op, 1});
    lock.lock();
  }
}

}  // namespace tutti::runtime::detail
