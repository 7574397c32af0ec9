// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstdint>
#include <map>
#include <string>

#include "protocol.hpp"
#include "shared_memory.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/broker_host.hpp"
#include "tutti/runtime/nvme/core/ordered.hpp"

namespace tutti::runtime::nvme::broker {

/// Where a ring lies on the bus; without bytes: the controller has none.
struct Ring {
  std::uint64_t iova = 0;
  std::uint64_t bytes = 0;
};

struct Queue {
  Ring sq;
  Ring cq;
};

/// Memory of a client, mapped here and for the device. The device's mapping goes first.
struct Window {
  SharedMapping memory;
  DmaMapping mapping;
};

/// What the host holds of one client. The host locks.
class Client {
 public:
  /// @throws SystemError
  Client(const BrokerClientLimits& limits, std::uint32_t largest_queue_id) : limits_(limits) {
    constexpr std::uint64_t page = 4096;
    const std::uint64_t bytes = (std::uint64_t{largest_queue_id} + 1) * 2 * sizeof(std::uint32_t);
    doorbell_file = make_memory_file("tutti-doorbells", (bytes + page - 1) / page * page);
    doorbells = SharedMapping(doorbell_file.get(), 0, (bytes + page - 1) / page * page, true);
    const Descriptor file = make_memory_file("tutti-state", page);
    state_ = SharedMapping(file.get(), 0, page, true);
    state_reader = make_reader(file);
  }

  void say(std::uint32_t state) noexcept { store_release(state_.words() + kStateWord, state); }
  [[nodiscard]] std::uint32_t state() const noexcept { return load_acquire(state_.words() + kStateWord); }

  /// Null for a queue that was not given to this client.
  [[nodiscard]] Queue* find_queue(std::uint32_t cdw10) noexcept {
    const auto place = queues.find(static_cast<std::uint16_t>(cdw10));
    return place == queues.end() ? nullptr : &place->second;
  }
  [[nodiscard]] bool has_queues() const noexcept {
    for (const auto& [id, queue] : queues) {
      if (queue.sq.bytes != 0 || queue.cq.bytes != 0) {
        return true;
      }
    }
    return false;
  }
  void forget_queues() noexcept {
    for (auto& [id, queue] : queues) {
      queue = {};
    }
  }

  /// @throws SystemError
  void require_room(std::uint64_t size) const {
    if (windows.size() >= limits_.windows) {
      throw SystemError(ENOSPC, "a client may have " + std::to_string(limits_.windows) +
                                    " windows at once (windows in the daemon's settings)");
    }
    if (window_bytes > limits_.window_bytes || size > limits_.window_bytes - window_bytes) {
      throw SystemError(ENOSPC, "a client may share " + std::to_string(limits_.window_bytes) +
                                    " bytes and has " + std::to_string(window_bytes) + ", so not " +
                                    std::to_string(size) + " more (window_bytes in the daemon's settings)");
    }
  }

  /// Whether one window has the whole range in one piece on the bus.
  [[nodiscard]] bool has(std::uint64_t iova, std::uint64_t bytes) const noexcept {
    for (const auto& [id, window] : windows) {
      if (has(window, iova, bytes)) {
        return true;
      }
    }
    return false;
  }

  /// @throws InvalidArgument
  void unmap(std::uint32_t id) {
    const auto place = windows.find(id);
    if (place == windows.end()) {
      throw InvalidArgument("window=" + std::to_string(id) + " does not exist");
    }
    for (const auto& [number, queue] : queues) {
      for (const Ring& ring : {queue.sq, queue.cq}) {
        if (ring.bytes != 0 && has(place->second, ring.iova, ring.bytes)) {
          throw InvalidArgument("window=" + std::to_string(id) + " has queue " + std::to_string(number) +
                                " in it; delete the queue first");
        }
      }
    }
    window_bytes -= place->second.memory.size();
    windows.erase(place);
  }

  Descriptor doorbell_file;
  Descriptor state_reader;
  SharedMapping doorbells;
  std::map<std::uint16_t, Queue> queues;
  std::map<std::uint32_t, Window> windows;
  std::uint64_t window_bytes = 0;
  std::uint32_t next_window = 1;

 private:
  [[nodiscard]] static bool has(const Window& window, std::uint64_t iova, std::uint64_t bytes) noexcept {
    for (const DmaRun& run : window.mapping.runs()) {
      if (iova >= run.iova && iova - run.iova <= run.size && bytes <= run.size - (iova - run.iova)) {
        return true;
      }
    }
    return false;
  }

  const BrokerClientLimits limits_;
  SharedMapping state_;
};

}  // namespace tutti::runtime::nvme::broker
