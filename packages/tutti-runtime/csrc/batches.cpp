// SPDX-License-Identifier: Apache-2.0
// The life of a batch: acceptance, completion, waiting.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "tutti/runtime/detail/runtime_util.hpp"
#include "tutti/runtime/detail/validate.hpp"
#include "tutti/runtime/storage_runtime.hpp"

namespace tutti::runtime {
namespace {

constexpr std::chrono::milliseconds kTick{100};

}  // namespace

int StorageRuntime::reserve(const IoRequest& request, IoOp& op) {
  std::unique_ptr<Target>* const target = targets_.find(request.target);
  std::unique_ptr<Memory>* const memory = memories_.find(request.memory);
  const int error =
      detail::check_request(request, target ? target->get() : nullptr, memory ? memory->get() : nullptr);
  if (error != 0) {
    return error;
  }
  if (in_flight_ >= options_.max_in_flight || results_ >= options_.max_results) {
    return EAGAIN;
  }
  op.direction = static_cast<Direction>(request.direction);
  if (op.on_stream && op.direction == Direction::kFlush) {
    return ENOTSUP;  // no library flushes a file in the order of a stream
  }
  op.target = target->get();
  op.target_offset = request.target_offset;
  op.length = request.length;
  if (op.direction != Direction::kFlush) {
    op.memory = memory->get();
    op.address = op.memory->address + request.memory_offset;
  }
  const int refused = path_->admit(op);
  if (refused != 0) {
    return refused;
  }
  if (op.memory != nullptr) {
    ++op.memory->in_flight;
  }
  ++op.target->in_flight;
  ++in_flight_;
  ++results_;
  return 0;
}

void StorageRuntime::reserve_items(std::span<const IoRequest> requests, std::span<std::int32_t> errors,
                                   const SubmitOptions& options, Batch& batch, std::vector<IoOp>& ops) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const IoRequest request = requests[i];  // a copy: the caller's array may be changed by another thread
    IoOp op;
    op.batch = &batch;
    op.item = static_cast<std::uint32_t>(ops.size());
    op.on_stream = options.stream.has_value();
    op.stream = options.stream.value_or(0);
    op.on_device = options.on_device;
    op.deadline =
        options.deadlines.empty() ? options.deadline.value_or(TimePoint::max()) : options.deadlines[i];
    errors[i] = reserve(request, op);
    if (errors[i] == 0) {
      ops.push_back(op);  // reserved by the caller
      if (batch.gate != nullptr) {
        batch.requests.push_back(static_cast<std::uint32_t>(i));  // reserve_for() made room
      }
    } else if (!batch.first_rejected) {
      batch.first_rejected.emplace(i, errors[i]);
    }
  }
  stats_.submitted += requests.size();
  stats_.accepted += ops.size();
  stats_.rejected += requests.size() - ops.size();
}

std::optional<std::uint64_t> StorageRuntime::reserve_all(std::span<const IoRequest> requests,
                                                         std::span<std::int32_t> errors,
                                                         const SubmitOptions& options,
                                                         std::vector<IoOp>& ops) {
  std::lock_guard lock(mutex_);
  check_usable();
  // Everything that can fail comes before the first reservation.
  auto batch = std::make_shared<Batch>(ops.capacity());
  batch->reserve_for(options, requests.size());
  const auto handle = batches_.insert(std::shared_ptr<Batch>(batch));
  std::list<HeldOps> held;
  try {
    set_ordering(options, batch, held);
  } catch (...) {
    batches_.erase(handle.value_or(0));
    throw;
  }
  if (handle) {
    reserve_items(requests, errors, options, *batch, ops);
  } else {
    std::fill(errors.begin(), errors.end(), EAGAIN);
    stats_.submitted += requests.size();
    stats_.rejected += requests.size();
    batch->first_rejected.emplace(0, EAGAIN);
  }
  batch->set_count(ops.size());
  if (ops.empty()) {
    if (handle) {
      batches_.erase(*handle);
    }
    forget_timer(*batch);
    open_gate(*batch);
    return std::nullopt;
  }
  begin(options, errors, batch, std::move(held), ops);
  return handle;
}

/// Puts an accepted batch on the lists. `ops` stay with the caller unless the batch waits for something.
void StorageRuntime::begin(const SubmitOptions& options, std::span<const std::int32_t> errors,
                           const std::shared_ptr<Batch>& batch, std::list<HeldOps> held,
                           std::vector<IoOp>& ops) {
  Batch* const raw = batch.get();
  raw->keep_alive = batch;
  raw->next = outstanding_;
  if (outstanding_ != nullptr) {
    outstanding_->previous = raw;
  }
  outstanding_ = raw;
  if (raw->gate_memory != nullptr) {
    ++raw->gate_memory->in_flight;
  }
  set_deadlines(options, errors, *raw);
  if (held.empty()) {
    return;
  }
  HeldOps& waiting = held.front();
  if (waiting.word_memory != nullptr) {
    ++waiting.word_memory->in_flight;
  }
  waiting.batch = batch;
  waiting.ops.swap(ops);
  held_.splice(held_.end(), held);
  progress_wake_.notify_all();
}

std::optional<std::uint64_t> StorageRuntime::submit(std::span<const IoRequest> requests,
                                                    std::span<std::int32_t> errors,
                                                    const SubmitOptions& options) {
  require_owner();
  check_options(options, requests.size());
  std::vector<IoOp> ops;
  ops.reserve(std::min<std::size_t>(requests.size(), options_.max_in_flight));
  const std::optional<std::uint64_t> handle = reserve_all(requests, errors, options, ops);
  issue(ops);
  return handle;
}

void StorageRuntime::issue(std::vector<IoOp>& ops) {
  if (ops.empty()) {
    return;
  }
  try {
    path_->submit(ops);
  } catch (const std::bad_alloc&) {
    for (IoOp& op : ops) {
      op.status = ENOMEM;
    }
    complete(ops);
  }
}

void StorageRuntime::note_result(const IoOp& op) noexcept {
  ++stats_.completed;
  stats_.failed += op.status != 0 ? 1 : 0;
  stats_.timed_out += op.status == ETIMEDOUT ? 1 : 0;
  stats_.canceled += op.status == ECANCELED ? 1 : 0;
}

void StorageRuntime::complete_item(const IoOp& op) noexcept {
  Batch& batch = *static_cast<Batch*>(op.batch);
  const std::uint64_t moved = op.direction == Direction::kFlush ? 0 : op.done;
  if (batch.states[op.item] == detail::ItemState::kOpen) {
    batch.completion.status[op.item] = op.status;
    batch.completion.bytes[op.item] = moved;
    --batch.unfinished;
    note_result(op);
  } else {
    ++stats_.late_done;
    if (batch.late_results) {
      Batch& late = *batch.late_results->batch;
      const std::uint32_t place = batch.late_results->place[op.item];
      late.completion.status[place] = op.status;
      late.completion.bytes[place] = moved;
      --late.unfinished;
      announce(late);
    }
  }
  batch.states[op.item] = detail::ItemState::kDone;
  (op.direction == Direction::kRead ? stats_.bytes_read : stats_.bytes_written) += moved;
  --op.target->in_flight;
  if (op.memory != nullptr) {
    --op.memory->in_flight;
  }
  --in_flight_;
  --batch.outstanding;
  announce(batch);
  release(batch);
}

/// Once every item has its result.
void StorageRuntime::announce(Batch& batch) noexcept {
  if (batch.unfinished != 0 || batch.announced) {
    return;
  }
  batch.announced = true;
  forget_timer(batch);
  if (open_gate(batch) && batch.gate_memory != nullptr) {
    --batch.gate_memory->in_flight;
  }
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then the descriptor is readable anyway.
  [[maybe_unused]] const ssize_t written = ::write(event_fd_, &one, sizeof one);
  batch.finished.notify_all();
}

/// Once every item has left the device: the last use of an abandoned batch.
void StorageRuntime::release(Batch& batch) noexcept {
  if (batch.outstanding != 0) {
    return;
  }
  if (batch.previous != nullptr) {
    batch.previous->next = batch.next;
  } else {
    outstanding_ = batch.next;
  }
  if (batch.next != nullptr) {
    batch.next->previous = batch.previous;
  }
  batch.late_results.reset();
  batch.keep_alive.reset();
}

void StorageRuntime::complete(std::span<const IoOp> ops) noexcept {
  std::lock_guard lock(mutex_);
  for (const IoOp& op : ops) {
    complete_item(op);
  }
  if (in_flight_ == 0) {
    drained_.notify_all();
  }
}

std::shared_ptr<StorageRuntime::Batch>& StorageRuntime::find_batch(std::uint64_t handle) {
  std::shared_ptr<Batch>* const slot = batches_.find(handle);
  if (slot == nullptr) {
    detail::bad_handle("I/O", handle);
  }
  return *slot;
}

bool StorageRuntime::poll(std::uint64_t handle) {
  require_owner();
  std::lock_guard lock(mutex_);
  check_usable();
  return find_batch(handle)->unfinished == 0;
}

/// The results, with a batch for those that the device still holds.
Completion StorageRuntime::take_completion(Batch& batch) {
  const auto late = static_cast<std::size_t>(
      std::count(batch.states.begin(), batch.states.end(), detail::ItemState::kLate));
  results_ -= batch.size();
  if (late == 0) {
    return std::move(batch.completion);
  }
  detail::LateResults results{std::make_shared<Batch>(late), std::vector<std::uint32_t>(batch.size())};
  results.batch->set_count(late);
  std::vector<std::uint8_t> flags(batch.size());
  std::uint32_t place = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (batch.states[i] == detail::ItemState::kLate) {
      flags[i] = 1;
      results.place[i] = place++;
    }
  }
  batch.completion.late_handle = batches_.insert(std::shared_ptr<Batch>(results.batch));
  if (batch.completion.late_handle) {
    results_ += late;
    batch.late_results = std::move(results);
  }
  batch.completion.late = std::move(flags);
  return std::move(batch.completion);
}

std::optional<Completion> StorageRuntime::wait(std::uint64_t handle, std::optional<Duration> timeout,
                                               const std::function<void()>& on_tick) {
  require_owner();
  const TimePoint deadline = detail::deadline_after(timeout.value_or(detail::kForever));
  std::unique_lock lock(mutex_);
  check_usable();
  const std::shared_ptr<Batch> batch = find_batch(handle);  // outlives a shutdown that comes meanwhile
  while (true) {
    const TimePoint until = std::min(deadline, Clock::now() + kTick);
    batch->finished.wait_until(lock, until, [&] { return batch->unfinished == 0 || batch->given_up; });
    if (batch->given_up) {
      detail::bad_handle("I/O", handle);
    }
    if (batch->unfinished == 0) {
      batch->given_up = true;
      batches_.erase(handle);
      return take_completion(*batch);
    }
    if (Clock::now() >= deadline) {
      return std::nullopt;
    }
    if (on_tick) {
      lock.unlock();
      on_tick();
      lock.lock();
    }
  }
}

void StorageRuntime::abandon(std::uint64_t handle) {
  require_owner();
  std::lock_guard lock(mutex_);
  check_usable();
  const std::shared_ptr<Batch> batch = find_batch(handle);
  batch->given_up = true;
  batch->finished.notify_all();
  results_ -= batch->size();
  batches_.erase(handle);
}

}  // namespace tutti::runtime
