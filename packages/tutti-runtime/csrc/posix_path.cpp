// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "tutti/runtime/detail/file_op.hpp"
#include "tutti/runtime/detail/io_thread.hpp"
#include "tutti/runtime/detail/paths.hpp"
#include "tutti/runtime/error.hpp"

namespace tutti::runtime::detail {
namespace {

std::int64_t issue(const IoOp& op) noexcept {
  const int fd = file_of(op).fd();
  std::byte* address = op.address + op.done;
  const std::uint64_t left = op.length - op.done;
  const auto offset = static_cast<off_t>(op.target_offset + op.done);
  ssize_t result = 0;
  switch (op.direction) {
    case Direction::kRead:
      result = ::pread(fd, address, left, offset);
      break;
    case Direction::kWrite:
      result = ::pwrite(fd, address, left, offset);
      break;
    case Direction::kFlush:
      result = ::fdatasync(fd);
      break;
  }
  return result < 0 ? -static_cast<std::int64_t>(errno) : result;
}

class PosixPath final : public DataPath {
 public:
  PosixPath(DirectPolicy direct, std::uint32_t threads) : opener_(direct), thread_count_(threads) {}
  ~PosixPath() override { shutdown(); }

  void start(CompletionSink& sink) override {
    sink_ = &sink;
    try {
      for (std::uint32_t i = 0; i < thread_count_; ++i) {
        threads_.push_back(start_io_thread("tutti-posix", [this] { work(); }));
      }
    } catch (const std::system_error& error) {
      shutdown();
      throw SystemError(error.code().value(), "cannot start " + std::to_string(thread_count_) +
                                                  " I/O threads: " + error.code().message());
    }
  }

  std::unique_ptr<Target> open(const TargetUri& uri, bool writable) override {
    return opener_.open(uri, writable);
  }

  void submit(std::span<const IoOp> ops) override {
    {
      std::lock_guard lock(mutex_);
      queue_.insert(queue_.end(), ops.begin(), ops.end());
    }
    ops.size() == 1 ? wake_.notify_one() : wake_.notify_all();
  }

  void shutdown() noexcept override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) {
      thread.join();
    }
    threads_.clear();
  }

  DataPathCaps caps() const override { return {"posix", opener_.policy_name(), {}, {}}; }
  std::uint64_t direct_fallbacks() const noexcept override { return opener_.fallbacks(); }

 private:
  void work() noexcept {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) {
        return;
      }
      IoOp op = queue_.front();
      queue_.pop_front();
      lock.unlock();
      while (advance(op, issue(op), opener_) == Step::kAgain) {
      }
      sink_->complete({&op, 1});
      lock.lock();
    }
  }

  FileOpener opener_;
  const std::uint32_t thread_count_;
  CompletionSink* sink_ = nullptr;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<IoOp> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<DataPath> make_posix_path(DirectPolicy direct, std::uint32_t threads) {
  return std::make_unique<PosixPath>(direct, threads);
}

}  // namespace tutti::runtime::detail
