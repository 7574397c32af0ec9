// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/runtime/nvme/admin_queue.hpp"
#include "tutti/runtime/nvme/identify.hpp"
#include "tutti/runtime/nvme/queue_pair.hpp"
#include "tutti/runtime/nvme/registers.hpp"
#include "tutti/runtime/nvme/transport.hpp"

namespace tutti::runtime::nvme {

struct ControllerOptions {
  Duration admin_timeout{2.0};    ///< of one admin command
  std::uint32_t max_queues = 16;  ///< I/O queue pairs to ask for
};

/// Drives one controller: brings it up, makes and removes I/O queues, gives it back. Every wait has a
/// deadline. Not thread-safe, except for what is const.
class Controller {
 public:
  /// Resets, enables and identifies the controller.
  /// @throws SystemError (CommandFailed for a command); InvalidArgument for one that this driver cannot use.
  Controller(std::unique_ptr<Transport> transport, const ControllerOptions& options);
  /// As shutdown().
  ~Controller();
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  [[nodiscard]] Transport& transport() const noexcept { return *transport_; }
  [[nodiscard]] const ControllerIdentity& identity() const noexcept { return identity_; }
  [[nodiscard]] const std::vector<NamespaceIdentity>& namespaces() const noexcept { return namespaces_; }
  /// Null for an identifier that is not active.
  [[nodiscard]] const NamespaceIdentity* find_namespace(std::uint32_t nsid) const noexcept;
  /// Bytes of a memory page (CC.MPS).
  [[nodiscard]] std::uint64_t page_bytes() const noexcept { return capabilities_.min_page_bytes(); }
  [[nodiscard]] std::uint64_t max_transfer_bytes() const noexcept {
    return identity_.max_transfer_bytes(capabilities_.min_page_bytes());
  }
  [[nodiscard]] std::uint32_t max_entries() const noexcept { return capabilities_.max_entries(); }
  /// I/O queue pairs that the controller granted.
  [[nodiscard]] std::uint32_t max_queues() const noexcept { return granted_queues_; }

  /// Makes a queue pair that the controller knows; `depth` is cut to what it takes.
  /// @throws InvalidArgument when all are taken or a depth is below 2; CommandFailed
  [[nodiscard]] std::unique_ptr<QueuePair> make_queue_pair(std::uint32_t depth,
                                                           MemoryKind kind = MemoryKind::kHost);
  /// Deletes it at the controller; what was in flight is over when this returns. @throws CommandFailed
  void delete_queue_pair(QueuePair& queue);
  /// The two halves of delete_queue_pair(). What had completed before can still be polled between them.
  void delete_submission_queue(QueuePair& queue);
  void delete_completion_queue(QueuePair& queue);
  /// Deletes both queues, makes them anew and clears the pair: everything in flight is forgotten.
  /// @throws CommandFailed
  void remake(QueuePair& queue);
  /// Tells the controller of a cleared pair after reset(). @throws CommandFailed
  void create(QueuePair& queue);

  /// Runs an admin command on behalf of somebody else. @throws CommandFailed
  Completion execute(const Command& command, const char* what) {
    return admin_->execute(command, what, options_.admin_timeout);
  }

  /// Asks to abort a command. @returns whether the controller says that it did. @throws CommandFailed
  bool abort(const QueuePair& queue, std::uint16_t cid);

  /// 0, ENODEV when the device is gone, EIO after a fatal error or a reset that this driver did not ask for.
  [[nodiscard]] int check_alive() const { return nvme::check_alive(*transport_); }

  /// Controller reset: afterwards the admin queue is new and no I/O queue exists; once this has returned
  /// nothing of before touches memory. Namespaces must be what they were. @throws SystemError, also when the
  /// deadline of CAP.TO passes.
  void reset();

  /// Clean hand-back: shutdown notification, then disabled. Says nothing of a device that is gone.
  void shutdown() noexcept;

 private:
  void disable();
  void enable();
  void wait_status(std::uint32_t mask, std::uint32_t value, Duration timeout, const char* what);
  void identify();
  void negotiate_queues();
  void identify_into_memory(std::uint32_t cns, std::uint32_t nsid);
  void admin(AdminOpcode opcode, std::uint32_t cdw10, std::uint32_t cdw11, std::uint64_t address,
             const char* what);

  std::unique_ptr<Transport> transport_;
  const ControllerOptions options_;
  Capabilities capabilities_;
  ControllerIdentity identity_;
  std::vector<NamespaceIdentity> namespaces_;
  std::uint32_t granted_queues_ = 0;
  std::map<std::uint16_t, bool> queue_ids_;  ///< that may be made; whether they are in use
  std::optional<AdminQueue> admin_;
  DmaMemory identify_memory_;  ///< stays: a late answer to a command that timed out may still be written
};

}  // namespace tutti::runtime::nvme
