// SPDX-License-Identifier: Apache-2.0
// Dependencies, deadlines and cancellation: what a batch waits for before the device, and what ends it early.
#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "tutti/runtime/detail/cuda_stream.hpp"
#include "tutti/runtime/detail/io_thread.hpp"
#include "tutti/runtime/detail/runtime_util.hpp"
#include "tutti/runtime/storage_runtime.hpp"

namespace tutti::runtime {
namespace {

using std::chrono::microseconds;

}  // namespace

void StorageRuntime::check_options(const SubmitOptions& options, std::size_t count) const {
  if (options.after != nullptr && options.after_word) {
    throw InvalidArgument("after and after_word are both given; give one");
  }
  if (options.on_device && !device_execution_) {
    const DataPathCaps caps = path_->caps();
    const auto why = caps.features_unused.find("device_execution");
    throw InvalidArgument(
        "execution='device': caps()[\"device_execution\"] is False for the data path " + caps.name + " (" +
        (why != caps.features_unused.end() ? why->second : "no device submits for it") + "); use 'host'");
  }
  if (options.stream) {
    check_stream(options);
  }
  if (options.gate != nullptr && options.gate_word) {
    throw InvalidArgument("gate and gate_word are both given; give one");
  }
  if (options.deadline && !options.deadlines.empty()) {
    throw InvalidArgument("deadline and deadlines are both given; give one");
  }
  if (!options.deadlines.empty() && options.deadlines.size() != count) {
    throw InvalidArgument("deadlines has " + std::to_string(options.deadlines.size()) +
                          " entries and must have one for each of the " + std::to_string(count) +
                          " requests");
  }
}

void StorageRuntime::check_stream(const SubmitOptions& options) const {
  if (options.after != nullptr || options.after_word) {
    throw InvalidArgument(
        "stream and after are both given; the stream's own order is what the batch waits for");
  }
  if (!stream_ordered_) {
    throw InvalidArgument(
        "stream=" + std::to_string(*options.stream) +
        ": this data path takes no stream (caps()[\"stream_ordered\"] is False); use after= "
        "and gate=");
  }
  detail::require_no_capture(*options.stream);
}

Memory& StorageRuntime::find_word(const MemoryWord& word, std::uint64_t bytes, const char* name) {
  std::unique_ptr<Memory>* const memory = memories_.find(word.memory);
  if (memory == nullptr) {
    detail::bad_handle("memory", word.memory);
  }
  if ((*memory)->kind == MemoryKind::kDevice) {
    throw InvalidArgument(std::string(name) + " memory=" + std::to_string(word.memory) +
                          " is device memory; a word must be in host memory, which the CPU reads and writes");
  }
  const std::uint64_t size = (*memory)->size;
  if (word.offset % 8 != 0 || word.offset > size - bytes) {
    throw InvalidArgument(std::string(name) + " offset=" + std::to_string(word.offset) +
                          " must be a multiple of 8 with " + std::to_string(bytes) +
                          " bytes behind it in the memory, which has size=" + std::to_string(size));
  }
  return **memory;
}

std::uint64_t StorageRuntime::word_address(std::uint64_t memory, std::uint64_t offset, std::uint64_t bytes) {
  require_owner();
  const std::lock_guard lock(mutex_);
  check_usable();
  return reinterpret_cast<std::uint64_t>(find_word({memory, offset, 0}, bytes, "word").address) + offset;
}

/// Resolves words and makes what the batch needs, with an entry in `held` if it has to wait; takes nothing
/// yet.
void StorageRuntime::set_ordering(const SubmitOptions& options, const std::shared_ptr<Batch>& batch,
                                  std::list<HeldOps>& held) {
  batch->gate = options.gate;
  if (options.gate_word) {
    Memory& memory = find_word(*options.gate_word, 16, "gate");
    const auto address = reinterpret_cast<std::uint64_t>(memory.address) + options.gate_word->offset;
    batch->gate = std::make_shared<HostWordGate>(address, address + 8, options.gate_word->value);
    batch->gate_memory = &memory;
  }
  HeldOps waiting;
  waiting.after = options.after;
  if (options.after_word) {
    Memory& memory = find_word(*options.after_word, 8, "after");
    const auto address = reinterpret_cast<std::uint64_t>(memory.address) + options.after_word->offset;
    waiting.after = std::make_shared<HostWordDependency>(address, options.after_word->value);
    waiting.word_memory = &memory;
    if (waiting.after->query() == 0) {  // as one look at a word costs nothing, spares a change of threads
      waiting.after.reset();
    }
  }
  if (waiting.after != nullptr) {
    waiting.since = Clock::now();
    held.push_back(std::move(waiting));
  }
  const bool has_deadline = options.deadline || !options.deadlines.empty();
  if (has_deadline) {
    batch->timer = timers_.emplace(TimePoint::max(), batch.get());
  }
  if (!held.empty() || has_deadline) {
    try {
      start_progress_thread();
    } catch (...) {
      forget_timer(*batch);
      throw;
    }
  }
}

bool StorageRuntime::open_gate(Batch& batch) noexcept {
  if (batch.gate == nullptr) {
    return false;
  }
  batch.gate->open(batch.first_error());
  batch.gate.reset();
  return true;
}

void StorageRuntime::forget_timer(Batch& batch) noexcept {
  if (batch.timer) {
    timers_.erase(*batch.timer);
    batch.timer.reset();
  }
}

/// Moves the timer to the next deadline of an item without a result; the node is used again.
void StorageRuntime::arm_timer(Batch& batch) noexcept {
  auto node = timers_.extract(*batch.timer);
  node.key() = batch.next_deadline();
  batch.timer = timers_.insert(std::move(node));
  if (*batch.timer == timers_.begin()) {
    progress_wake_.notify_all();
  }
}

void StorageRuntime::set_deadlines(const SubmitOptions& options, std::span<const std::int32_t> errors,
                                   Batch& batch) {
  if (options.deadline) {
    batch.deadline = *options.deadline;
  }
  for (std::size_t i = 0; i < options.deadlines.size(); ++i) {
    if (errors[i] == 0) {
      batch.deadlines.push_back(options.deadlines[i]);  // reserve_for() made room
    }
  }
  if (batch.timer) {
    arm_timer(batch);
  }
}

void StorageRuntime::start_progress_thread() {
  if (progress_thread_.joinable()) {
    return;
  }
  try {
    progress_thread_ = detail::start_io_thread("tutti-progress", [this] { progress(); });
  } catch (const std::system_error& error) {
    throw SystemError(error.code().value(), "cannot start the progress thread: " + error.code().message());
  }
}

void StorageRuntime::progress() noexcept {
  ::prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);  // nanoseconds; the default of 50 us is longer than a poll
  std::unique_lock lock(mutex_);
  while (!progress_stops_) {
    expire(lock);
    poll_words(lock);
    poll_others(lock);
    if (progress_stops_) {  // said while the lock was released
      return;
    }
    TimePoint until = timers_.empty() ? TimePoint::max() : timers_.begin()->first;
    const TimePoint now = Clock::now();
    if (!held_.empty()) {
      until = std::min(until, now + pause());
    }
    if (progress_stops_) {
      return;  // said while expire() or one of the others had let go of the lock: nobody wakes it again
    }
    if (until == TimePoint::max()) {
      progress_wake_.wait(lock);
    } else if (until > now) {
      progress_wake_.wait_until(lock, until);
    }
  }
}

/// How long to leave what is waited for alone: short while a batch is young, because a copy on a GPU takes
/// less than a millisecond; long when nothing has moved for a while.
Clock::duration StorageRuntime::pause() const noexcept {
  const TimePoint now = Clock::now();
  const TimePoint newest = held_.back().since;
  if (now - newest < std::chrono::milliseconds(2)) {
    return microseconds(20);
  }
  const bool moves = now - std::max(newest, last_ready_) < std::chrono::milliseconds(100);
  return moves ? microseconds(100) : microseconds(1000);
}

/// Looks at every word, with the lock held: it is a load, and who takes a batch off the list may unmap its
/// word. Starts what may begin.
void StorageRuntime::poll_words(std::unique_lock<std::mutex>& lock) noexcept {
  for (auto place = held_.begin(); place != held_.end();) {
    if (place->word_memory == nullptr || place->after->query() != 0) {
      ++place;
      continue;
    }
    --place->word_memory->in_flight;
    HeldOps ready = std::move(*place);
    held_.erase(place);
    issue_held(lock, std::move(ready), 0);
    place = held_.begin();  // others may have taken batches off the list meanwhile
  }
}

/// Asks every other dependency once, with the lock released, as a driver may take its time.
void StorageRuntime::poll_others(std::unique_lock<std::mutex>& lock) noexcept {
  for (auto place = held_.begin(); place != held_.end();) {
    if (place->word_memory != nullptr) {
      ++place;
      continue;
    }
    const std::shared_ptr<Batch> batch = place->batch;
    const std::shared_ptr<Dependency> after = place->after;
    lock.unlock();
    const int error = after->query();
    lock.lock();
    // Others may have taken batches off the list meanwhile.
    place =
        std::find_if(held_.begin(), held_.end(), [&](const HeldOps& held) { return held.batch == batch; });
    if (place == held_.end()) {
      return;  // the next round goes on with those behind it
    }
    if (error == EAGAIN) {
      ++place;
      continue;
    }
    HeldOps ready = std::move(*place);
    held_.erase(place);
    issue_held(lock, std::move(ready), error);
    place = held_.begin();
  }
}

void StorageRuntime::issue_held(std::unique_lock<std::mutex>& lock, HeldOps held, int error) noexcept {
  last_ready_ = Clock::now();
  lock.unlock();
  if (error == 0) {
    issue(held.ops);
  } else {
    for (IoOp& op : held.ops) {
      op.status = error;
    }
    complete(held.ops);
  }
  held = {};
  lock.lock();
}

void StorageRuntime::expire(std::unique_lock<std::mutex>& lock) noexcept {
  while (!timers_.empty()) {
    const TimePoint now = Clock::now();
    const auto [due, raw] = *timers_.begin();
    if (due > now) {
      return;
    }
    const std::shared_ptr<Batch> batch = raw->keep_alive;
    end_items(lock, batch, now, ETIMEDOUT);
    mark_late(*batch, now, ETIMEDOUT);
    if (batch->timer) {
      arm_timer(*batch);
    }
  }
}

/// Ends the items whose deadline is not after `due` and that no device has begun.
void StorageRuntime::end_items(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Batch>& batch,
                               TimePoint due, std::int32_t status) noexcept {
  HeldOps held = take_held(batch.get(), due);
  for (IoOp& op : held.ops) {
    op.status = status;
  }
  lock.unlock();
  if (!held.ops.empty()) {
    complete(held.ops);
  }
  path_->withdraw([raw = batch.get(),
                   due](const IoOp& op) { return op.batch == raw && raw->deadline_of(op.item) <= due; },
                  status);
  held = {};
  lock.lock();
}

/// Takes a batch's operations whose deadline is not after `due` off the list of those that wait.
StorageRuntime::HeldOps StorageRuntime::take_held(const Batch* batch, TimePoint due) noexcept {
  const auto place = std::find_if(held_.begin(), held_.end(),
                                  [&](const HeldOps& held) { return held.batch.get() == batch; });
  if (place == held_.end()) {
    return {};
  }
  const auto stays = [&](const IoOp& op) { return batch->deadline_of(op.item) > due; };
  const auto gone = std::partition(place->ops.begin(), place->ops.end(), stays);
  HeldOps taken;
  if (gone == place->ops.begin()) {
    taken = std::move(*place);
    held_.erase(place);
    if (taken.word_memory != nullptr) {
      --taken.word_memory->in_flight;
    }
  } else {
    taken.ops.assign(gone, place->ops.end());
    place->ops.erase(gone, place->ops.end());
  }
  return taken;
}

/// Gives a result to the items that a device holds beyond their deadline.
void StorageRuntime::mark_late(Batch& batch, TimePoint due, std::int32_t status) noexcept {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (batch.states[i] != detail::ItemState::kOpen || batch.deadline_of(i) > due) {
      continue;
    }
    batch.states[i] = detail::ItemState::kLate;
    batch.completion.status[i] = status;
    --batch.unfinished;
    ++stats_.completed;
    ++stats_.failed;
    ++stats_.timed_out;
    ++stats_.late;
  }
  announce(batch);
}

void StorageRuntime::cancel(std::uint64_t handle) {
  require_owner();
  std::unique_lock lock(mutex_);
  check_usable();
  const std::shared_ptr<Batch> batch = find_batch(handle);
  end_items(lock, batch, TimePoint::max(), ECANCELED);
}

/// The end of the patience of shutdown(): nothing begins any more and no stream waits any longer.
void StorageRuntime::end_everything(std::unique_lock<std::mutex>& lock) noexcept {
  std::list<HeldOps> held;
  held.swap(held_);
  for (HeldOps& each : held) {
    if (each.word_memory != nullptr) {
      --each.word_memory->in_flight;
    }
    for (IoOp& op : each.ops) {
      op.status = ECANCELED;
    }
  }
  lock.unlock();
  for (const HeldOps& each : held) {
    complete(each.ops);
  }
  path_->withdraw([](const IoOp&) { return true; }, ECANCELED);
  held.clear();
  lock.lock();
  for (Batch* batch = outstanding_; batch != nullptr; batch = batch->next) {
    mark_late(*batch, TimePoint::max(), ETIMEDOUT);
  }
}

}  // namespace tutti::runtime
