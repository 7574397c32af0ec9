// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "tutti/runtime/nvme/core/command_ids.hpp"
#include "tutti/runtime/nvme/core/ring.hpp"
#include "tutti/runtime/nvme/transport.hpp"

namespace tutti::runtime::nvme {

/// A submission queue with a completion queue of its own, as the host or a GPU works on them. Not
/// thread-safe: one owner. Memory and doorbells only; the controller learns of the queues from Controller.
class QueuePair {
 public:
  /// `depth` entries in both queues, 2 or more. @throws what Transport::allocate() throws.
  QueuePair(Transport& transport, std::uint16_t id, std::uint32_t depth, std::uint32_t doorbell_stride,
            MemoryKind kind = MemoryKind::kHost);

  [[nodiscard]] std::uint16_t id() const noexcept { return id_; }
  [[nodiscard]] std::uint32_t depth() const noexcept { return depth_; }
  /// Commands that may be under way at once.
  [[nodiscard]] std::uint32_t capacity() const noexcept { return ids_.capacity; }
  [[nodiscard]] std::uint32_t in_flight() const noexcept { return ids_.capacity - ids_.free_count; }
  /// Whether submit() has room.
  [[nodiscard]] bool has_room() const noexcept { return ids_.free_count > 0 && sq_.space() > 0; }

  /// Gives the command an identifier and writes it into the queue; the controller sees it after ring(). There
  /// must be room. @returns the identifier.
  std::uint16_t submit(const Command& command) noexcept {
    const std::uint16_t cid = ids_.take();
    sq_.entries[sq_.tail] = command;
    sq_.entries[sq_.tail].cid = cid;
    sq_.tail = ring_next(sq_.tail, sq_.depth);
    return cid;
  }

  /// Tells the controller of new commands, if there are any.
  void ring() noexcept {
    if (sq_.tail != rung_tail_) {
      rung_tail_ = sq_.tail;
      store(sq_doorbell_, sq_offset_, sq_.tail);
    }
  }

  /// Calls `done(cid, entry)` for up to `most` completions and frees their places. The identifier is free
  /// when `done` runs. Completions of no command in flight are counted and left out. @returns entries taken.
  template <typename Done>
  std::uint32_t poll(Done done, std::uint32_t most = UINT32_MAX) {
    std::uint32_t count = 0;
    Completion entry;
    while (count < most && cq_.pop(entry)) {
      ++count;
      if (!ids_.owns(cid_of(entry)) || sq_id_of(entry) != id_ || !sq_.set_head(sq_head_of(entry))) {
        ++strays_;
        continue;
      }
      ids_.give_back(cid_of(entry));
      done(cid_of(entry), static_cast<const Completion&>(entry));
    }
    if (count > 0) {
      store(cq_doorbell_, cq_offset_, cq_.head);
    }
    return count;
  }

  /// Slot of an identifier, 0 to capacity() - 1: for tables of what is under way.
  [[nodiscard]] std::uint32_t slot_of(std::uint16_t cid) const noexcept { return ids_.slot_of(cid); }
  [[nodiscard]] bool owns(std::uint16_t cid) const noexcept { return ids_.owns(cid); }

  /// Completions that belonged to nobody.
  [[nodiscard]] std::uint64_t strays() const noexcept { return strays_; }

  /// As new, for when the controller no longer has the queues. Identifiers stay different from those of
  /// before.
  void clear() noexcept;

  // For whoever else works on the rings (a GPU) or tells the controller of them.
  [[nodiscard]] const DmaMemory& sq_memory() const noexcept { return sq_memory_; }
  [[nodiscard]] const DmaMemory& cq_memory() const noexcept { return cq_memory_; }
  [[nodiscard]] SubmissionRing& submission_ring() noexcept { return sq_; }
  [[nodiscard]] CompletionRing& completion_ring() noexcept { return cq_; }
  [[nodiscard]] CommandIds& command_ids() noexcept { return ids_; }
  [[nodiscard]] std::uint32_t* sq_doorbell() const noexcept { return sq_doorbell_; }
  [[nodiscard]] std::uint32_t* cq_doorbell() const noexcept { return cq_doorbell_; }

 private:
  void store(std::uint32_t* doorbell, std::uint32_t offset, std::uint32_t value) noexcept {
    if (doorbell != nullptr) {
      ring_doorbell(doorbell, value);
    } else {
      transport_.write32(offset, value);
    }
  }

  Transport& transport_;
  const std::uint16_t id_;
  const std::uint32_t depth_;
  DmaMemory sq_memory_;
  DmaMemory cq_memory_;
  std::uint32_t sq_offset_;
  std::uint32_t cq_offset_;
  std::uint32_t* sq_doorbell_;
  std::uint32_t* cq_doorbell_;
  SubmissionRing sq_;
  CompletionRing cq_;
  std::uint32_t rung_tail_ = 0;
  std::vector<std::uint16_t> id_memory_;
  std::vector<std::uint16_t> free_memory_;
  std::vector<std::uint8_t> in_use_memory_;
  CommandIds ids_;
  std::uint64_t strays_ = 0;
};

}  // namespace tutti::runtime::nvme
