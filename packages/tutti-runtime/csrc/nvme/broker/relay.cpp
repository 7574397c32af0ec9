// SPDX-License-Identifier: Apache-2.0
#include "relay.hpp"

#include <algorithm>
#include <chrono>

#include "tutti/runtime/detail/io_thread.hpp"
#include "tutti/runtime/nvme/backoff.hpp"
#include "tutti/runtime/nvme/core/ordered.hpp"
#include "tutti/runtime/nvme/registers.hpp"

namespace tutti::runtime::nvme::broker {
namespace {

constexpr std::chrono::microseconds kLongestNap(100);

}  // namespace

Relay::Relay(Transport& transport, std::uint32_t doorbell_stride)
    : transport_(transport), stride_(doorbell_stride) {
  thread_ = detail::start_io_thread("tutti-nvmed", [this] { work(); });
}

Relay::~Relay() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

Relay::Side Relay::begin(std::uint32_t offset, std::uint32_t depth, std::uint32_t* word) {
  store_release(word, 0U);
  return {word, transport_.doorbell(offset), offset, depth, 0};
}

void Relay::begin_cq(std::uint16_t id, std::uint32_t depth, std::uint32_t* word) {
  const std::lock_guard lock(mutex_);
  Lane lane;
  lane.id = id;
  lane.head = begin(cq_head_doorbell(id, stride_), depth, word);
  lanes_.push_back(lane);
  changed_.notify_all();
}

void Relay::begin_sq(std::uint16_t id, std::uint32_t depth, std::uint32_t* word) {
  const std::lock_guard lock(mutex_);
  for (Lane& lane : lanes_) {
    if (lane.id == id) {
      lane.tail = begin(sq_tail_doorbell(id, stride_), depth, word);
    }
  }
}

void Relay::end_sq(std::uint16_t id) {
  const std::lock_guard lock(mutex_);
  for (Lane& lane : lanes_) {
    if (lane.id == id) {
      lane.tail = {};
    }
  }
}

void Relay::end_cq(std::uint16_t id) {
  const std::lock_guard lock(mutex_);
  std::erase_if(lanes_, [id](const Lane& lane) { return lane.id == id; });
}

void Relay::end_all() {
  const std::lock_guard lock(mutex_);
  lanes_.clear();
}

bool Relay::carry(Side& side, std::uint32_t value) {
  if (side.from == nullptr || value == side.last) {
    return false;
  }
  side.last = value;
  if (value >= side.depth) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  if (side.to != nullptr) {
    ring_doorbell(side.to, value);
  } else {
    transport_.write32(side.offset, value);
  }
  return true;
}

bool Relay::look() {
  bool any = false;
  for (Lane& lane : lanes_) {
    // A client frees places of its completion queue before it rings for more commands. Read the other way
    // round, and carried in its order, the controller never sees commands for whose answers it knows no
    // place.
    const std::uint32_t tail = lane.tail.from != nullptr ? load_acquire(lane.tail.from) : 0;
    any = carry(lane.head, load_acquire(lane.head.from)) || any;
    any = carry(lane.tail, tail) || any;
  }
  return any;
}

void Relay::work() noexcept {
  Backoff backoff(kLongestNap);
  while (true) {
    bool any = false;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !lanes_.empty(); });
      if (stopping_) {
        return;
      }
      any = look();
    }
    if (any) {
      backoff.reset();
    } else {
      backoff.pause();
    }
  }
}

}  // namespace tutti::runtime::nvme::broker
