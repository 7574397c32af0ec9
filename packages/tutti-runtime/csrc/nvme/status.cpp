// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/nvme/status.hpp"

#include <array>
#include <cstdio>
#include <utility>

#include "tutti/runtime/nvme/core/completion.hpp"

namespace tutti::runtime::nvme {
namespace {

constexpr std::array<std::pair<std::uint16_t, const char*>, 24> kNames{{
    {kStatusSuccess, "Successful Completion"},
    {kStatusInvalidOpcode, "Invalid Command Opcode"},
    {kStatusInvalidField, "Invalid Field in Command"},
    {kStatusCommandIdConflict, "Command ID Conflict"},
    {kStatusDataTransferError, "Data Transfer Error"},
    {kStatusInternalError, "Internal Error"},
    {kStatusAbortRequested, "Command Abort Requested"},
    {kStatusAbortedSqDeletion, "Command Aborted due to SQ Deletion"},
    {kStatusInvalidNamespace, "Invalid Namespace or Format"},
    {kStatusInvalidSglSegment, "Invalid SGL Segment Descriptor"},
    {kStatusInvalidSglCount, "Invalid Number of SGL Descriptors"},
    {kStatusSglDataLength, "Data SGL Length Invalid"},
    {kStatusSglType, "SGL Descriptor Type Invalid"},
    {kStatusInvalidPrpOffset, "PRP Offset Invalid"},
    {kStatusLbaOutOfRange, "LBA Out of Range"},
    {kStatusCapacityExceeded, "Capacity Exceeded"},
    {kStatusNamespaceNotReady, "Namespace Not Ready"},
    {kStatusCompletionQueueInvalid, "Completion Queue Invalid"},
    {kStatusInvalidQueueId, "Invalid Queue Identifier"},
    {kStatusInvalidQueueSize, "Invalid Queue Size"},
    {kStatusAbortLimit, "Abort Command Limit Exceeded"},
    {kStatusInvalidQueueDeletion, "Invalid Queue Deletion"},
    {kStatusWriteFault, "Write Fault"},
    {kStatusUnrecoveredRead, "Unrecovered Read Error"},
}};

}  // namespace

std::string describe_status(std::uint16_t status) {
  std::string text = "status";
  for (const auto& [code, name] : kNames) {
    if (code == kind_of_status(status)) {
      text = name;
    }
  }
  std::array<char, 16> number{};
  std::snprintf(number.data(), number.size(), " (0x%02x)", unsigned{kind_of_status(status)});
  text += number.data();
  return do_not_retry(status) ? text + ", do not retry" : text;
}

}  // namespace tutti::runtime::nvme
