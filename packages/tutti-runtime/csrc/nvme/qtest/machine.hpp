// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "../ranges.hpp"
#include "client.hpp"
#include "shared_file.hpp"
#include "tutti/runtime/nvme/transport.hpp"

namespace tutti::runtime::nvme::qtest {

/// One QEMU process: its socket, which serves one connection at a time, and its memory. Thread-safe.
class Machine {
 public:
  Machine(const std::string& socket, const std::string& ram);

  /// The machine of a socket, shared by all that ask while one of them lives.
  [[nodiscard]] static std::shared_ptr<Machine> of(const std::string& socket, const std::string& ram);

  [[nodiscard]] Client& client() noexcept { return client_; }
  [[nodiscard]] const SharedFile& ram() const noexcept { return ram_; }
  /// Offsets from here on are for the caller's windows.
  [[nodiscard]] std::uint64_t windows_begin() const noexcept { return ram_.size() / 2; }

  /// @throws InvalidArgument when the slot has an owner already
  void take_slot(std::uint32_t slot);
  void leave_slot(std::uint32_t slot) noexcept;

  /// Offsets of memory that nobody uses.
  [[nodiscard]] FreeRanges& memory() noexcept { return memory_; }

 private:
  Client client_;
  const std::string ram_path_;
  SharedFile ram_;
  std::mutex mutex_;
  std::set<std::uint32_t> slots_;
  FreeRanges memory_;
};

}  // namespace tutti::runtime::nvme::qtest
