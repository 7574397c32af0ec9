// SPDX-License-Identifier: Apache-2.0
#include "client.hpp"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tutti/runtime/error.hpp"

namespace tutti::runtime::nvme::qtest {
namespace {

constexpr std::uint64_t kGone = ~std::uint64_t{0};
// An answer takes microseconds; a machine that is stopped in a debugger gives none.
constexpr timeval kPatience{10, 0};
constexpr std::uint16_t kConfigAddress = 0xcf8;
constexpr std::uint16_t kConfigData = 0xcfc;

int connect_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    throw SystemError(ENAMETOOLONG, "the path of a socket must be shorter than 108 bytes", path);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    const int error = errno;
    if (fd >= 0) {
      ::close(fd);
    }
    throw SystemError(error, std::string("cannot reach QEMU's qtest socket: ") + std::strerror(error), path);
  }
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  return fd;
}

std::string text_of(const char* verb, std::uint64_t address) {
  char text[64];
  std::snprintf(text, sizeof(text), "%s 0x%" PRIx64 "\n", verb, address);
  return text;
}

std::string text_of(const char* verb, std::uint64_t address, std::uint64_t value) {
  char text[96];
  std::snprintf(text, sizeof(text), "%s 0x%" PRIx64 " 0x%" PRIx64 "\n", verb, address, value);
  return text;
}

std::uint64_t config_address(std::uint32_t slot, std::uint32_t offset) {
  return 0x80000000U | slot << 11U | (offset & ~3U);
}

}  // namespace

Client::Client(const std::string& socket) : fd_(connect_to(socket)) {}

Client::~Client() { ::close(fd_); }

bool Client::send(const std::string& line) {
  std::size_t sent = 0;
  while (sent < line.size()) {
    const ssize_t count = ::send(fd_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno != EINTR) {
      return false;
    }
    sent += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  return true;
}

bool Client::receive(std::string& line) {
  char buffer[128];
  line.clear();
  while (line.empty() || line.back() != '\n') {
    // The lock is what pairs a question with its answer, so it is held until that has come.
    // NOLINTNEXTLINE(clang-analyzer-unix.BlockInCriticalSection)
    const ssize_t count = ::recv(fd_, buffer, sizeof(buffer), 0);
    if (count == 0 || (count < 0 && errno != EINTR)) {
      return false;
    }
    line.append(buffer, count > 0 ? static_cast<std::size_t>(count) : 0);
  }
  return true;
}

std::uint64_t Client::ask(const std::string& command) {
  std::string line;
  if (lost_ || !send(command) || !receive(line) || line.compare(0, 2, "OK") != 0) {
    // An answer that comes late would be taken for that of the next question.
    lost_ = true;
    return kGone;
  }
  return line.size() > 4 ? std::strtoull(line.c_str() + 3, nullptr, 0) : 0;
}

std::uint32_t Client::read32(std::uint64_t address) {
  std::lock_guard lock(mutex_);
  return static_cast<std::uint32_t>(ask(text_of("readl", address)));
}

std::uint64_t Client::read64(std::uint64_t address) {
  std::lock_guard lock(mutex_);
  return ask(text_of("readq", address));
}

void Client::write32(std::uint64_t address, std::uint32_t value) {
  std::lock_guard lock(mutex_);
  static_cast<void>(ask(text_of("writel", address, value)));
}

void Client::write64(std::uint64_t address, std::uint64_t value) {
  std::lock_guard lock(mutex_);
  static_cast<void>(ask(text_of("writeq", address, value)));
}

std::uint32_t Client::read_config(std::uint32_t slot, std::uint32_t offset) {
  std::lock_guard lock(mutex_);
  static_cast<void>(ask(text_of("outl", kConfigAddress, config_address(slot, offset))));
  return static_cast<std::uint32_t>(ask(text_of("inl", kConfigData)));
}

void Client::write_config(std::uint32_t slot, std::uint32_t offset, std::uint32_t value) {
  std::lock_guard lock(mutex_);
  static_cast<void>(ask(text_of("outl", kConfigAddress, config_address(slot, offset))));
  static_cast<void>(ask(text_of("outl", kConfigData, value)));
}

}  // namespace tutti::runtime::nvme::qtest
