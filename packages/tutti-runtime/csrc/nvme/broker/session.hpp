// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "protocol.hpp"
#include "shared_memory.hpp"
#include "tutti/runtime/nvme/broker.hpp"
#include "tutti/runtime/nvme/core/command.hpp"

namespace tutti::runtime::nvme::broker {

/// A client's lease: the socket, what came with the welcome, and the thread that renews it. Thread-safe.
class Session {
 public:
  /// @throws as open_broker()
  explicit Session(const BrokerOptions& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] const Welcome& welcome() const noexcept { return welcome_; }
  [[nodiscard]] const std::vector<std::uint16_t>& queue_ids() const noexcept { return queue_ids_; }
  [[nodiscard]] const std::vector<LbaRange>& ranges() const noexcept { return ranges_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const std::string& socket_path() const noexcept { return path_; }
  [[nodiscard]] std::uint32_t* doorbells() const noexcept { return doorbells_.words(); }

  /// kUp, kLost, or kOver: nothing reaches memory for this client any more. A daemon that has ended is that;
  /// one that only does not answer is not.
  [[nodiscard]] std::uint32_t state() const noexcept;
  [[nodiscard]] bool daemon_ended() const noexcept;

  struct Window {
    std::uint32_t id = 0;
    std::vector<DmaRun> runs;
  };
  /// @throws SystemError
  [[nodiscard]] Window map(int fd, std::uint64_t offset, std::uint64_t size);
  void unmap(std::uint32_t window) noexcept;
  struct Result {
    Answer answer{};
    std::vector<std::byte> data;
  };
  /// @throws SystemError
  [[nodiscard]] Result admin(const Command& command);
  /// Ends all queues of this client; nothing of them reaches memory afterwards. @throws SystemError
  void reset();
  /// Ends the lease: the daemon takes back queues and windows, and every request from now on fails.
  void end() noexcept;

 private:
  [[nodiscard]] std::vector<std::byte> request(Message type, std::span<const std::byte> payload, int fd,
                                               std::vector<Descriptor>* received);
  void connect();
  bool set_limit(int option, Duration wait) noexcept;
  void send(const Header& header, std::span<const std::byte> payload, int fd);
  [[nodiscard]] std::vector<std::byte> receive(const Header& asked, std::vector<Descriptor>* received);
  [[noreturn]] void break_off(int error, const std::string& what);
  void take_welcome(std::span<const std::byte> payload, std::vector<Descriptor>& received);
  void renew() noexcept;

  const std::string path_;
  const Duration answer_timeout_;
  std::string name_;
  std::mutex mutex_;  ///< one request at a time
  Descriptor socket_;
  std::atomic<bool> broken_{false};
  std::uint32_t sequence_ = 0;

  Welcome welcome_{};
  std::vector<std::uint16_t> queue_ids_;
  std::vector<LbaRange> ranges_;
  SharedMapping state_;
  SharedMapping doorbells_;
  Descriptor daemon_;

  std::mutex renewal_mutex_;
  std::condition_variable renewal_ends_;
  bool ending_ = false;
  std::thread renewal_;
};

}  // namespace tutti::runtime::nvme::broker
