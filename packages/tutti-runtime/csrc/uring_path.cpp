// SPDX-License-Identifier: Apache-2.0
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tutti/runtime/detail/buffer_slots.hpp"
#include "tutti/runtime/detail/file_op.hpp"
#include "tutti/runtime/detail/io_thread.hpp"
#include "tutti/runtime/detail/paths.hpp"
#include "tutti/runtime/detail/uring.hpp"
#include "tutti/runtime/error.hpp"

namespace tutti::runtime::detail {
namespace {

constexpr std::uint64_t kWake = UINT64_MAX;
constexpr std::uint32_t kBufferTableSize = 1024;  // of at most 1 GiB each

/// A ring with room for several roots, so that one whose drive is slow does not take it all.
std::uint32_t ring_depth(std::uint32_t depth_per_root) {
  constexpr std::uint32_t roots = 8;
  constexpr std::uint32_t most = 4096;
  return std::max(depth_per_root, std::min(depth_per_root * roots, most));
}

std::uint32_t buffers_of(const Memory& memory) {
  return static_cast<std::uint32_t>((memory.size + abi::kMaxBufferBytes - 1) / abi::kMaxBufferBytes);
}

/// Operations that one ring holds, addressed by the user_data of their entries. Belongs to the progress
/// thread.
class InRing {
 public:
  explicit InRing(std::uint32_t depth) : ops_(depth) {
    for (std::uint32_t i = depth; i > 0; --i) {
      free_.push_back(i - 1);
    }
  }

  [[nodiscard]] bool full() const noexcept { return free_.empty(); }
  [[nodiscard]] bool empty() const noexcept { return free_.size() == ops_.size(); }
  [[nodiscard]] IoOp& operator[](std::uint64_t slot) noexcept { return ops_[slot]; }

  std::uint32_t put(const IoOp& op) noexcept {
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    ops_[slot] = op;
    return slot;
  }

  void remove(std::uint64_t slot) noexcept { free_.push_back(static_cast<std::uint32_t>(slot)); }

 private:
  std::vector<IoOp> ops_;
  std::vector<std::uint32_t> free_;
};

void fill(abi::Sqe& sqe, const IoOp& op) noexcept {
  sqe.fd = file_of(op).fd();
  // The kernel said EAGAIN where it was not to wait: let a worker thread of its own wait.
  sqe.flags = op.attempts > 0 ? abi::kSqeAsync : std::uint8_t{0};
  if (op.direction == Direction::kFlush) {
    sqe.opcode = abi::kFsync;
    sqe.op_flags = abi::kFsyncDatasync;
    return;
  }
  const bool read = op.direction == Direction::kRead;
  sqe.opcode = read ? abi::kRead : abi::kWrite;
  sqe.address = reinterpret_cast<std::uint64_t>(op.address + op.done);
  sqe.length = static_cast<std::uint32_t>(op.length - op.done);
  sqe.offset = file_offset(op);
  if (op.memory->buffer_index < 0) {
    return;
  }
  const auto begin = static_cast<std::uint64_t>(op.address + op.done - op.memory->address);
  const std::uint64_t buffer = begin / abi::kMaxBufferBytes;
  if ((begin + sqe.length - 1) / abi::kMaxBufferBytes == buffer) {
    sqe.opcode = read ? abi::kReadFixed : abi::kWriteFixed;
    sqe.buffer_index =
        static_cast<std::uint16_t>(static_cast<std::uint64_t>(op.memory->buffer_index) + buffer);
  }
}

class UringPath final : public DataPath {
 public:
  UringPath(FileSettings files, std::uint32_t depth)
      : notices_(files.notices),
        opener_(std::move(files)),
        depth_(depth),
        in_ring_(ring_depth(depth)),
        slots_(kBufferTableSize) {
    wake_fd_ = ::eventfd(0, EFD_CLOEXEC);
    if (wake_fd_ < 0) {
      const int error = errno;
      throw SystemError(error, std::string("cannot make an eventfd: ") + std::strerror(error));
    }
    finished_.reserve(ring_depth(depth));
    std::promise<void> ready;
    std::future<void> started = ready.get_future();
    try {
      thread_ = start_io_thread("tutti-uring", [this, &ready] { work(ring_depth(depth_), ready); });
      started.get();
    } catch (const std::system_error& error) {
      ::close(wake_fd_);
      throw SystemError(error.code().value(), "cannot start the io_uring thread: " + error.code().message());
    } catch (...) {
      thread_.join();
      ::close(wake_fd_);
      throw;
    }
  }

  ~UringPath() override { shutdown(); }

  void start(CompletionSink& sink) override {
    std::lock_guard lock(mutex_);
    sink_ = &sink;
  }

  std::unique_ptr<Target> open(const TargetUri& uri, bool writable) override {
    return opener_.open(uri, writable);
  }

  void submit(std::span<const IoOp> ops) override {
    std::lock_guard lock(mutex_);
    const bool was_empty = inbox_.empty();
    inbox_.insert(inbox_.end(), ops.begin(), ops.end());
    if (std::this_thread::get_id() == thread_.get_id()) {
      submitted_by_itself_ = true;  // from a completion: it looks into the inbox before it sleeps
    } else if (was_empty) {
      wake();
    }
  }

  void withdraw(const OpFilter& filter, std::int32_t status) noexcept override {
    std::vector<IoOp> ended;
    {
      std::lock_guard lock(mutex_);
      const auto gone =
          std::stable_partition(inbox_.begin(), inbox_.end(), [&](const IoOp& op) { return !filter(op); });
      ended.assign(gone, inbox_.end());
      inbox_.erase(gone, inbox_.end());
    }
    for (IoOp& op : ended) {
      op.status = status;
    }
    if (!ended.empty()) {
      sink_->complete(ended);
    }
  }

  void register_memory(Memory& memory) override {
    run_on_thread([this, &memory] { place_buffers(memory); });
  }

  void unregister_memory(const Memory& memory) noexcept override {
    if (memory.buffer_index >= 0) {
      run_on_thread([this, &memory] { remove_buffers(memory); });
    }
  }

  void shutdown() noexcept override {
    if (!thread_.joinable()) {
      return;
    }
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      wake();
    }
    thread_.join();
    ::close(wake_fd_);
  }

  DataPathCaps caps() const override {
    std::lock_guard lock(mutex_);
    return {"uring", opener_.policy_name(), used_, unused_, opener_.max_open_files(), {}};
  }
  QueueLimits queue_limits() const noexcept override { return {depth_, ring_depth(depth_)}; }
  std::uint64_t direct_fallbacks() const noexcept override { return opener_.fallbacks(); }

 private:
  // --- any thread

  void wake() noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_fd_, &one, sizeof one);
  }

  // SINGLE_ISSUER lets only the thread that made the ring register anything with it. After shutdown there is
  // no ring, and nothing to do.
  void run_on_thread(const std::function<void()>& command) {
    std::promise<void> done;
    std::future<void> finished = done.get_future();
    {
      std::lock_guard lock(mutex_);
      if (stopping_) {
        return;
      }
      commands_.push_back([&command, &done] {
        try {
          command();
          done.set_value();
        } catch (...) {
          done.set_exception(std::current_exception());
        }
      });
      wake();
    }
    finished.get();
  }

  // --- the progress thread

  void work(std::uint32_t depth, std::promise<void>& ready) noexcept {
    try {
      ring_.emplace(depth + 1);  // and the read of the wake-up
      note_features();
    } catch (...) {
      ready.set_exception(std::current_exception());
      return;
    }
    ready.set_value();
    arm_wake();
    while (take_inbox() || !pending_.empty() || !in_ring_.empty()) {
      issue_pending();
      if (std::exchange(submitted_by_itself_, false)) {
        continue;  // a completion within issue_pending() brought more
      }
      const int error = ring_->enter();
      if (reap() == 0 && error != 0 && error != EINTR) {
        // The kernel is out of memory or of room for completions: what is in the ring goes on, so come back.
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    ring_.reset();
  }

  void note_features() {
    std::lock_guard lock(mutex_);
    const std::uint32_t flags = ring_->setup_flags();
    const auto note = [&](std::uint32_t flag, const char* name, const char* use, const char* why_not) {
      ((flags & flag) != 0 ? used_ : unused_)[name] = (flags & flag) != 0 ? use : why_not;
    };
    note(abi::kSetupSubmitAll, "SUBMIT_ALL", "a bad entry holds back no other",
         "the kernel is older than 5.18");
    note(abi::kSetupSingleIssuer, "SINGLE_ISSUER", "one thread submits", "the kernel is older than 6.1");
    note(abi::kSetupDeferTaskrun, "DEFER_TASKRUN", "completions are taken in batches",
         "the kernel is older than 6.1");
    const int error = ring_->make_buffer_table(kBufferTableSize);
    has_buffer_table_ = error == 0;
    unused_["registered_buffers"] =
        has_buffer_table_ ? "no memory is registered yet" : "the kernel is older than 5.19";
    // What was measured of each is in docs/io_uring.md.
    unused_["registered_files"] = "they spare no CPU that shows beside a transfer of 64 KiB and more";
    unused_["SQPOLL"] = "its thread takes four to twenty-five times the CPU and brings no bandwidth";
    unused_["IOPOLL"] = "it needs a drive with polling queues and O_DIRECT on every target";
    unused_["linked_fsync"] = "a chain runs its writes one after another, and spares nothing after one write";
    unused_["waiting_for_several"] =
        "a ring that waits for more than one completion spares no CPU that shows";
  }

  void arm_wake() noexcept {
    abi::Sqe* sqe = ring_->next_sqe();
    // Never null: the ring has one entry more than there are operations.
    sqe->opcode = abi::kRead;
    sqe->fd = wake_fd_;
    sqe->address = reinterpret_cast<std::uint64_t>(&wake_count_);
    sqe->length = sizeof wake_count_;
    sqe->user_data = kWake;
  }

  /// False once shutdown was asked for.
  bool take_inbox() {
    std::vector<std::function<void()>> commands;
    bool running = true;
    {
      std::lock_guard lock(mutex_);
      pending_.insert(pending_.end(), inbox_.begin(), inbox_.end());
      inbox_.clear();
      submitted_by_itself_ = false;
      commands.swap(commands_);
      running = !stopping_;
    }
    for (const auto& command : commands) {
      command();
    }
    return running;
  }

  void issue_pending() noexcept {
    while (!pending_.empty() && !in_ring_.full()) {
      IoOp& op = pending_.front();
      op.status = file_of(op).begin_use(op.direction, in_ring_.empty() ? Patience::kForce : Patience::kNever);
      if (op.status == EAGAIN) {
        return;  // a completion in the ring frees a descriptor
      }
      if (op.status != 0) {
        sink_->complete({&op, 1});
        pending_.pop_front();
        continue;
      }
      abi::Sqe* sqe = ring_->next_sqe();
      if (sqe == nullptr) {
        file_of(op).end_use(op.direction, false);
        return;
      }
      fill(*sqe, op);
      sqe->user_data = in_ring_.put(op);
      pending_.pop_front();
    }
  }

  std::uint32_t reap() noexcept {
    bool woken = false;
    finished_.clear();
    again_.clear();
    const std::uint32_t count = ring_->reap([&](std::uint64_t user_data, std::int32_t result) {
      if (user_data == kWake) {
        woken = true;
        return;
      }
      IoOp& op = in_ring_[user_data];
      const bool done = advance(op, result, opener_) == Step::kDone;
      file_of(op).end_use(op.direction, done && op.status == 0);
      (done ? finished_ : again_).push_back(op);
      in_ring_.remove(user_data);
    });
    // What is under way goes before what has not begun.
    pending_.insert(pending_.begin(), again_.begin(), again_.end());
    if (woken) {
      arm_wake();
    }
    if (!finished_.empty()) {
      sink_->complete(finished_);
    }
    return count;
  }

  void place_buffers(Memory& memory) {
    const std::uint32_t count = buffers_of(memory);
    const int first = has_buffer_table_ ? slots_.take(count) : -1;
    if (first < 0) {
      if (has_buffer_table_) {
        note_buffers(false, "the table of 1024 buffers is full for the newest memory");
      }
      return;
    }
    std::vector<iovec> parts(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint64_t begin = i * abi::kMaxBufferBytes;
      parts[i] = {memory.address + begin, std::min(abi::kMaxBufferBytes, memory.size - begin)};
    }
    const int error = ring_->update_buffers(static_cast<std::uint32_t>(first), parts.data(), count);
    memory.buffer_index = first;
    if (error != 0) {
      remove_buffers(memory);
      memory.buffer_index = -1;
      const std::string why = std::string("the kernel did not pin the newest memory: ") +
                              std::strerror(error) + (error == ENOMEM ? " (RLIMIT_MEMLOCK)" : "");
      note_buffers(false, why);
      if (notices_ != nullptr) {
        notices_->add("registered_buffers", why + "; every transfer pins it anew");
      }
      return;
    }
    note_buffers(true, "memory is pinned once, not for every transfer");
  }

  void remove_buffers(const Memory& memory) {
    const std::uint32_t count = buffers_of(memory);
    const auto first = static_cast<std::uint32_t>(memory.buffer_index);
    const std::vector<iovec> none(count);
    ring_->update_buffers(first, none.data(), count);
    slots_.give_back(first, count);
  }

  void note_buffers(bool used, const std::string& text) {
    std::lock_guard lock(mutex_);
    (used ? unused_ : used_).erase("registered_buffers");
    (used ? used_ : unused_)["registered_buffers"] = text;
  }

  const std::shared_ptr<Notices> notices_;
  FileOpener opener_;
  const std::uint32_t depth_;  ///< operations of one root
  int wake_fd_ = -1;
  std::thread thread_;

  mutable std::mutex mutex_;  ///< guards the next seven
  CompletionSink* sink_ = nullptr;
  std::vector<IoOp> inbox_;
  std::vector<std::function<void()>> commands_;
  bool stopping_ = false;
  std::map<std::string, std::string> used_;
  std::map<std::string, std::string> unused_;

  // The progress thread's own.
  std::optional<Uring> ring_;
  std::uint64_t wake_count_ = 0;
  bool submitted_by_itself_ = false;
  std::deque<IoOp> pending_;
  InRing in_ring_;
  std::vector<IoOp> finished_;
  std::vector<IoOp> again_;
  BufferSlots slots_;
  bool has_buffer_table_ = false;
};

}  // namespace

std::unique_ptr<DataPath> make_uring_path(FileSettings files, std::uint32_t queue_depth) {
  return std::make_unique<UringPath>(std::move(files), queue_depth);
}

}  // namespace tutti::runtime::detail
