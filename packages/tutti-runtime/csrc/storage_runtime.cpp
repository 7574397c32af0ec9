// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/storage_runtime.hpp"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tutti/runtime/detail/validate.hpp"
#include "tutti/runtime/error.hpp"

namespace tutti::runtime {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kTick{100};
constexpr Duration kForever{1e9};  // about 30 years; a time_point cannot hold every double

Clock::time_point deadline_after(Duration timeout) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::min(timeout, kForever));
}

// Starts at a random place, so that a handle of an earlier process is as foreign as one of another runtime.
std::uint32_t next_runtime_id() {
  constexpr std::uint32_t count = 1U << 18;
  static const std::uint32_t base = [] {
    std::uint32_t seed = 0;
    return ::getrandom(&seed, sizeof seed, GRND_NONBLOCK) == sizeof seed ? seed : 0U;
  }();
  static std::atomic<std::uint32_t> made{0};
  const std::uint32_t serial = made.fetch_add(1);
  if (serial >= count) {
    made.fetch_sub(1);
    throw SystemError(EMFILE, "this process has made 262144 runtimes, the most that handles can tell apart");
  }
  return (base + serial) % count;
}

[[noreturn]] void bad_handle(const char* kind, std::uint64_t handle) {
  throw InvalidHandle(
      std::string(kind) + " handle " + std::to_string(handle) +
      " is not one of this runtime's: it was given up, consumed, or comes from another runtime");
}

[[noreturn]] void too_many(const char* kind) {
  throw SystemError(EMFILE, std::string("2^20 ") + kind + " are open in this runtime; close some first");
}

bool is_mapped(std::uint64_t address, std::uint64_t size) {
  constexpr std::uint64_t step = std::uint64_t{1} << 30;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> residency((std::min(step, size) + page - 1) / page);
  for (std::uint64_t done = 0; done < size; done += step) {
    void* part = reinterpret_cast<void*>(address + done);
    if (::mincore(part, std::min(step, size - done), residency.data()) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

struct StorageRuntime::Batch {
  explicit Batch(std::size_t most) {
    completion.status.resize(most);
    completion.bytes.resize(most);
  }

  void set_count(std::size_t count) noexcept {
    completion.status.resize(count);
    completion.bytes.resize(count);
    remaining = count;
  }

  Completion completion;
  std::size_t remaining = 0;
  bool given_up = false;              ///< waited for or abandoned
  std::shared_ptr<Batch> keep_alive;  ///< itself, while items are in flight
  std::condition_variable finished;
};

StorageRuntime::StorageRuntime(std::unique_ptr<DataPath> path, Options options)
    : owner_pid_(::getpid()),
      options_(std::move(options)),
      path_(std::move(path)),
      targets_(detail::HandleKind::kTarget, next_runtime_id()),
      memories_(targets_.sibling<std::unique_ptr<Memory>>(detail::HandleKind::kMemory)),
      batches_(targets_.sibling<std::shared_ptr<Batch>>(detail::HandleKind::kBatch)) {
  event_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event_fd_ < 0) {
    const int error = errno;
    throw SystemError(error, std::string("cannot make the completion eventfd: ") + std::strerror(error));
  }
  try {
    path_->start(*this);
  } catch (...) {
    ::close(event_fd_);
    throw;
  }
}

// A drive that answers late must find the memory it was given, so nothing is freed before it has answered.
StorageRuntime::~StorageRuntime() { drain_and_stop(kForever); }

bool StorageRuntime::is_owner() const noexcept { return ::getpid() == owner_pid_; }

bool StorageRuntime::stopped() const noexcept {
  std::lock_guard lock(mutex_);
  return state_ == State::kStopped;
}

// Before any lock: the lock may have been held by a thread that the fork did not copy.
void StorageRuntime::require_owner() const {
  if (!is_owner()) {
    throw Forked("this runtime belongs to process " + std::to_string(owner_pid_) +
                 " and was inherited by fork() in " + std::to_string(::getpid()) +
                 "; make a new runtime in the child");
  }
}

void StorageRuntime::check_usable() const {
  if (state_ != State::kOpen) {
    throw Closed("this runtime was shut down; make a new one");
  }
}

std::uint64_t StorageRuntime::open(const std::string& uri, bool writable) {
  require_owner();
  {
    std::lock_guard lock(mutex_);
    check_usable();
  }
  std::unique_ptr<Target> target = path_->open(parse_target_uri(uri), writable);
  target->uri = uri;
  std::lock_guard lock(mutex_);
  check_usable();
  const auto handle = targets_.insert(std::move(target));
  if (!handle) {
    too_many("targets");
  }
  return *handle;
}

StorageRuntime::TargetFacts StorageRuntime::query(std::uint64_t handle) {
  require_owner();
  std::lock_guard lock(mutex_);
  check_usable();
  const std::unique_ptr<Target>* const slot = targets_.find(handle);
  if (slot == nullptr) {
    bad_handle("target", handle);
  }
  return {(*slot)->uri, (*slot)->info()};
}

void StorageRuntime::close(std::uint64_t handle) {
  require_owner();
  std::unique_ptr<Target> target;  // closed after the lock is gone: close() can wait for the file system
  std::lock_guard lock(mutex_);
  check_usable();
  std::unique_ptr<Target>* slot = targets_.find(handle);
  if (slot == nullptr) {
    bad_handle("target", handle);
  }
  if ((*slot)->in_flight != 0) {
    throw Busy("target " + std::to_string(handle) + " has " + std::to_string((*slot)->in_flight) +
               " items in flight; wait for them, then close");
  }
  target = std::move(*slot);
  targets_.erase(handle);
}

std::uint64_t StorageRuntime::register_memory(std::uint64_t address, std::uint64_t size) {
  require_owner();
  if (address == 0 || address % kMemoryAlignment != 0) {
    throw InvalidArgument("address=" + std::to_string(address) + " must be a multiple of 65536 and not 0");
  }
  if (size == 0 || size % kIoAlignment != 0 || size > UINT64_MAX - address) {
    throw InvalidArgument("size=" + std::to_string(size) +
                          " must be a multiple of 4096 and more than 0, and end inside the address space");
  }
  if (!is_mapped(address, size)) {
    throw InvalidArgument("address=" + std::to_string(address) + ", size=" + std::to_string(size) +
                          ": part of this range is not mapped memory of the process");
  }
  auto memory = std::make_unique<Memory>();
  memory->address = reinterpret_cast<std::byte*>(address);
  memory->size = size;
  {
    std::lock_guard lock(mutex_);
    check_usable();
  }
  path_->register_memory(*memory);
  Memory* const raw = memory.get();
  std::optional<std::uint64_t> handle;
  {
    std::lock_guard lock(mutex_);
    if (state_ == State::kOpen) {
      handle = memories_.insert(std::move(memory));
    }
  }
  if (handle) {
    return *handle;
  }
  path_->unregister_memory(*raw);  // still there: an insert() that fails takes nothing
  std::lock_guard lock(mutex_);
  check_usable();
  too_many("memory registrations");
}

void StorageRuntime::unregister_memory(std::uint64_t handle) {
  require_owner();
  std::unique_ptr<Memory> memory;
  {
    std::lock_guard lock(mutex_);
    check_usable();
    std::unique_ptr<Memory>* slot = memories_.find(handle);
    if (slot == nullptr) {
      bad_handle("memory", handle);
    }
    if ((*slot)->in_flight != 0) {
      throw Busy("memory " + std::to_string(handle) + " has " + std::to_string((*slot)->in_flight) +
                 " items in flight; wait for them, then unregister");
    }
    memory = std::move(*slot);
    memories_.erase(handle);
  }
  path_->unregister_memory(*memory);
}

int StorageRuntime::reserve(const IoRequest& request, IoOp& op) {
  std::unique_ptr<Target>* const target = targets_.find(request.target);
  std::unique_ptr<Memory>* const memory = memories_.find(request.memory);
  const int error =
      detail::check_request(request, target ? target->get() : nullptr, memory ? memory->get() : nullptr);
  if (error != 0) {
    return error;
  }
  if (in_flight_ >= options_.max_in_flight) {
    return EAGAIN;
  }
  op.direction = static_cast<Direction>(request.direction);
  op.target = target->get();
  op.target_offset = request.target_offset;
  op.length = request.length;
  if (op.direction != Direction::kFlush) {
    op.memory = memory->get();
    op.address = op.memory->address + request.memory_offset;
    ++op.memory->in_flight;
  }
  ++op.target->in_flight;
  ++in_flight_;
  return 0;
}

std::optional<std::uint64_t> StorageRuntime::reserve_all(std::span<const IoRequest> requests,
                                                         std::span<std::int32_t> errors,
                                                         std::vector<IoOp>& ops) {
  std::lock_guard lock(mutex_);
  check_usable();
  stats_.submitted += requests.size();
  // Everything that can fail comes before the first reservation.
  auto batch = std::make_shared<Batch>(std::min<std::size_t>(requests.size(), options_.max_in_flight));
  const auto handle = batches_.insert(std::shared_ptr<Batch>(batch));
  if (!handle) {
    std::fill(errors.begin(), errors.end(), EAGAIN);
    stats_.rejected += requests.size();
    return std::nullopt;
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const IoRequest request = requests[i];  // a copy: the caller's array may be changed by another thread
    IoOp op;
    errors[i] = reserve(request, op);
    if (errors[i] == 0) {
      op.batch = batch.get();
      op.item = static_cast<std::uint32_t>(ops.size());
      ops.push_back(op);  // reserved by the caller
    }
  }
  stats_.accepted += ops.size();
  stats_.rejected += requests.size() - ops.size();
  if (ops.empty()) {
    batches_.erase(*handle);
    return std::nullopt;
  }
  batch->set_count(ops.size());
  Batch* const raw = batch.get();
  raw->keep_alive = std::move(batch);
  return handle;
}

std::optional<std::uint64_t> StorageRuntime::submit(std::span<const IoRequest> requests,
                                                    std::span<std::int32_t> errors) {
  require_owner();
  if (requests.empty()) {
    std::lock_guard lock(mutex_);
    check_usable();
    return std::nullopt;
  }
  std::vector<IoOp> ops;
  ops.reserve(std::min<std::size_t>(requests.size(), options_.max_in_flight));
  const std::optional<std::uint64_t> handle = reserve_all(requests, errors, ops);
  if (!handle) {
    return std::nullopt;
  }
  try {
    path_->submit(ops);
  } catch (const std::bad_alloc&) {
    for (IoOp& op : ops) {
      op.status = ENOMEM;
    }
    complete(ops);
  }
  return handle;
}

void StorageRuntime::complete_item(const IoOp& op) noexcept {
  Batch& batch = *static_cast<Batch*>(op.batch);
  batch.completion.status[op.item] = op.status;
  batch.completion.bytes[op.item] = op.direction == Direction::kFlush ? 0 : op.done;
  ++stats_.completed;
  if (op.status != 0) {
    ++stats_.failed;
  }
  if (op.direction == Direction::kRead) {
    stats_.bytes_read += op.done;
  } else if (op.direction == Direction::kWrite) {
    stats_.bytes_written += op.done;
  }
  --op.target->in_flight;
  if (op.memory != nullptr) {
    --op.memory->in_flight;
  }
  --in_flight_;
  if (--batch.remaining == 0) {
    finish(batch);
  }
}

void StorageRuntime::finish(Batch& batch) noexcept {
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then the descriptor is readable anyway.
  [[maybe_unused]] const ssize_t written = ::write(event_fd_, &one, sizeof one);
  batch.finished.notify_all();
  batch.keep_alive.reset();  // frees an abandoned batch: the last use of it
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
    bad_handle("I/O", handle);
  }
  return *slot;
}

bool StorageRuntime::poll(std::uint64_t handle) {
  require_owner();
  std::lock_guard lock(mutex_);
  check_usable();
  return find_batch(handle)->remaining == 0;
}

std::optional<Completion> StorageRuntime::wait(std::uint64_t handle, std::optional<Duration> timeout,
                                               const std::function<void()>& on_tick) {
  require_owner();
  const Clock::time_point deadline = deadline_after(timeout.value_or(kForever));
  std::unique_lock lock(mutex_);
  check_usable();
  const std::shared_ptr<Batch> batch = find_batch(handle);  // outlives a shutdown that comes meanwhile
  while (true) {
    const Clock::time_point until = std::min(deadline, Clock::now() + kTick);
    batch->finished.wait_until(lock, until, [&] { return batch->remaining == 0 || batch->given_up; });
    if (batch->given_up) {
      bad_handle("I/O", handle);
    }
    if (batch->remaining == 0) {
      batch->given_up = true;
      batches_.erase(handle);
      return std::move(batch->completion);
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
  batches_.erase(handle);
}

int StorageRuntime::completion_fd() {
  require_owner();
  std::lock_guard lock(mutex_);
  check_usable();
  return event_fd_;
}

StorageRuntime::Caps StorageRuntime::caps() {
  require_owner();
  std::lock_guard lock(mutex_);
  check_usable();
  return {path_->caps(), options_.chosen_because, options_.max_in_flight};
}

Stats StorageRuntime::stats() {
  require_owner();
  std::lock_guard lock(mutex_);
  check_usable();
  Stats stats = stats_;
  stats.direct_fallbacks = path_->direct_fallbacks();
  return stats;
}

bool StorageRuntime::shutdown(Duration timeout) {
  require_owner();
  return drain_and_stop(timeout);
}

bool StorageRuntime::drain_and_stop(Duration timeout) {
  const Clock::time_point deadline = deadline_after(timeout);
  std::unique_lock lock(mutex_);
  if (state_ == State::kOpen) {
    state_ = State::kDraining;
  }
  const auto my_turn_or_over = [this] {
    return state_ == State::kStopped || (state_ == State::kDraining && in_flight_ == 0);
  };
  if (!drained_.wait_until(lock, deadline, my_turn_or_over)) {
    return false;
  }
  if (state_ == State::kStopped) {
    return true;
  }
  state_ = State::kStopping;
  lock.unlock();
  path_->shutdown();
  lock.lock();
  batches_.clear();
  memories_.clear();
  targets_.clear();
  ::close(std::exchange(event_fd_, -1));
  state_ = State::kStopped;
  drained_.notify_all();
  return true;
}

}  // namespace tutti::runtime
