// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/runtime/nvme/core/annotate.hpp"

namespace tutti::runtime::nvme {

/// One entry of a scatter gather list, 16 bytes (NVM Express Base Specification, "Scatter Gather List").
struct SglDescriptor {
  std::uint64_t address;  ///< of the data, or of the next segment
  std::uint32_t length;   ///< bytes
  std::uint8_t reserved[3];
  std::uint8_t identifier;  ///< type in bits 7:4, sub type in 3:0 (0: `address` is an address)
};
static_assert(sizeof(SglDescriptor) == 16 && offsetof(SglDescriptor, identifier) == 15);

inline constexpr std::uint8_t kSglDataBlock = 0x00;    ///< identifier of data
inline constexpr std::uint8_t kSglSegment = 0x20;      ///< of a segment that another one follows
inline constexpr std::uint8_t kSglLastSegment = 0x30;  ///< of the last segment

/// Where a command's data lies: the DPTR field (bytes 24 to 39 of a command) and the PSDT bits that go with
/// it.
struct DataPointer {
  std::uint64_t low = 0;   ///< PRP1, or the first half of an SGL descriptor
  std::uint64_t high = 0;  ///< PRP2, or the second half
  std::uint8_t psdt = 0;   ///< 0: PRPs; 1: SGL, metadata pointer is an address
};

inline constexpr std::uint8_t kPsdtPrp = 0;
inline constexpr std::uint8_t kPsdtSgl = 1;

TUTTI_HD DataPointer prp_pointer(std::uint64_t prp1, std::uint64_t prp2) noexcept {
  DataPointer pointer;
  pointer.low = prp1;
  pointer.high = prp2;
  pointer.psdt = kPsdtPrp;
  return pointer;
}

TUTTI_HD DataPointer sgl_pointer(std::uint64_t address, std::uint32_t length,
                                 std::uint8_t identifier) noexcept {
  DataPointer pointer;
  pointer.low = address;
  pointer.high = std::uint64_t{length} | (std::uint64_t{identifier} << 56);
  pointer.psdt = kPsdtSgl;
  return pointer;
}

/// The descriptor that an SGL command carries itself.
TUTTI_HD SglDescriptor sgl_of(const DataPointer& pointer) noexcept {
  SglDescriptor descriptor{};
  descriptor.address = pointer.low;
  descriptor.length = static_cast<std::uint32_t>(pointer.high);
  descriptor.reserved[0] = static_cast<std::uint8_t>(pointer.high >> 32);
  descriptor.reserved[1] = static_cast<std::uint8_t>(pointer.high >> 40);
  descriptor.reserved[2] = static_cast<std::uint8_t>(pointer.high >> 48);
  descriptor.identifier = static_cast<std::uint8_t>(pointer.high >> 56);
  return descriptor;
}

}  // namespace tutti::runtime::nvme
