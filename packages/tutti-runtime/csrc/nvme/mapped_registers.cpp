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

/// True when the access may be tried again. Of several threads one changes the mapping; the others try again
/// and come back until it has.
bool replace(std::uint64_t address) noexcept {
  for (Entry& entry : entries) {
    State state = entry.state.load(std::memory_order_acquire);
    const std::uint64_t begin = entry.begin.load(std::memory_order_relaxed);
    const std::uint64_t size = entry.size.load(std::memory_order_relaxed);
    if (state == State::kFree || address - begin >= size) {
      continue;
    }
    if (state == State::kThere &&
        entry.state.compare_exchange_strong(state, State::kGoing, std::memory_order_acq_rel)) {
      void* const spare = entry.spare.load(std::memory_order_relaxed);
      void* const moved =
          ::mremap(spare, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, reinterpret_cast<void*>(begin));
      entry.state.store(moved != MAP_FAILED ? State::kGone : State::kThere, std::memory_order_release);
      return moved != MAP_FAILED;
    }
    return true;
  }
  return false;
}

/// What would have been done without us.
void pass_on(int number, siginfo_t* info, void* context) noexcept {
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  } else if (before.sa_handler == SIG_DFL || info->si_code > 0) {
    // An access that cannot be done ends the process where it comes again; what was sent is sent again.
    ::signal(number, SIG_DFL);
    if (info->si_code <= 0) {
      ::raise(number);
    }
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
  if (::sigaction(SIGBUS, nullptr, &before) != 0 || ::sigaction(SIGBUS, &ours, nullptr) != 0) {
    throw SystemError(errno, "cannot handle SIGBUS");
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
  const bool gone = is_gone();
  entries[entry_].state.store(State::kFree, std::memory_order_release);
  ::munmap(address_, size_);
  if (!gone) {
    ::munmap(spare_, size_);
  }
}

bool MappedRegisters::is_gone() const noexcept {
  return entries[entry_].state.load(std::memory_order_acquire) == State::kGone;
}

}  // namespace tutti::runtime::nvme
