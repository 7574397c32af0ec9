// SPDX-License-Identifier: Apache-2.0
#include "relay.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "tutti/runtime/nvme/core/ordered.hpp"
#include "tutti/runtime/nvme/registers.hpp"

namespace tutti::runtime::nvme::qtest {
namespace {

// No doorbell value: tails and heads have 16 bits.
constexpr std::uint32_t kUnrung = kAllOnes;
constexpr int kSpins = 2000;
constexpr std::chrono::microseconds kPause{50};

}  // namespace

DoorbellRelay::DoorbellRelay(Write write, int device)
    : write_(std::move(write)), words_(std::make_unique<Words>()) {
  words_->at.fill(kUnrung);
  seen_.fill(kUnrung);
  if (device != kAnyDevice) {
    pin_ =
        std::make_unique<detail::HostPin>(reinterpret_cast<std::byte*>(words_.get()), sizeof(Words), device);
  }
  thread_ = std::thread([this] { run(); });
}

DoorbellRelay::~DoorbellRelay() {
  stop_.store(true, std::memory_order_relaxed);
  thread_.join();
}

std::uint32_t* DoorbellRelay::begin(std::uint32_t offset) {
  const std::uint32_t index = (offset - kDoorbells) / 4;
  if (offset < kDoorbells || offset % 4 != 0 || index >= kWords) {
    return nullptr;
  }
  std::lock_guard lock(mutex_);
  watched_ = std::max(watched_, index + 1);
  store_release(&words_->at[index], kUnrung);
  seen_[index] = kUnrung;
  return &words_->at[index];
}

std::uint32_t DoorbellRelay::take(std::uint32_t index) {
  // Only read: whether an exchange by the CPU keeps a GPU's store that comes at the same time is nothing to
  // rely on.
  const std::uint32_t value = load_acquire(&words_->at[index]);
  if (value == seen_[index]) {
    return kUnrung;
  }
  seen_[index] = value;
  return value;
}

bool DoorbellRelay::look() {
  std::lock_guard lock(mutex_);
  // A bus keeps the stores of a processor in order. It matters for an admin command, which may delete a
  // queue: what was rung before it is found after it is taken, and goes first.
  const std::uint32_t admin_tail = take(0);
  bool rung = admin_tail != kUnrung;
  for (std::uint32_t index = 1; index < watched_; ++index) {
    const std::uint32_t value = take(index);
    if (value != kUnrung) {
      write_(kDoorbells + 4 * index, value);
      rung = true;
    }
  }
  if (admin_tail != kUnrung) {
    write_(kDoorbells, admin_tail);
  }
  return rung;
}

void DoorbellRelay::run() {
  int idle = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    idle = look() ? 0 : idle + 1;
    if (idle > kSpins) {
      std::this_thread::sleep_for(kPause);
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace tutti::runtime::nvme::qtest
