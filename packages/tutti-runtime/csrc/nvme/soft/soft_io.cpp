// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "soft_device.hpp"

namespace tutti::runtime::nvme::soft {
namespace {

constexpr std::uint16_t kDoNotRetry = 0x4000;

bool reserved_fields_are_zero(const Command& command) noexcept {
  constexpr std::uint8_t psdt = 0xc0;
  const bool moves = command.opcode != static_cast<std::uint8_t>(IoOpcode::kFlush);
  const std::uint32_t of_flush = command.cdw10 | command.cdw11 | command.cdw12;
  return (command.flags & ~psdt) == 0 && command.cdw2 == 0 && command.cdw3 == 0 && command.metadata == 0 &&
         command.cdw13 == 0 && command.cdw14 == 0 && command.cdw15 == 0 && (moves || of_flush == 0) &&
         (command.cdw12 & 0xffff0000U) == 0;
}

}  // namespace

Outcome Device::check_io(const Command& command, Storage*& storage) {
  if (command.opcode > static_cast<std::uint8_t>(IoOpcode::kRead)) {
    control_.violate("unknown I/O opcode " + std::to_string(command.opcode));
    return {kStatusInvalidOpcode | kDoNotRetry, 0};
  }
  if (!reserved_fields_are_zero(command)) {
    control_.violate("an I/O command with reserved fields or features that were not asked for");
    return {kStatusInvalidField | kDoNotRetry, 0};
  }
  if (command.nsid == 0 || command.nsid > namespaces_.size()) {
    control_.violate("unknown namespace " + std::to_string(command.nsid));
    return {kStatusInvalidNamespace | kDoNotRetry, 0};
  }
  storage = namespaces_[command.nsid - 1].get();
  if (command.opcode == static_cast<std::uint8_t>(IoOpcode::kFlush)) {
    return {};
  }
  const std::uint64_t slba = slba_of(command);
  const std::uint64_t blocks = blocks_of(command);
  if (blocks > storage->blocks() || slba > storage->blocks() - blocks) {
    control_.violate("LBA " + std::to_string(slba) + " + " + std::to_string(blocks) +
                     " is beyond the namespace");
    return {kStatusLbaOutOfRange | kDoNotRetry, 0};
  }
  if (settings_.mdts_bytes != 0 && blocks * storage->lba_bytes() > settings_.mdts_bytes) {
    control_.violate("a command of " + std::to_string(blocks * storage->lba_bytes()) +
                     " bytes is larger than MDTS");
    return {kStatusInvalidField | kDoNotRetry, 0};
  }
  return {};
}

bool Device::may_touch(const SoftGuard& guard, const Command& command) {
  if (guard.ranges.empty()) {
    return true;
  }
  const bool flush = command.opcode == static_cast<std::uint8_t>(IoOpcode::kFlush);
  const std::uint64_t slba = slba_of(command);
  const std::uint64_t blocks = blocks_of(command);
  return std::any_of(guard.ranges.begin(), guard.ranges.end(), [&](const LbaRange& range) {
    return range.nsid == command.nsid && (flush || (slba >= range.first && blocks <= range.blocks &&
                                                    slba - range.first <= range.blocks - blocks));
  });
}

Outcome Device::run_io(std::uint16_t queue, const Command& command) {
  Storage* storage = nullptr;
  const Outcome refused = check_io(command, storage);
  if (refused.status != 0) {
    return refused;
  }
  const auto guard = guards_.find(queue);
  if (guard != guards_.end() && !may_touch(guard->second, command)) {
    control_.violate("queue " + std::to_string(queue) + " was not given these blocks");
    return {kStatusAccessDenied | kDoNotRetry, 0};
  }
  if (command.opcode == static_cast<std::uint8_t>(IoOpcode::kFlush)) {
    const bool flushed = storage->flush();
    control_.count([](SoftCounters& counters) { ++counters.flushes; });
    return {static_cast<std::uint16_t>(flushed ? 0 : kStatusWriteFault), 0};
  }
  windows_.look_as(guard != guards_.end() ? guard->second.owner : 0);
  const Outcome outcome = move(command, *storage);
  windows_.look_as(0);
  return outcome;
}

Outcome Device::move(const Command& command, Storage& storage) {
  const std::uint64_t bytes = std::uint64_t{blocks_of(command)} * storage.lba_bytes();
  resolve(windows_, data_of(command), bytes, page_, settings_.sgl, data_);
  if (data_.status != 0) {
    control_.violate(data_.violation);
    return {static_cast<std::uint16_t>(data_.status | kDoNotRetry), 0};
  }
  const std::uint64_t place = slba_of(command) * storage.lba_bytes();
  const bool read = command.opcode == static_cast<std::uint8_t>(IoOpcode::kRead);
  if (data_.on_device) {
    control_.begin_copy();
  }
  const bool moved = read ? storage.read(place, data_) : storage.write(place, data_);
  control_.end_copy();
  if (!moved) {
    return {static_cast<std::uint16_t>(read ? kStatusUnrecoveredRead : kStatusWriteFault), 0};
  }
  control_.count([&](SoftCounters& counters) {
    ++(read ? counters.reads : counters.writes);
    counters.bytes += bytes;
    if (data_.on_device) {
      counters.copy_seconds += storage.last_copy().count();
      counters.longest_copy = std::max(counters.longest_copy, storage.last_copy().count());
    }
  });
  return {};
}

}  // namespace tutti::runtime::nvme::soft
