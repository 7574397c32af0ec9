// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/runtime/nvme/core/annotate.hpp"
#include "tutti/runtime/nvme/core/ordered.hpp"

namespace tutti::runtime::nvme {

/// Completion queue entry, 16 bytes (NVM Express Base Specification, "Completion Queue Entry"). Kept as
/// dwords: the last one carries the phase and is what the drive writes last and the reader reads first.
struct alignas(16) Completion {
  std::uint32_t dw0;  ///< result of the command
  std::uint32_t dw1;
  std::uint32_t dw2;  ///< SQ head in bits 15:0, SQ identifier in 31:16
  std::uint32_t dw3;  ///< command identifier in 15:0, phase in 16, status field in 31:17
};
static_assert(sizeof(Completion) == 16 && offsetof(Completion, dw3) == 12);

TUTTI_HD std::uint16_t sq_head_of(const Completion& entry) noexcept {
  return static_cast<std::uint16_t>(entry.dw2);
}
TUTTI_HD std::uint16_t sq_id_of(const Completion& entry) noexcept {
  return static_cast<std::uint16_t>(entry.dw2 >> 16);
}
TUTTI_HD std::uint16_t cid_of(const Completion& entry) noexcept {
  return static_cast<std::uint16_t>(entry.dw3);
}
TUTTI_HD bool phase_of(std::uint32_t dw3) noexcept { return ((dw3 >> 16) & 1U) != 0; }
/// The 15 bits of the status field; 0 is success.
TUTTI_HD std::uint16_t status_of(const Completion& entry) noexcept {
  return static_cast<std::uint16_t>(entry.dw3 >> 17);
}

/// Parts of a status field.
TUTTI_HD std::uint8_t status_code(std::uint16_t status) noexcept { return static_cast<std::uint8_t>(status); }
TUTTI_HD std::uint8_t status_type(std::uint16_t status) noexcept { return (status >> 8) & 0x7U; }
/// Do Not Retry: the same command will fail again.
TUTTI_HD bool do_not_retry(std::uint16_t status) noexcept { return (status & 0x4000U) != 0; }

/// Status type and code in one, as bits 10:0 of the status field have them.
enum Status : std::uint16_t {
  kStatusSuccess = 0x000,
  kStatusInvalidOpcode = 0x001,
  kStatusInvalidField = 0x002,
  kStatusCommandIdConflict = 0x003,
  kStatusDataTransferError = 0x004,
  kStatusInternalError = 0x006,
  kStatusAbortRequested = 0x007,
  kStatusAbortedSqDeletion = 0x008,
  kStatusInvalidNamespace = 0x00b,
  kStatusInvalidSglSegment = 0x00d,
  kStatusInvalidSglCount = 0x00e,
  kStatusSglDataLength = 0x00f,
  kStatusSglType = 0x011,
  kStatusInvalidPrpOffset = 0x013,
  kStatusLbaOutOfRange = 0x080,
  kStatusCapacityExceeded = 0x081,
  kStatusNamespaceNotReady = 0x082,
  kStatusCompletionQueueInvalid = 0x100,
  kStatusInvalidQueueId = 0x101,
  kStatusInvalidQueueSize = 0x102,
  kStatusAbortLimit = 0x103,
  kStatusInvalidQueueDeletion = 0x10c,
  kStatusWriteFault = 0x280,
  kStatusUnrecoveredRead = 0x281,
  kStatusAccessDenied = 0x286,
};

TUTTI_HD std::uint16_t kind_of_status(std::uint16_t status) noexcept { return status & 0x7ffU; }

/// The errno that stands for a status field in item statuses, by its number on Linux (the GPU has no
/// errno.h).
TUTTI_HD std::int32_t to_errno(std::uint16_t status) noexcept {
  constexpr std::int32_t no_space = 28;
  constexpr std::int32_t io_error = 5;
  constexpr std::int32_t canceled = 125;
  constexpr std::int32_t invalid = 22;
  constexpr std::int32_t no_device = 19;
  constexpr std::int32_t no_data = 61;
  constexpr std::int32_t no_access = 13;
  switch (kind_of_status(status)) {
    case kStatusSuccess:
      return 0;
    case kStatusAbortRequested:
    case kStatusAbortedSqDeletion:
      return canceled;
    case kStatusInvalidOpcode:
    case kStatusInvalidField:
    case kStatusInvalidPrpOffset:
    case kStatusInvalidSglSegment:
    case kStatusInvalidSglCount:
    case kStatusSglDataLength:
    case kStatusSglType:
      return invalid;
    case kStatusInvalidNamespace:
      return no_device;
    case kStatusLbaOutOfRange:
    case kStatusCapacityExceeded:
      return no_space;
    case kStatusUnrecoveredRead:
      return no_data;
    case kStatusAccessDenied:
      return no_access;
    default:
      return io_error;
  }
}

/// Takes the entry if the drive has written it in this round of the ring.
TUTTI_HD bool read_completion(const Completion* slot, bool phase, Completion& entry) noexcept {
  const std::uint32_t last = load_acquire(&slot->dw3);
  if (phase_of(last) != phase) {
    return false;
  }
  entry.dw0 = slot->dw0;
  entry.dw1 = slot->dw1;
  entry.dw2 = slot->dw2;
  entry.dw3 = last;
  return true;
}

}  // namespace tutti::runtime::nvme
