// SPDX-License-Identifier: Apache-2.0
// What Identify answers (NVM Express Base Specification, "Identify Controller Data Structure"; NVM Command
// Set Specification, "Identify Namespace Data Structure").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tutti::runtime::nvme {

inline constexpr std::size_t kIdentifyBytes = 4096;
using IdentifyData = std::span<const std::byte, kIdentifyBytes>;

struct ControllerIdentity {
  std::string serial;    ///< SN, without the spaces at its end
  std::string model;     ///< MN
  std::string firmware;  ///< FR
  std::uint32_t version = 0;
  std::uint8_t mdts = 0;  ///< largest transfer is 2^MDTS smallest pages; 0: no limit
  std::uint32_t sgls = 0;
  std::uint32_t namespaces = 0;  ///< NN: the largest namespace identifier
  bool volatile_write_cache = false;
  std::uint8_t abort_limit = 0;  ///< ACL, counts from 0
  std::uint8_t sq_entry = 0;     ///< SQES
  std::uint8_t cq_entry = 0;     ///< CQES

  /// SGLs in I/O commands, at least with dwords (SGLS bits 1:0).
  [[nodiscard]] bool takes_sgl() const noexcept { return (sgls & 3U) != 0; }
  /// Bytes of the largest transfer, UINT64_MAX without a limit.
  [[nodiscard]] std::uint64_t max_transfer_bytes(std::uint64_t min_page_bytes) const noexcept {
    return mdts == 0 || mdts >= 40 ? UINT64_MAX : min_page_bytes << mdts;
  }
};

struct NamespaceIdentity {
  std::uint32_t nsid = 0;
  std::uint64_t blocks = 0;           ///< NSZE
  std::uint32_t block_shift = 0;      ///< LBADS of the format in use: 2^block_shift bytes
  std::uint32_t metadata_bytes = 0;   ///< MS of the format in use
  std::uint8_t protection = 0;        ///< DPS: type of end-to-end protection, 0 for none
  std::uint32_t boundary_blocks = 0;  ///< NOIOB; 0: none

  [[nodiscard]] std::uint64_t bytes() const noexcept { return blocks << block_shift; }
};

[[nodiscard]] ControllerIdentity parse_controller(IdentifyData data);
[[nodiscard]] NamespaceIdentity parse_namespace(IdentifyData data, std::uint32_t nsid);
/// The identifiers of an active namespace list, which ends at the first 0.
[[nodiscard]] std::vector<std::uint32_t> parse_namespace_list(IdentifyData data);

}  // namespace tutti::runtime::nvme
