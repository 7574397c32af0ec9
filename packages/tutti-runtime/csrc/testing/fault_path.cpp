// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <map>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "tutti/runtime/detail/io_thread.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/testing/fault_path.hpp"

namespace tutti::runtime::testing {
namespace {

constexpr std::chrono::milliseconds kGatherTime{2};

void check(bool good, const char* key, double value, const char* rule) {
  if (!good) {
    throw InvalidArgument(std::string(key) + "=" + std::to_string(value) + " " + rule);
  }
}

void check_plan(const FaultPlan& plan) {
  check(std::isfinite(plan.bandwidth) && plan.bandwidth >= 0, "bandwidth", plan.bandwidth,
        "must be 0 or more");
  check(std::isfinite(plan.write_cost) && plan.write_cost > 0, "write_cost", plan.write_cost,
        "must be more than 0");
  for (const FaultRule& rule : plan.rules) {
    check(rule.every > 0, "every", 0, "must be 1 or more");
    check(std::isfinite(rule.delay_max) && rule.delay_min >= 0 && rule.delay_min <= rule.delay_max, "delay",
          rule.delay_min, "must be 0 or more, and not above its upper end");
    check(rule.error >= 0 && rule.error < 4096, "error", rule.error, "must be an errno or 0");
    check(rule.short_bytes.value_or(0) % kIoAlignment == 0, "short",
          static_cast<double>(rule.short_bytes.value_or(0)), "must be a multiple of 4096");
  }
}

Clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(Duration(seconds));
}

/// An operation that was asked to move less than its length.
struct Shortened {
  IoOp op;
  std::uint64_t length;
};

bool same(const IoOp& a, const IoOp& b) {
  return a.batch == b.batch && a.item == b.item && a.target == b.target && a.target_offset == b.target_offset;
}

}  // namespace

FaultControl::FaultControl(FaultPlan plan) { set_plan(std::move(plan)); }

void FaultControl::set_plan(FaultPlan plan) {
  check_plan(plan);
  std::lock_guard lock(mutex_);
  rules_.clear();
  for (const FaultRule& rule : plan.rules) {
    rules_.push_back({rule});
  }
  plan_ = std::move(plan);
  ++version_;
  changed_.notify_all();
}

void FaultControl::release() {
  std::lock_guard lock(mutex_);
  ++releases_;
  changed_.notify_all();
}

std::size_t FaultControl::held() const {
  std::lock_guard lock(mutex_);
  return held_;
}

bool FaultControl::wait_held(std::size_t count, Duration timeout) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] { return held_ >= count; });
}

/// Everything that is held back is in one list, guarded by the control's lock; a thread of its own lets it
/// go.
class FaultPath final : public DataPath, private CompletionSink {
 public:
  // NOLINTNEXTLINE(bugprone-random-generator-seed): every plan seeds it, so that a run can be repeated
  FaultPath(std::unique_ptr<DataPath> next, std::shared_ptr<FaultControl> control)
      : next_(std::move(next)), control_(std::move(control)) {}
  ~FaultPath() override { shutdown(); }

  void start(CompletionSink& sink) override {
    sink_ = &sink;
    next_->start(*this);
    thread_ = detail::start_io_thread("tutti-fault", [this] { work(); });
  }

  std::unique_ptr<Target> open(const TargetUri& uri, bool writable) override {
    return next_->open(uri, writable);
  }
  void register_memory(Memory& memory) override { next_->register_memory(memory); }
  void unregister_memory(const Memory& memory) noexcept override { next_->unregister_memory(memory); }

  int admit(const IoOp& op) noexcept override {
    {
      std::lock_guard lock(control_->mutex_);
      if (op.item >= control_->plan_.accept) {
        return EAGAIN;
      }
    }
    return next_->admit(op);
  }

  void submit(std::span<const IoOp> ops) override {
    std::vector<IoOp> now;
    std::vector<IoOp> failed;
    now.reserve(ops.size());
    failed.reserve(ops.size());
    {
      std::lock_guard lock(control_->mutex_);
      follow_plan();
      waiting_.reserve(waiting_.size() + ops.size());
      shortened_.reserve(shortened_.size() + ops.size());
      for (const IoOp& op : ops) {
        sort(op, now, failed);
      }
      note_held();
    }
    if (!failed.empty()) {
      sink_->complete(failed);
    }
    if (!now.empty()) {
      pass_on(now);
    }
  }

  /// What is held back counts as begun: it plays a device that has it.
  void withdraw(const OpFilter& filter, std::int32_t status) noexcept override {
    next_->withdraw(filter, status);
  }

  void shutdown() noexcept override {
    {
      std::lock_guard lock(control_->mutex_);
      stopping_ = true;
      control_->changed_.notify_all();
    }
    if (thread_.joinable()) {
      thread_.join();
    }
    next_->shutdown();
  }

  DataPathCaps caps() const override { return next_->caps(); }
  QueueLimits queue_limits() const noexcept override { return next_->queue_limits(); }
  std::uint64_t direct_fallbacks() const noexcept override { return next_->direct_fallbacks(); }

 private:
  struct Waiting {
    IoOp op;
    TimePoint due;
    bool hangs = false;
    std::uint64_t releases = 0;  ///< how many there had been when it began to hang
    std::int32_t error = 0;
    bool gathered = false;  ///< waits for company, to be begun in random order
  };

  // --- with the control's lock held

  void follow_plan() {
    if (version_ != control_->version_) {
      version_ = control_->version_;
      random_.seed(control_->plan_.seed);
      busy_until_.clear();
    }
  }

  FaultRule const* match(const IoOp& op) {
    for (FaultControl::Rule& each : control_->rules_) {
      const FaultRule& rule = each.rule;
      if ((rule.direction && *rule.direction != op.direction) || (rule.item && *rule.item != op.item) ||
          (!rule.target.empty() && op.target->info().path.find(rule.target) == std::string::npos)) {
        continue;
      }
      const std::uint64_t number = each.seen++;
      if (number < rule.skip || (number - rule.skip) % rule.every != 0 || each.hit >= rule.times) {
        continue;
      }
      ++each.hit;
      return &rule;
    }
    return nullptr;
  }

  void sort(const IoOp& op, std::vector<IoOp>& now, std::vector<IoOp>& failed) {
    const FaultPlan& plan = control_->plan_;
    const TimePoint begin = Clock::now();
    Waiting wait{op, begin};
    if (const FaultRule* rule = match(op)) {
      if (rule->delay_max > 0) {
        std::uniform_real_distribution<double> seconds(rule->delay_min, rule->delay_max);
        wait.due += to_duration(rule->delay_min == rule->delay_max ? rule->delay_min : seconds(random_));
      }
      wait.hangs = rule->hang;
      wait.releases = control_->releases_;
      wait.error = rule->error;
      shorten(*rule, wait);
    }
    if (plan.bandwidth > 0 && op.direction != Direction::kFlush) {
      const std::uint64_t key =
          plan.per_target ? reinterpret_cast<std::uint64_t>(op.target) : op.target->root();
      TimePoint& busy = busy_until_[key];
      const double cost = op.direction == Direction::kWrite ? plan.write_cost : 1.0;
      busy = std::max(busy, begin) + to_duration(static_cast<double>(op.length) * cost / plan.bandwidth);
      wait.due = std::max(wait.due, busy);
    }
    if (plan.reorder > 1 && !wait.hangs) {
      wait.gathered = true;
      wait.due = std::max(wait.due, begin + kGatherTime);
    }
    if (wait.hangs || wait.due > begin) {
      waiting_.push_back(wait);
    } else if (wait.error != 0) {
      failed.push_back(restored(wait.op));
      failed.back().status = wait.error;
    } else {
      now.push_back(wait.op);
    }
  }

  void shorten(const FaultRule& rule, Waiting& wait) {
    if (!rule.short_bytes || wait.op.direction == Direction::kFlush || *rule.short_bytes >= wait.op.length) {
      return;
    }
    shortened_.push_back({wait.op, wait.op.length});
    wait.op.length = *rule.short_bytes;
    if (wait.op.length == 0) {
      wait.error = EIO;
    }
  }

  /// The operation as it came.
  IoOp restored(IoOp op) {
    const auto place = std::find_if(shortened_.begin(), shortened_.end(),
                                    [&](const Shortened& each) { return same(each.op, op); });
    if (place != shortened_.end()) {
      op.length = place->length;
      shortened_.erase(place);
    }
    return op;
  }

  void note_held() {
    control_->held_ = waiting_.size();
    control_->changed_.notify_all();
  }

  /// Takes what may go on now out of the list; says when the next may.
  TimePoint take_due(std::vector<IoOp>& go, std::vector<IoOp>& failed) {
    const TimePoint now = Clock::now();
    std::size_t gathered = 0;
    for (const Waiting& each : waiting_) {
      gathered += each.gathered ? 1 : 0;
    }
    const bool enough = gathered >= control_->plan_.reorder;
    TimePoint next = TimePoint::max();
    const auto stays = [&](const Waiting& each) {
      if (each.hangs && each.releases == control_->releases_) {
        return true;
      }
      if (each.due > now && !(each.gathered && enough && each.due <= now + kGatherTime)) {
        next = std::min(next, each.due);
        return true;
      }
      return false;
    };
    const auto gone = std::stable_partition(waiting_.begin(), waiting_.end(), stays);
    std::vector<Waiting> due(gone, waiting_.end());
    waiting_.erase(gone, waiting_.end());
    if (std::any_of(due.begin(), due.end(), [](const Waiting& each) { return each.gathered; })) {
      std::shuffle(due.begin(), due.end(), random_);
    }
    for (const Waiting& each : due) {
      if (each.error != 0) {
        failed.push_back(restored(each.op));
        failed.back().status = each.error;
      } else {
        go.push_back(each.op);
      }
    }
    return next;
  }

  // --- without it

  void work() noexcept {
    std::unique_lock lock(control_->mutex_);
    while (!stopping_) {
      follow_plan();
      std::vector<IoOp> go;
      std::vector<IoOp> failed;
      const TimePoint next = take_due(go, failed);
      if (go.empty() && failed.empty()) {
        next == TimePoint::max() ? control_->changed_.wait(lock)
                                 : static_cast<void>(control_->changed_.wait_until(lock, next));
        continue;
      }
      note_held();
      lock.unlock();
      if (!failed.empty()) {
        sink_->complete(failed);
      }
      for (const IoOp& op : go) {  // one by one, so that the order is the one they were given
        pass_on({&op, 1});
      }
      lock.lock();
    }
  }

  void pass_on(std::span<const IoOp> ops) noexcept {
    try {
      next_->submit(ops);
    } catch (const std::bad_alloc&) {
      std::vector<IoOp> failed(ops.begin(), ops.end());
      for (IoOp& op : failed) {
        op.status = ENOMEM;
      }
      complete(failed);
    }
  }

  void complete(std::span<const IoOp> ops) noexcept override {
    std::vector<IoOp> finished;
    {
      std::lock_guard lock(control_->mutex_);
      if (!shortened_.empty()) {
        finished.assign(ops.begin(), ops.end());
        for (IoOp& op : finished) {
          const std::uint64_t asked = op.length;
          op = restored(op);
          op.status = op.status == 0 && op.length != asked ? EIO : op.status;
        }
      }
    }
    sink_->complete(finished.empty() ? ops : finished);
  }

  std::unique_ptr<DataPath> next_;
  std::shared_ptr<FaultControl> control_;
  CompletionSink* sink_ = nullptr;
  std::thread thread_;

  // Guarded by the control's lock.
  std::vector<Waiting> waiting_;
  std::vector<Shortened> shortened_;
  std::map<std::uint64_t, TimePoint> busy_until_;
  std::mt19937_64 random_;
  std::uint64_t version_ = 0;
  bool stopping_ = false;
};

std::unique_ptr<DataPath> make_fault_path(std::unique_ptr<DataPath> next,
                                          std::shared_ptr<FaultControl> control) {
  return std::make_unique<FaultPath>(std::move(next), std::move(control));
}

}  // namespace tutti::runtime::testing
