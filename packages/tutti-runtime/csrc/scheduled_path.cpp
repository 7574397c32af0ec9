// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tutti/runtime/detail/io_thread.hpp"
#include "tutti/runtime/detail/paths.hpp"
#include "tutti/runtime/detail/write_pacer.hpp"

namespace tutti::runtime::detail {
namespace {

// What a flush costs is not known beforehand; it is paced like a small write.
constexpr std::uint64_t kFlushCost = 64 * 1024;

std::uint64_t cost_of(const IoOp& op) noexcept {
  return op.direction == Direction::kFlush ? kFlushCost : op.length;
}

struct WaitingWrite {
  IoOp op;
  TimePoint since;
};

/// One drive.
struct Root {
  std::deque<IoOp> reads;
  std::deque<WaitingWrite> writes;  ///< and flushes
  std::uint64_t reads_in_flight = 0;
  std::uint64_t writes_in_flight = 0;
  std::uint64_t write_bytes_in_flight = 0;
  WritePacer pacer;

  [[nodiscard]] std::uint64_t in_flight() const noexcept { return reads_in_flight + writes_in_flight; }
  [[nodiscard]] bool idle() const noexcept { return reads.empty() && writes.empty() && in_flight() == 0; }

  [[nodiscard]] WritePacer::View view() const noexcept {
    WritePacer::View view{!reads.empty(), reads_in_flight, write_bytes_in_flight, writes_in_flight, 0, {}};
    if (!writes.empty()) {
      view.next_bytes = cost_of(writes.front().op);
      view.next_since = writes.front().since;
    }
    return view;
  }
};

class ScheduledPath final : public DataPath, private CompletionSink {
 public:
  ScheduledPath(std::unique_ptr<DataPath> next, const WritePolicy& policy)
      : next_(std::move(next)), policy_(policy) {}
  ~ScheduledPath() override { stop_timer(); }

  void start(CompletionSink& sink) override {
    sink_ = &sink;
    next_->start(*this);
  }

  std::unique_ptr<Target> open(const TargetUri& uri, bool writable) override {
    return next_->open(uri, writable);
  }
  void register_memory(Memory& memory) override { next_->register_memory(memory); }
  void unregister_memory(const Memory& memory) noexcept override { next_->unregister_memory(memory); }
  int admit(const IoOp& op) noexcept override { return next_->admit(op); }

  void submit(std::span<const IoOp> ops) override {
    if (!ops.empty() && ops.front().on_stream) {
      next_->submit(ops);  // its stream says when each begins; to wait here would put it out of that order
      return;
    }
    std::size_t taken = 0;
    {
      std::unique_lock lock(mutex_);
      const TimePoint now = Clock::now();
      try {
        for (; taken < ops.size(); ++taken) {
          enqueue(ops[taken], now);
        }
      } catch (const std::bad_alloc&) {
        if (taken == 0) {
          throw;
        }
      }
      pump(lock);
    }
    fail(ops.subspan(taken), ENOMEM);
  }

  void withdraw(const OpFilter& filter, std::int32_t status) noexcept override {
    std::vector<IoOp> ended;
    {
      std::unique_lock lock(mutex_);
      for (auto& [id, root] : roots_) {
        take_out(root, filter, ended);
      }
      if (!ended.empty()) {
        pump(lock);  // what stood behind a large write may go now
      }
    }
    fail(ended, status);
    next_->withdraw(filter, status);
  }

  void set_write_policy(const WritePolicy& policy) noexcept override {
    std::unique_lock lock(mutex_);
    policy_ = policy;
    pump(lock);
  }

  void shutdown() noexcept override {
    stop_timer();
    next_->shutdown();
  }

  DataPathCaps caps() const override {
    DataPathCaps caps = next_->caps();
    caps.features_used["scheduling"] = "per root: reads before writes, writes paced while there are reads";
    return caps;
  }
  QueueLimits queue_limits() const noexcept override { return {}; }
  std::uint64_t direct_fallbacks() const noexcept override { return next_->direct_fallbacks(); }
  std::uint64_t step_downs() const noexcept override { return next_->step_downs(); }

 private:
  void enqueue(const IoOp& op, TimePoint now) {
    Root& root = roots_[op.target->root()];
    if (op.direction == Direction::kRead) {
      root.reads.push_back(op);
    } else {
      root.writes.push_back({op, now});
    }
  }

  void fail(std::span<const IoOp> ops, std::int32_t status) noexcept {
    for (IoOp op : ops) {
      op.status = status;
      op.done = 0;
      sink_->complete({&op, 1});
    }
  }

  static void take_out(Root& root, const OpFilter& filter, std::vector<IoOp>& ended) {
    const auto read = std::stable_partition(root.reads.begin(), root.reads.end(),
                                            [&](const IoOp& op) { return !filter(op); });
    ended.insert(ended.end(), read, root.reads.end());
    root.reads.erase(read, root.reads.end());
    const auto write = std::stable_partition(root.writes.begin(), root.writes.end(),
                                             [&](const WaitingWrite& each) { return !filter(each.op); });
    for (auto each = write; each != root.writes.end(); ++each) {
      ended.push_back(each->op);
    }
    root.writes.erase(write, root.writes.end());
  }

  /// Hands on what may begin. Only one thread at a time does, and a data path that completes operations
  /// within submit() does not recurse: whoever finds another at it leaves the work to it.
  void pump(std::unique_lock<std::mutex>& lock) noexcept {
    again_ = true;
    if (pumping_) {
      return;
    }
    pumping_ = true;
    while (again_) {
      again_ = false;
      std::vector<IoOp> ready;
      const TimePoint wake = collect(ready);
      set_timer(wake);
      if (ready.empty()) {
        continue;
      }
      lock.unlock();
      pass_on(ready);
      lock.lock();
    }
    pumping_ = false;
  }

  void pass_on(std::vector<IoOp>& ready) noexcept {
    try {
      next_->submit(ready);
    } catch (const std::bad_alloc&) {
      for (IoOp& op : ready) {
        op.status = ENOMEM;
      }
      complete(ready);
    }
  }

  /// Moves what may begin from the queues to `ready`. @returns when to look again, without a completion.
  TimePoint collect(std::vector<IoOp>& ready) noexcept {
    const QueueLimits limits = next_->queue_limits();
    std::uint64_t active = 0;
    for (const auto& [id, root] : roots_) {
      active += root.idle() ? 0 : 1;
    }
    std::uint64_t depth = limits.per_root;
    if (active * depth > limits.total) {
      depth = std::max<std::uint64_t>(1, limits.total / std::max<std::uint64_t>(1, active));
    }
    TimePoint wake = TimePoint::max();
    for (auto& [id, root] : roots_) {
      wake = std::min(wake, collect(root, depth, ready));
    }
    return wake;
  }

  /// Reads first, but the last free place is for a write that the policy lets go now: reads that keep coming
  /// would else take every place that falls free.
  TimePoint collect(Root& root, std::uint64_t depth, std::vector<IoOp>& ready) noexcept {
    const TimePoint now = root.writes.empty() ? TimePoint{} : Clock::now();
    while (root.in_flight() < depth) {
      TimePoint when = TimePoint::max();
      if (!root.writes.empty() && (root.reads.empty() || root.in_flight() + 1 == depth)) {
        when = root.pacer.when(policy_, root.view(), now);
        if (when <= now) {
          begin_write(root, now, ready);
          continue;
        }
      }
      if (root.reads.empty()) {
        return when;
      }
      ready.push_back(root.reads.front());
      root.reads.pop_front();
      ++root.reads_in_flight;
    }
    return TimePoint::max();
  }

  void begin_write(Root& root, TimePoint now, std::vector<IoOp>& ready) noexcept {
    const WritePacer::View view = root.view();
    root.pacer.began(policy_, view, now);
    ready.push_back(root.writes.front().op);
    root.writes.pop_front();
    ++root.writes_in_flight;
    root.write_bytes_in_flight += view.next_bytes;
  }

  void complete(std::span<const IoOp> ops) noexcept override {
    {
      std::unique_lock lock(mutex_);
      TimePoint now{};
      for (const IoOp& op : ops) {
        if (op.on_stream) {
          continue;  // never counted
        }
        Root& root = roots_[op.target->root()];
        if (op.direction == Direction::kRead) {
          now = now == TimePoint{} ? Clock::now() : now;
          --root.reads_in_flight;
          root.pacer.read_finished(policy_, op.length, now);
        } else {
          --root.writes_in_flight;
          root.write_bytes_in_flight -= cost_of(op);
        }
      }
      pump(lock);
    }
    sink_->complete(ops);
  }

  // --- a thread that looks again when time has passed and nothing else happened

  void set_timer(TimePoint wake) noexcept {
    const bool sooner = wake < wake_;
    wake_ = wake;
    if (wake == TimePoint::max() || stopping_) {
      return;
    }
    if (!timer_.joinable()) {
      try {
        timer_ = start_io_thread("tutti-schedule", [this] { run_timer(); });
      } catch (const std::system_error&) {
        policy_.share = 1;  // without a clock nothing may wait for one
        policy_.idle_after = 0;
        policy_.rate = 0;
        again_ = true;
      }
    } else if (sooner) {
      timer_wake_.notify_one();
    }
  }

  void run_timer() noexcept {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      if (wake_ == TimePoint::max()) {
        timer_wake_.wait(lock);
      } else if (Clock::now() < wake_) {
        timer_wake_.wait_until(lock, TimePoint(wake_));
      } else {
        wake_ = TimePoint::max();
        pump(lock);
      }
    }
  }

  void stop_timer() noexcept {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      timer_wake_.notify_all();
    }
    if (timer_.joinable()) {
      timer_.join();
    }
  }

  std::unique_ptr<DataPath> next_;
  CompletionSink* sink_ = nullptr;
  std::thread timer_;

  std::mutex mutex_;  ///< guards everything below
  std::unordered_map<std::uint64_t, Root> roots_;
  WritePolicy policy_;
  bool pumping_ = false;
  bool again_ = false;
  bool stopping_ = false;
  TimePoint wake_ = TimePoint::max();
  std::condition_variable timer_wake_;
};

}  // namespace

std::unique_ptr<DataPath> make_scheduled_path(std::unique_ptr<DataPath> next, const WritePolicy& policy) {
  return std::make_unique<ScheduledPath>(std::move(next), policy);
}

}  // namespace tutti::runtime::detail
