// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "tutti/runtime/detail/paths.hpp"
#include "tutti/runtime/error.hpp"

namespace tutti::runtime::detail {
namespace {

/// Errors that can be the fault of the way to the device. The others (no room, a quota, a read-only file,
/// ...) are about the file, and another way would give the same.
bool may_be_the_path(std::int32_t error) noexcept {
  switch (error) {
    case EIO:
    case EOPNOTSUPP:
    case ENOSYS:
    case ENODEV:
    case ENXIO:
    case EINVAL:
    case EPERM:
    case EACCES:
    case EFAULT:
    case ENOMEM:
    case EBADF:
      return true;
    default:
      return false;
  }
}

/// A flush that failed has told of lost writes; asked again, it would say that all is well.
bool may_be_repeated(const IoOp& op) noexcept {
  return op.direction != Direction::kFlush || (op.status != EIO && op.status != ENOMEM);
}

class SteppingPath final : public DataPath {
 public:
  SteppingPath(std::unique_ptr<DataPath> upper, LowerRung make_lower, std::uint32_t strikes,
               std::shared_ptr<Notices> notices)
      : upper_(std::move(upper)),
        make_lower_(std::move(make_lower)),
        strikes_allowed_(strikes),
        notices_(std::move(notices)),
        upper_sink_(*this),
        lower_sink_(*this) {}
  ~SteppingPath() override { shutdown(); }

  void start(CompletionSink& sink) override {
    sink_ = &sink;
    upper_->start(upper_sink_);
  }

  std::unique_ptr<Target> open(const TargetUri& uri, bool writable) override {
    return upper_->open(uri, writable);
  }
  void register_memory(Memory& memory) override { upper_->register_memory(memory); }
  void unregister_memory(const Memory& memory) noexcept override { upper_->unregister_memory(memory); }
  int admit(const IoOp& op) noexcept override { return upper_->admit(op); }
  void submit(std::span<const IoOp> ops) override { current().submit(ops); }

  void withdraw(const OpFilter& filter, std::int32_t status) noexcept override {
    upper_->withdraw(filter, status);
    if (DataPath* lower = lower_.load(std::memory_order_acquire)) {
      lower->withdraw(filter, status);
    }
  }

  void shutdown() noexcept override {
    upper_->shutdown();
    if (owned_lower_ != nullptr) {
      owned_lower_->shutdown();
    }
  }

  DataPathCaps caps() const override {
    DataPathCaps caps = current().caps();
    std::lock_guard lock(mutex_);
    if (stepped_.load(std::memory_order_acquire)) {
      caps.stepped_down = stepped_because_;
    }
    return caps;
  }

  QueueLimits queue_limits() const noexcept override { return current().queue_limits(); }
  std::uint64_t direct_fallbacks() const noexcept override {
    const DataPath* lower = lower_.load(std::memory_order_acquire);
    return upper_->direct_fallbacks() + (lower != nullptr ? lower->direct_fallbacks() : 0);
  }
  std::uint64_t step_downs() const noexcept override { return stepped_.load() ? 1 : 0; }

 private:
  struct UpperSink final : CompletionSink {
    explicit UpperSink(SteppingPath& path) : path_(path) {}
    void complete(std::span<const IoOp> ops) noexcept override { path_.from_upper(ops); }
    SteppingPath& path_;
  };
  struct LowerSink final : CompletionSink {
    explicit LowerSink(SteppingPath& path) : path_(path) {}
    void complete(std::span<const IoOp> ops) noexcept override { path_.from_lower(ops); }
    SteppingPath& path_;
  };

  [[nodiscard]] DataPath& current() const noexcept {
    return stepped_.load(std::memory_order_acquire) ? *lower_.load(std::memory_order_acquire) : *upper_;
  }

  /// Successes go on at once; what failed is asked of the lower rung before anybody hears of it.
  void from_upper(std::span<const IoOp> ops) noexcept {
    std::size_t begin = 0;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (ops[i].status == 0) {
        strikes_.store(0, std::memory_order_relaxed);
      }
      if (may_be_the_path(ops[i].status) && may_be_repeated(ops[i]) && try_lower(ops[i])) {
        forward(ops.subspan(begin, i - begin));
        begin = i + 1;
      }
    }
    forward(ops.subspan(begin));
  }

  void forward(std::span<const IoOp> ops) noexcept {
    if (!ops.empty()) {
      sink_->complete(ops);
    }
  }

  bool try_lower(const IoOp& failed) noexcept {
    DataPath* const lower = lower_or_null();
    if (lower == nullptr) {
      return false;
    }
    IoOp op = failed;
    op.upper_error = failed.status;
    op.upper_done = failed.done;
    op.status = 0;
    op.done = 0;
    op.attempts = 0;
    op.buffered_retry = false;
    try {
      lower->submit({&op, 1});
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }

  DataPath* lower_or_null() noexcept {
    if (DataPath* lower = lower_.load(std::memory_order_acquire)) {
      return lower;
    }
    std::lock_guard lock(mutex_);
    if (owned_lower_ == nullptr && !lower_failed_) {
      try {
        auto lower = make_lower_();
        lower->start(lower_sink_);
        owned_lower_ = std::move(lower);
        lower_.store(owned_lower_.get(), std::memory_order_release);
      } catch (const std::exception&) {
        lower_failed_ = true;  // no threads or no memory: the errors stay what they are
      }
    }
    return owned_lower_.get();
  }

  /// The lower rung's word on an operation is final. That it could what the upper could not is the proof that
  /// it was not the file.
  void from_lower(std::span<const IoOp> ops) noexcept {
    std::size_t begin = 0;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (ops[i].upper_error != 0 && ops[i].status == 0) {
        strike(ops[i].upper_error);
      }
      // Both rungs began at the front: what the upper had moved is moved, however early the lower ended.
      if (ops[i].status != 0 && ops[i].upper_done > ops[i].done) {
        forward(ops.subspan(begin, i - begin));
        begin = i + 1;
        IoOp op = ops[i];
        op.done = op.upper_done;
        forward({&op, 1});
      }
    }
    forward(ops.subspan(begin));
  }

  void strike(std::int32_t error) noexcept {
    if (strikes_.fetch_add(1, std::memory_order_relaxed) + 1 < strikes_allowed_) {
      return;
    }
    std::lock_guard lock(mutex_);
    if (!stepped_.load(std::memory_order_relaxed)) {
      stepped_because_ = "the data path " + upper_->caps().name + " failed " +
                         std::to_string(strikes_allowed_) + " times in a row, at last with " +
                         std::strerror(error) + ", where " + owned_lower_->caps().name + " succeeded";
      stepped_.store(true, std::memory_order_release);
      if (notices_ != nullptr) {
        notices_->add("stepped_down", stepped_because_ + "; it is used from now on");
      }
    }
  }

  std::unique_ptr<DataPath> upper_;
  const LowerRung make_lower_;
  const std::uint32_t strikes_allowed_;
  const std::shared_ptr<Notices> notices_;
  UpperSink upper_sink_;
  LowerSink lower_sink_;
  CompletionSink* sink_ = nullptr;
  std::atomic<std::uint32_t> strikes_{0};
  std::atomic<DataPath*> lower_{nullptr};
  std::atomic<bool> stepped_{false};

  mutable std::mutex mutex_;  ///< guards what follows while it is made; never held in a data path's submit
  std::unique_ptr<DataPath> owned_lower_;
  bool lower_failed_ = false;
  std::string stepped_because_;
};

}  // namespace

std::unique_ptr<DataPath> make_stepping_path(std::unique_ptr<DataPath> upper, LowerRung make_lower,
                                             std::uint32_t strikes, std::shared_ptr<Notices> notices) {
  return std::make_unique<SteppingPath>(std::move(upper), std::move(make_lower), strikes, std::move(notices));
}

}  // namespace tutti::runtime::detail
