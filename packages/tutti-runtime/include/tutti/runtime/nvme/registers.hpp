// SPDX-License-Identifier: Apache-2.0
// Controller registers (NVM Express Base Specification, "Controller Properties"; their place in BAR0 and the
// doorbells: NVMe over PCIe Transport Specification).
#pragma once

#include <cstdint>

namespace tutti::runtime::nvme {

enum Register : std::uint32_t {
  kCap = 0x00,    ///< capabilities, 64 bits
  kVs = 0x08,     ///< version
  kIntms = 0x0c,  ///< interrupt mask set
  kIntmc = 0x10,  ///< interrupt mask clear
  kCc = 0x14,     ///< configuration
  kCsts = 0x1c,   ///< status
  kNssr = 0x20,   ///< NVM subsystem reset
  kAqa = 0x24,    ///< admin queue attributes
  kAsq = 0x28,    ///< admin SQ base address, 64 bits
  kAcq = 0x30,    ///< admin CQ base address, 64 bits
  kCmbloc = 0x38,
  kCmbsz = 0x3c,
  kDoorbells = 0x1000,
};

/// What a PCIe read of a device that is gone gives.
inline constexpr std::uint32_t kAllOnes = 0xffffffffU;

struct Capabilities {
  std::uint64_t value = 0;

  /// Largest number of entries of an I/O queue (MQES counts from 0).
  [[nodiscard]] std::uint32_t max_entries() const noexcept { return (value & 0xffffU) + 1; }
  [[nodiscard]] bool contiguous_queues() const noexcept { return ((value >> 16) & 1U) != 0; }
  /// Longest time that enabling and disabling may take, in milliseconds.
  [[nodiscard]] std::uint32_t timeout_ms() const noexcept {
    return static_cast<std::uint32_t>((value >> 24) & 0xffU) * 500;
  }
  /// Bytes from one doorbell to the next.
  [[nodiscard]] std::uint32_t doorbell_stride() const noexcept { return 4U << ((value >> 32) & 0xfU); }
  [[nodiscard]] bool nvm_command_set() const noexcept { return ((value >> 37) & 1U) != 0; }
  [[nodiscard]] std::uint64_t min_page_bytes() const noexcept {
    return std::uint64_t{4096} << ((value >> 48) & 0xfU);
  }
  [[nodiscard]] std::uint64_t max_page_bytes() const noexcept {
    return std::uint64_t{4096} << ((value >> 52) & 0xfU);
  }
};

// Fields of CC.
inline constexpr std::uint32_t kCcEnable = 1U;
inline constexpr std::uint32_t kCcPageShift = 7;            ///< MPS: page size is 2^(12 + MPS)
inline constexpr std::uint32_t kCcShutdownMask = 3U << 14;  ///< SHN
inline constexpr std::uint32_t kCcShutdownNormal = 1U << 14;
inline constexpr std::uint32_t kCcSqEntry64 = 6U << 16;  ///< IOSQES: 2^6 bytes
inline constexpr std::uint32_t kCcCqEntry16 = 4U << 20;  ///< IOCQES: 2^4 bytes

// Fields of CSTS.
inline constexpr std::uint32_t kCstsReady = 1U;
inline constexpr std::uint32_t kCstsFatal = 2U;
inline constexpr std::uint32_t kCstsShutdownMask = 3U << 2;  ///< SHST
inline constexpr std::uint32_t kCstsShutdownDone = 2U << 2;

/// Offset of a queue's doorbell in BAR0.
[[nodiscard]] constexpr std::uint32_t sq_tail_doorbell(std::uint16_t queue, std::uint32_t stride) noexcept {
  return kDoorbells + 2U * queue * stride;
}
[[nodiscard]] constexpr std::uint32_t cq_head_doorbell(std::uint16_t queue, std::uint32_t stride) noexcept {
  return kDoorbells + (2U * queue + 1U) * stride;
}

}  // namespace tutti::runtime::nvme
