// SPDX-License-Identifier: Apache-2.0
// Queues as rings (NVM Express Base Specification, "Queue Model"): full is one entry less than the depth, and
// the phase bit of completions turns over with every round.
#pragma once

#include <cstdint>

#include "tutti/runtime/nvme/core/annotate.hpp"
#include "tutti/runtime/nvme/core/command.hpp"
#include "tutti/runtime/nvme/core/completion.hpp"

namespace tutti::runtime::nvme {

TUTTI_HD std::uint32_t ring_next(std::uint32_t index, std::uint32_t depth) noexcept {
  return index + 1 == depth ? 0 : index + 1;
}

/// Entries between `head` and `tail`.
TUTTI_HD std::uint32_t ring_used(std::uint32_t head, std::uint32_t tail, std::uint32_t depth) noexcept {
  return tail >= head ? tail - head : tail + depth - head;
}

TUTTI_HD std::uint32_t ring_space(std::uint32_t head, std::uint32_t tail, std::uint32_t depth) noexcept {
  return depth - 1 - ring_used(head, tail, depth);
}

/// The submitter's side of a submission queue. One owner at a time.
struct SubmissionRing {
  Command* entries = nullptr;
  std::uint32_t depth = 0;  ///< 2 to 65536
  std::uint32_t head = 0;   ///< as the last completion told it
  std::uint32_t tail = 0;   ///< next entry to write; the drive knows of it once the doorbell says so

  [[nodiscard]] TUTTI_HD std::uint32_t space() const noexcept { return ring_space(head, tail, depth); }

  /// There must be space.
  TUTTI_HD void push(const Command& command) noexcept {
    entries[tail] = command;
    tail = ring_next(tail, depth);
  }

  /// @returns false for a head that no correct drive tells: outside of the entries in use.
  [[nodiscard]] TUTTI_HD bool set_head(std::uint32_t told) noexcept {
    if (told >= depth || ring_used(head, told, depth) > ring_used(head, tail, depth)) {
      return false;
    }
    head = told;
    return true;
  }
};

/// The reader's side of a completion queue. One owner at a time.
struct CompletionRing {
  const Completion* entries = nullptr;
  std::uint32_t depth = 0;
  std::uint32_t head = 0;
  bool phase = true;  ///< of entries that are new in this round

  /// Takes the next entry if there is one. The drive may use its place again once the doorbell tells the
  /// head.
  [[nodiscard]] TUTTI_HD bool pop(Completion& entry) noexcept {
    if (!read_completion(entries + head, phase, entry)) {
      return false;
    }
    head = ring_next(head, depth);
    phase = head == 0 ? !phase : phase;
    return true;
  }
};

/// Commands that may be under way at once: their completions must find a place in the CQ even when the reader
/// takes none meanwhile, and an SQ holds one less than its depth.
TUTTI_HD std::uint32_t max_commands(std::uint32_t sq_depth, std::uint32_t cq_depth) noexcept {
  return (sq_depth < cq_depth ? sq_depth : cq_depth) - 1;
}

}  // namespace tutti::runtime::nvme
