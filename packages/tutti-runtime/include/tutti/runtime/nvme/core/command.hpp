// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/runtime/nvme/core/annotate.hpp"
#include "tutti/runtime/nvme/core/data_pointer.hpp"

namespace tutti::runtime::nvme {

/// Submission queue entry, 64 bytes, little-endian like every field of NVMe (NVM Express Base Specification,
/// "Submission Queue Entry").
struct alignas(64) Command {
  std::uint8_t opcode;
  std::uint8_t flags;  ///< FUSE in bits 1:0, PSDT in 7:6
  std::uint16_t cid;   ///< unique among the commands in flight of its queue
  std::uint32_t nsid;
  std::uint32_t cdw2;
  std::uint32_t cdw3;
  std::uint64_t metadata;
  std::uint64_t data_low;
  std::uint64_t data_high;
  std::uint32_t cdw10;
  std::uint32_t cdw11;
  std::uint32_t cdw12;
  std::uint32_t cdw13;
  std::uint32_t cdw14;
  std::uint32_t cdw15;
};
static_assert(sizeof(Command) == 64 && offsetof(Command, cid) == 2 && offsetof(Command, metadata) == 16);
static_assert(offsetof(Command, data_low) == 24 && offsetof(Command, cdw10) == 40);

/// Opcodes of I/O queues (NVM Command Set Specification).
enum class IoOpcode : std::uint8_t { kFlush = 0x00, kWrite = 0x01, kRead = 0x02 };

/// Opcodes of the admin queue (NVM Express Base Specification).
enum class AdminOpcode : std::uint8_t {
  kDeleteIoSq = 0x00,
  kCreateIoSq = 0x01,
  kDeleteIoCq = 0x04,
  kCreateIoCq = 0x05,
  kIdentify = 0x06,
  kAbort = 0x08,
  kSetFeatures = 0x09,
  kGetFeatures = 0x0a,
};

inline constexpr std::uint32_t kMaxBlocksPerCommand = 65536;  ///< NLB is 16 bits wide and counts from 0

TUTTI_HD void set_data(Command& command, const DataPointer& data) noexcept {
  command.flags = static_cast<std::uint8_t>((command.flags & 0x3fU) | (unsigned{data.psdt} << 6));
  command.data_low = data.low;
  command.data_high = data.high;
}

TUTTI_HD DataPointer data_of(const Command& command) noexcept {
  DataPointer data;
  data.low = command.data_low;
  data.high = command.data_high;
  data.psdt = static_cast<std::uint8_t>(command.flags >> 6);
  return data;
}

TUTTI_HD Command make_io(IoOpcode opcode, std::uint32_t nsid, std::uint64_t slba, std::uint32_t blocks,
                         std::uint16_t cid, const DataPointer& data) noexcept {
  Command command{};
  command.opcode = static_cast<std::uint8_t>(opcode);
  command.cid = cid;
  command.nsid = nsid;
  command.cdw10 = static_cast<std::uint32_t>(slba);
  command.cdw11 = static_cast<std::uint32_t>(slba >> 32);
  command.cdw12 = blocks - 1;
  set_data(command, data);
  return command;
}

/// `blocks` logical blocks, 1 to kMaxBlocksPerCommand, from `slba` on.
TUTTI_HD Command make_read(std::uint32_t nsid, std::uint64_t slba, std::uint32_t blocks, std::uint16_t cid,
                           const DataPointer& data) noexcept {
  return make_io(IoOpcode::kRead, nsid, slba, blocks, cid, data);
}

TUTTI_HD Command make_write(std::uint32_t nsid, std::uint64_t slba, std::uint32_t blocks, std::uint16_t cid,
                            const DataPointer& data) noexcept {
  return make_io(IoOpcode::kWrite, nsid, slba, blocks, cid, data);
}

TUTTI_HD Command make_flush(std::uint32_t nsid, std::uint16_t cid) noexcept {
  Command command{};
  command.opcode = static_cast<std::uint8_t>(IoOpcode::kFlush);
  command.cid = cid;
  command.nsid = nsid;
  return command;
}

TUTTI_HD std::uint64_t slba_of(const Command& command) noexcept {
  return std::uint64_t{command.cdw10} | (std::uint64_t{command.cdw11} << 32);
}

TUTTI_HD std::uint32_t blocks_of(const Command& command) noexcept { return (command.cdw12 & 0xffffU) + 1; }

}  // namespace tutti::runtime::nvme
