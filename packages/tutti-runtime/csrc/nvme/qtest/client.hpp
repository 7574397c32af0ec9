// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

namespace tutti::runtime::nvme::qtest {

/// QEMU's qtest protocol (its docs/devel/testing/qtest.rst): a line asks, a line answers. Thread-safe. When
/// the process is gone reads give all ones and writes do nothing, as on a bus without the device.
class Client {
 public:
  /// @throws SystemError with the path
  explicit Client(const std::string& socket);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  [[nodiscard]] std::uint32_t read32(std::uint64_t address);
  [[nodiscard]] std::uint64_t read64(std::uint64_t address);
  void write32(std::uint64_t address, std::uint32_t value);
  void write64(std::uint64_t address, std::uint64_t value);

  /// A 32-bit word of the PCI configuration space of bus 0, function 0.
  [[nodiscard]] std::uint32_t read_config(std::uint32_t slot, std::uint32_t offset);
  void write_config(std::uint32_t slot, std::uint32_t offset, std::uint32_t value);

 private:
  /// The number of the answer; all ones when there is none any more. Needs the lock.
  [[nodiscard]] std::uint64_t ask(const std::string& command);
  [[nodiscard]] bool send(const std::string& line);
  [[nodiscard]] bool receive(std::string& line);

  std::mutex mutex_;
  int fd_;
  bool lost_ = false;
};

}  // namespace tutti::runtime::nvme::qtest
