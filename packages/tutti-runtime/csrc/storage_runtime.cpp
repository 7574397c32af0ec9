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

#include "tutti/runtime/detail/make_memory.hpp"
#include "tutti/runtime/detail/runtime_util.hpp"
#include "tutti/runtime/error.hpp"

namespace tutti::runtime {
namespace {

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

constexpr std::size_t kMaxRootTags = 1024;
constexpr std::size_t kMaxRootTagBytes = 255;
// No device number of Linux is that large: its upper 32 bits hold majors beyond 4095, which do not exist.
constexpr std::uint64_t kFirstTaggedRoot = std::uint64_t{1} << 63;

[[noreturn]] void too_many(const char* kind) {
  throw SystemError(EMFILE, std::string("2^20 ") + kind + " are open in this runtime; close some first");
}

}  // namespace

StorageRuntime::StorageRuntime(std::unique_ptr<DataPath> path, Options options)
    : owner_pid_(::getpid()),
      options_(std::move(options)),
      path_(std::move(path)),
      stream_ordered_(path_->caps().stream_ordered),
      device_execution_(path_->caps().device_execution),
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
// What only waits for an event that may never come is given up after a while.
StorageRuntime::~StorageRuntime() {
  constexpr Duration grace{5.0};
  if (!drain_and_stop(grace)) {
    drain_and_stop(detail::kForever);
  }
}

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

/// Gives the target the roots that its tags stand for.
void StorageRuntime::name_roots(Target& target, std::span<const std::string> tags) {
  if (tags.empty()) {
    return;
  }
  const std::vector<Target*> shards = target.shards();
  if (tags.size() != shards.size()) {
    throw InvalidArgument("root names " + std::to_string(tags.size()) + " drives, and the target '" +
                          target.uri + "' is on " + std::to_string(shards.size()) +
                          "; give one tag, for a striped target a list with one for each of its roots");
  }
  for (std::size_t i = 0; i < tags.size(); ++i) {
    const auto known = root_tags_.find(tags[i]);
    if (known == root_tags_.end() && root_tags_.size() == kMaxRootTags) {
      throw InvalidArgument("root='" + tags[i] + "': this runtime has " + std::to_string(kMaxRootTags) +
                            " tags already, the most there can be; a tag names a drive, not a file");
    }
    shards[i]->set_root(known != root_tags_.end() ? known->second : kFirstTaggedRoot + root_tags_.size());
    root_tags_.emplace(tags[i], shards[i]->root());
    shards[i]->root_tag = tags[i];
  }
}

std::uint64_t StorageRuntime::open(const std::string& uri, bool writable,
                                   std::span<const std::string> roots) {
  require_owner();
  for (const std::string& tag : roots) {
    if (tag.empty() || tag.size() > kMaxRootTagBytes) {
      throw InvalidArgument("root='" + tag.substr(0, 64) + "' has " + std::to_string(tag.size()) +
                            " bytes and must have 1 to " + std::to_string(kMaxRootTagBytes));
    }
  }
  {
    std::lock_guard lock(mutex_);
    check_usable();
  }
  std::unique_ptr<Target> target = path_->open(parse_target_uri(uri), writable);
  target->uri = uri;
  std::lock_guard lock(mutex_);
  check_usable();
  name_roots(*target, roots);
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
    detail::bad_handle("target", handle);
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
    detail::bad_handle("target", handle);
  }
  if ((*slot)->in_flight != 0) {
    throw Busy("target " + std::to_string(handle) + " has " + std::to_string((*slot)->in_flight) +
               " items in flight; wait for them, then close");
  }
  target = std::move(*slot);
  targets_.erase(handle);
}

std::uint64_t StorageRuntime::register_memory(std::uint64_t address, std::uint64_t size, MemoryKind kind,
                                              int device) {
  require_owner();
  {
    std::lock_guard lock(mutex_);
    check_usable();
  }
  if (kind == MemoryKind::kDevice && !path_->caps().device_memory) {
    throw InvalidArgument("kind='device' is not supported by this data path, " + path_->caps().name +
                          ": the CPU moves its bytes; use data_path=\"cufile\", or pinned_host memory");
  }
  auto memory = detail::make_memory(address, size, kind, device);
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
      detail::bad_handle("memory", handle);
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
  return {path_->caps(), options_.chosen_because, options_.max_in_flight, options_.max_results};
}

Stats StorageRuntime::stats() {
  require_owner();
  std::lock_guard lock(mutex_);
  check_usable();
  Stats stats = stats_;
  stats.direct_fallbacks = path_->direct_fallbacks();
  stats.step_downs = path_->step_downs();
  return stats;
}

void StorageRuntime::set_write_policy(const WritePolicy& policy) {
  require_owner();
  check_write_policy(policy);
  {
    std::lock_guard lock(mutex_);
    check_usable();
  }
  path_->set_write_policy(policy);
}

std::uint32_t StorageRuntime::notice_count() const noexcept {
  return options_.notices != nullptr ? options_.notices->count() : 0;
}

std::vector<std::string> StorageRuntime::notices() const {
  return options_.notices != nullptr ? options_.notices->texts() : std::vector<std::string>{};
}

bool StorageRuntime::shutdown(Duration timeout) {
  require_owner();
  return drain_and_stop(timeout);
}

bool StorageRuntime::drain_and_stop(Duration timeout) {
  const TimePoint deadline = detail::deadline_after(timeout);
  std::unique_lock lock(mutex_);
  if (state_ == State::kOpen) {
    state_ = State::kDraining;
  }
  const auto my_turn_or_over = [this] {
    return state_ == State::kStopped || (state_ == State::kDraining && in_flight_ == 0);
  };
  if (!drained_.wait_until(lock, deadline, my_turn_or_over)) {
    end_everything(lock);
    if (!my_turn_or_over()) {
      return false;
    }
  }
  if (state_ == State::kStopped) {
    return true;
  }
  state_ = State::kStopping;
  progress_stops_ = true;
  lock.unlock();
  progress_wake_.notify_all();
  if (progress_thread_.joinable()) {
    progress_thread_.join();
  }
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
