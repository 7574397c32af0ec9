// SPDX-License-Identifier: Apache-2.0
#include "mapped_registers.hpp"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <string>

#include "tutti/runtime/error.hpp"

namespace tutti::runtime::nvme {
namespace {

enum class State : std::uint32_t { kFree, kThere, kGoing, kGone };

/// What the handler knows of one mapping. It takes no lock and makes nothing.
struct Entry {
  std::atomic<std::uint64_t> begin{0};
  std::atomic<std::uint64_t> size{0};
  std::atomic<void*> spare{nullptr};
  std::atomic<State> state{State::kFree};
};
static_assert(std::atomic<State>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);

constexpr std::size_t kMost = 256;
std::array<Entry, kMost> entries;
std::mutex making;  // guards kFree entries and `installed`
bool installed = false;
struct sigaction before{};
std::atomic<bool> used_up{false};  // `before`, if it is there once

/// A thread that does not find what it looked for gives the entry back as it was.
bool claim(Entry& entry) noexcept {
  State there = State::kThere;
  return entry.state.compare_exchange_strong(there, State::kGoing, std::memory_order_acq_rel);
}

bool has(const Entry& entry, std::uint64_t address) noexcept {
  return address - entry.begin.load(std::memory_order_relaxed) < entry.size.load(std::memory_order_relaxed);
}

/// True when the access may be tried again. Of several threads one changes the mapping; the others try again
/// and come back until it has.
bool replace(std::uint64_t address) noexcept {
  for (Entry& entry : entries) {
    const State state = entry.state.load(std::memory_order_acquire);
    if (state == State::kFree || !has(entry, address)) {
      continue;
    }
    if (state != State::kThere || !claim(entry)) {
      return true;
    }
    if (!has(entry, address)) {  // it was given to other registers meanwhile
      entry.state.store(State::kThere, std::memory_order_release);
      continue;
    }
    const std::uint64_t size = entry.size.load(std::memory_order_relaxed);
    void* const begin = reinterpret_cast<void*>(entry.begin.load(std::memory_order_relaxed));
    void* const spare = entry.spare.load(std::memory_order_relaxed);
    const bool moved = ::mremap(spare, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, begin) != MAP_FAILED;
    entry.state.store(moved ? State::kGone : State::kThere, std::memory_order_release);
    return moved;
  }
  return false;
}

/// An access that cannot be done comes again when the handler returns; whatever else is here was sent.
bool is_access(const siginfo_t& info) noexcept { return info.si_code > 0 && info.si_code != BUS_MCEERR_AO; }

/// The action before ours. One that asked for it (SA_RESETHAND) is there once.
__sighandler_t take_before() noexcept {
  static_assert(std::atomic<bool>::is_always_lock_free);
  const bool is_over = (before.sa_flags & SA_RESETHAND) != 0 && used_up.exchange(true);
  return is_over ? SIG_DFL : before.sa_handler;
}

/// What would have been done without us.
void pass_on(int number, siginfo_t* info, void* context) noexcept {
  auto* const action = take_before();
  if (action == SIG_IGN && !is_access(*info)) {
    return;
  }
  if (action == SIG_DFL || action == SIG_IGN) {
    ::signal(number, SIG_DFL);
    if (!is_access(*info)) {
      ::raise(number);
    }
    return;
  }
  sigset_t own;  // the kernel undoes both masks when the handler returns
  ::sigemptyset(&own);
  ::sigaddset(&own, number);
  if ((before.sa_flags & SA_NODEFER) != 0) {
    ::pthread_sigmask(SIG_UNBLOCK, &own, nullptr);
  }
  ::pthread_sigmask(SIG_BLOCK, &before.sa_mask, nullptr);
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(number, info, context);
  } else {
    action(number);
  }
}

void handle(int number, siginfo_t* info, void* context) {
  const int kept = errno;
  if (info->si_code <= 0 || !replace(reinterpret_cast<std::uint64_t>(info->si_addr))) {
    pass_on(number, info, context);
  }
  errno = kept;
}

/// @throws SystemError
void install() {
  if (installed) {
    return;
  }
  struct sigaction ours{};
  ours.sa_sigaction = handle;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  ::sigemptyset(&ours.sa_mask);
  // Before the handler can run, and once more what it took the place of.
  if (::sigaction(SIGBUS, nullptr, &before) != 0 || ::sigaction(SIGBUS, &ours, &before) != 0) {
    const int error = errno;
    throw SystemError(error, std::string("cannot handle SIGBUS: ") + std::strerror(error));
  }
  installed = true;
}

/// @throws SystemError
std::byte* map(std::uint64_t size, int protection, int flags, int fd, std::uint64_t offset) {
  void* const mapped = ::mmap(nullptr, size, protection, flags, fd, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) {
    const int error = errno;
    throw SystemError(error, "cannot map " + std::to_string(size) +
                                 " bytes of a device's registers: " + std::strerror(error));
  }
  return static_cast<std::byte*>(mapped);
}

}  // namespace

MappedRegisters::MappedRegisters(int fd, std::uint64_t offset, std::uint64_t size) : size_(size) {
  const std::lock_guard lock(making);
  install();
  while (entry_ < kMost && entries[entry_].state.load() != State::kFree) {
    ++entry_;
  }
  if (entry_ == kMost) {
    throw SystemError(ENOSPC, "this process has the registers of " + std::to_string(kMost) +
                                  " devices mapped: close some first");
  }
  address_ = map(size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
  try {
    spare_ = map(size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  } catch (...) {
    ::munmap(address_, size);
    throw;
  }
  std::memset(spare_, 0xff, size);
  Entry& entry = entries[entry_];
  entry.begin.store(reinterpret_cast<std::uint64_t>(address_), std::memory_order_relaxed);
  entry.size.store(size, std::memory_order_relaxed);
  entry.spare.store(spare_, std::memory_order_relaxed);
  entry.state.store(State::kThere, std::memory_order_release);
}

MappedRegisters::~MappedRegisters() {
  const std::lock_guard lock(making);
  std::atomic<State>& state = entries[entry_].state;
  State last = state.load(std::memory_order_acquire);
  // A handler in another thread may have claimed it, to see whose it is.
  while (last == State::kGoing || !state.compare_exchange_weak(last, State::kFree)) {
    last = state.load(std::memory_order_acquire);
  }
  const bool gone = last == State::kGone;
  ::munmap(address_, size_);
  if (!gone) {
    ::munmap(spare_, size_);
  }
}

bool MappedRegisters::is_gone() const noexcept {
  return entries[entry_].state.load(std::memory_order_acquire) == State::kGone;
}

}  // namespace tutti::runtime::nvme
