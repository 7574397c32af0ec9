// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/nvme/identify.hpp"

#include <cstring>

namespace tutti::runtime::nvme {
namespace {

template <typename T>
T field(IdentifyData data, std::size_t offset) {
  T value{};
  std::memcpy(&value, data.data() + offset, sizeof value);
  return value;
}

std::string text(IdentifyData data, std::size_t offset, std::size_t size) {
  std::string result(size, ' ');
  std::memcpy(result.data(), data.data() + offset, size);
  const std::size_t end = result.find_last_not_of(std::string_view(" \0", 2));
  result.resize(end == std::string::npos ? 0 : end + 1);
  return result;
}

}  // namespace

ControllerIdentity parse_controller(IdentifyData data) {
  ControllerIdentity identity;
  identity.serial = text(data, 4, 20);
  identity.model = text(data, 24, 40);
  identity.firmware = text(data, 64, 8);
  identity.mdts = field<std::uint8_t>(data, 77);
  identity.version = field<std::uint32_t>(data, 80);
  identity.abort_limit = field<std::uint8_t>(data, 258);
  identity.sq_entry = field<std::uint8_t>(data, 512);
  identity.cq_entry = field<std::uint8_t>(data, 513);
  identity.namespaces = field<std::uint32_t>(data, 516);
  identity.volatile_write_cache = (field<std::uint8_t>(data, 525) & 1U) != 0;
  identity.sgls = field<std::uint32_t>(data, 536);
  return identity;
}

NamespaceIdentity parse_namespace(IdentifyData data, std::uint32_t nsid) {
  NamespaceIdentity identity;
  identity.nsid = nsid;
  identity.blocks = field<std::uint64_t>(data, 0);
  const auto formats = field<std::uint8_t>(data, 25);
  const auto format_in_use = field<std::uint8_t>(data, 26);
  // Bits 6:5 count only where there are more than 16 formats.
  const std::uint32_t index = (format_in_use & 0xfU) | (formats > 15 ? (format_in_use & 0x60U) >> 1 : 0U);
  const auto format = field<std::uint32_t>(data, 128 + 4 * std::size_t{index});
  identity.metadata_bytes = format & 0xffffU;
  identity.block_shift = (format >> 16) & 0xffU;
  identity.protection = field<std::uint8_t>(data, 29) & 7U;
  identity.boundary_blocks = field<std::uint16_t>(data, 46);
  return identity;
}

std::vector<std::uint32_t> parse_namespace_list(IdentifyData data) {
  std::vector<std::uint32_t> ids;
  for (std::size_t offset = 0; offset < kIdentifyBytes; offset += 4) {
    const auto id = field<std::uint32_t>(data, offset);
    if (id == 0) {
      break;
    }
    ids.push_back(id);
  }
  return ids;
}

}  // namespace tutti::runtime::nvme
