// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/runtime/nvme/core/command.hpp"
#include "tutti/runtime/nvme/transport.hpp"
#include "tutti/runtime/ordering.hpp"

namespace tutti::runtime::nvme {

struct BrokerHostOptions {
  Duration admin_timeout{2.0};
  std::uint32_t queues = 64;  ///< I/O queue pairs to ask the controller for, 1 to 1024
};

struct BrokerClientLimits {
  std::uint32_t queues = 1;        ///< kept for it, 1 to 64
  std::uint32_t windows = 1024;    ///< at once, queues and lists among them
  std::uint64_t window_bytes = 0;  ///< of all its windows
  std::vector<LbaRange> ranges;    ///< the only blocks it may touch; empty: all
};

/// What a client is told of itself. The descriptors stay the host's.
struct BrokerClient {
  std::uint32_t id = 0;
  std::vector<std::uint16_t> queue_ids;
  int state_file = -1;
  int doorbell_file = -1;
  std::uint64_t doorbell_bytes = 0;
};

struct BrokerWindow {
  std::uint32_t id = 0;
  std::vector<DmaRun> runs;
};

struct BrokerAnswer {
  std::uint32_t dw0 = 0;
  std::uint16_t status = 0;
  std::vector<std::byte> data;  ///< what Identify read
};

struct BrokerFacts {
  std::string name;
  std::string model;
  std::string serial;
  std::uint64_t cap = 0;  ///< with a doorbell stride of 4 bytes
  std::uint32_t version = 0;
  std::uint32_t queues = 0;      ///< granted by the controller
  bool enforces_ranges = false;  ///< and keeps clients out of each other's windows
};

struct BrokerCounters {
  std::uint32_t clients = 0;
  std::uint32_t stranded = 0;  ///< clients that are gone while the controller may still reach their memory
  std::uint32_t free_queues = 0;
  std::uint64_t resets = 0;  ///< of the controller, after the first
  std::uint64_t refused_doorbells = 0;
  bool up = true;
};

/// The owner of a controller that several processes use: gives out queues and windows, carries doorbells, and
/// ends what a client had. Memory of a client is unmapped only when no queue of it exists any more, or
/// nothing reaches memory at all. Thread-safe.
class BrokerHost {
 public:
  /// @throws InvalidArgument; what Controller throws
  BrokerHost(std::unique_ptr<Transport> transport, const BrokerHostOptions& options);
  ~BrokerHost();
  BrokerHost(const BrokerHost&) = delete;
  BrokerHost& operator=(const BrokerHost&) = delete;

  [[nodiscard]] const BrokerFacts& facts() const noexcept;
  [[nodiscard]] BrokerCounters counters() const;

  /// @throws SystemError: EBUSY when fewer queues are free
  [[nodiscard]] BrokerClient add_client(const BrokerClientLimits& limits);
  /// Ends its queues, then its windows. @returns false when the controller answers nothing and cannot be cut
  /// off: its windows are kept then, until it does.
  bool remove_client(std::uint32_t client);

  // For a client that exists. @throws InvalidArgument for what it may not ask; SystemError
  [[nodiscard]] BrokerWindow map(std::uint32_t client, int fd, std::uint64_t offset, std::uint64_t size);
  void unmap(std::uint32_t client, std::uint32_t window);
  /// One of Identify, Set Features (Number of Queues), Create and Delete of I/O queues, Abort. What is not a
  /// client's own ends with a status, as a controller would have it.
  [[nodiscard]] BrokerAnswer admin(std::uint32_t client, const Command& command);
  /// As a controller reset for this client alone: it has no queues afterwards. Tries a controller that is
  /// down.
  void reset_client(std::uint32_t client);

  /// Whether the controller works; one that failed is reset. To be called now and then.
  bool look_after();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::runtime::nvme
