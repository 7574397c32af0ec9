// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cerrno>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "tutti/runtime/detail/file_op.hpp"
#include "tutti/runtime/detail/op_pool.hpp"
#include "tutti/runtime/detail/paths.hpp"
#include "tutti/runtime/error.hpp"

namespace tutti::runtime::detail {
namespace {

std::int64_t issue(const IoOp& op) noexcept {
  const int fd = file_of(op).fd();
  std::byte* address = op.address + op.done;
  const std::uint64_t left = op.length - op.done;
  const auto offset = static_cast<off_t>(file_offset(op));
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
  PosixPath(FileSettings files, std::uint32_t threads) : opener_(std::move(files)), threads_(threads) {}

  void start(CompletionSink& sink) override {
    sink_ = &sink;
    pools_.push_back(make_pool());
  }

  std::unique_ptr<Target> open(const TargetUri& uri, bool writable) override {
    return opener_.open(uri, writable);
  }

  void submit(std::span<const IoOp> ops) override {
    std::size_t begin = 0;
    try {
      for (std::size_t i = 1; i <= ops.size(); ++i) {
        if (i == ops.size() || ops[i].target->root() != ops[begin].target->root()) {
          pool_of(ops[begin].target->root()).submit(ops.subspan(begin, i - begin));
          begin = i;
        }
      }
    } catch (const std::bad_alloc&) {
      if (begin == 0) {
        throw;
      }
      for (IoOp op : ops.subspan(begin)) {  // some are taken already, so all are
        op.status = ENOMEM;
        sink_->complete({&op, 1});
      }
    }
  }

  void withdraw(const OpFilter& filter, std::int32_t status) noexcept override {
    for (OpPool* pool : all_pools()) {
      pool->withdraw(filter, status);
    }
  }

  void shutdown() noexcept override {
    for (OpPool* pool : all_pools()) {
      pool->shutdown();
    }
  }

  DataPathCaps caps() const override {
    return {"posix", opener_.policy_name(), {}, {}, opener_.max_open_files(), {}};
  }
  // One waits for each that runs, so that no thread has to.
  QueueLimits queue_limits() const noexcept override {
    return {std::uint64_t{2} * threads_, std::uint64_t{2} * threads_ * kMaxPools};
  }
  std::uint64_t direct_fallbacks() const noexcept override { return opener_.fallbacks(); }

 private:
  [[nodiscard]] std::unique_ptr<OpPool> make_pool() {
    auto pool = std::make_unique<OpPool>("tutti-posix", threads_, [this](IoOp& op) { run(op); });
    pool->start(*sink_);
    return pool;
  }

  /// Threads of its own for each root: those of a drive that hangs are lost to that drive only.
  OpPool& pool_of(std::uint64_t root) {
    std::lock_guard lock(mutex_);
    const auto place = pool_of_root_.find(root);
    if (place != pool_of_root_.end()) {
      return *pools_[place->second];
    }
    std::size_t index = pool_of_root_.size() % kMaxPools;
    if (index >= pools_.size()) {
      try {
        pools_.push_back(make_pool());
        index = pools_.size() - 1;
      } catch (const SystemError&) {
        index = 0;  // no more threads to be had: it shares the first ones
      }
    }
    pool_of_root_[root] = index;
    return *pools_[index];
  }

  [[nodiscard]] std::vector<OpPool*> all_pools() const {
    std::lock_guard lock(mutex_);
    std::vector<OpPool*> pools;
    pools.reserve(pools_.size());
    for (const auto& pool : pools_) {
      pools.push_back(pool.get());
    }
    return pools;
  }

  void run(IoOp& op) noexcept {
    FileTarget& file = file_of(op);
    op.status = file.begin_use(op.direction, Patience::kWait);
    if (op.status != 0) {
      return;
    }
    while (advance(op, issue(op), opener_) == Step::kAgain) {
    }
    file.end_use(op.direction, op.status == 0);
  }

  static constexpr std::size_t kMaxPools = 16;

  FileOpener opener_;
  const std::uint32_t threads_;
  CompletionSink* sink_ = nullptr;
  mutable std::mutex mutex_;  ///< guards the next two
  std::map<std::uint64_t, std::size_t> pool_of_root_;
  std::vector<std::unique_ptr<OpPool>> pools_;  // last: their threads use the opener
};

}  // namespace

std::unique_ptr<DataPath> make_posix_path(FileSettings files, std::uint32_t threads) {
  return std::make_unique<PosixPath>(std::move(files), threads);
}

}  // namespace tutti::runtime::detail
