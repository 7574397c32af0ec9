// SPDX-License-Identifier: Apache-2.0
#include "session.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "tutti/runtime/detail/io_thread.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/core/ordered.hpp"
#include "tutti/runtime/nvme/registers.hpp"

namespace tutti::runtime::nvme::broker {
namespace {

constexpr std::size_t kMostDescriptors = 3;

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

/// The structure at the front of what is left, which then begins behind it.
template <typename T>
bool take(std::span<const std::byte>& left, T& value) {
  if (left.size() < sizeof value) {
    return false;
  }
  std::memcpy(&value, left.data(), sizeof value);
  left = left.subspan(sizeof value);
  return true;
}

}  // namespace

Session::Session(const BrokerOptions& options)
    : path_(options.socket), answer_timeout_(options.answer_timeout) {
  if (path_.empty() || path_.front() != '/' || path_.size() >= sizeof(sockaddr_un::sun_path)) {
    throw InvalidArgument("socket='" + path_ + "' must be an absolute path of at most " +
                          std::to_string(sizeof(sockaddr_un::sun_path) - 1) + " bytes");
  }
  if (options.controller.size() >= kNameBytes) {
    throw InvalidArgument("controller='" + options.controller + "' is too long for a name");
  }
  if (!(answer_timeout_.count() > 0)) {
    throw InvalidArgument("answer_timeout must be seconds above 0");
  }
  connect();
  Hello hello{};
  hello.queues = options.queues;
  options.controller.copy(hello.controller, kNameBytes - 1);
  std::vector<Descriptor> received;
  const std::vector<std::byte> reply = request(Message::kHello, bytes_of(hello), -1, &received);
  take_welcome(reply, received);
  renewal_ = detail::start_io_thread("tutti-lease", [this] { renew(); });
}

Session::~Session() {
  {
    const std::lock_guard lock(renewal_mutex_);
    ending_ = true;
    renewal_ends_.notify_all();
  }
  end();
  if (renewal_.joinable()) {
    renewal_.join();
  }
}

void Session::connect() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path_.copy(address.sun_path, sizeof address.sun_path - 1);
  socket_ = Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  // A full backlog makes connect() wait as long as a send.
  if (!socket_.is_open() || !set_limit(SO_SNDTIMEO, answer_timeout_) ||
      !set_limit(SO_RCVTIMEO, answer_timeout_) ||
      ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const int error = errno;
    throw SystemError(error,
                      "no tutti-nvmed answers at " + path_ + ": " + std::strerror(error) +
                          "; start it, or check broker= and the rights of its folder",
                      path_);
  }
}

bool Session::set_limit(int option, Duration wait) noexcept {
  timeval limit{};
  limit.tv_sec = static_cast<time_t>(wait.count());
  limit.tv_usec = static_cast<suseconds_t>((wait.count() - static_cast<double>(limit.tv_sec)) * 1e6);
  return ::setsockopt(socket_.get(), SOL_SOCKET, option, &limit, sizeof limit) == 0;
}

void Session::break_off(int error, const std::string& what) {
  broken_ = true;
  ::shutdown(socket_.get(), SHUT_RDWR);
  throw SystemError(error, "tutti-nvmed at " + path_ + " " + what, path_);
}

void Session::send(const Header& header, std::span<const std::byte> payload, int fd) {
  std::array<iovec, 2> parts{{{const_cast<Header*>(&header), sizeof header},
                              {const_cast<std::byte*>(payload.data()), payload.size()}}};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) {
    break_off(errno == EAGAIN ? ETIMEDOUT : ECONNRESET,
              "takes no requests any more: it ended, or ended the lease");
  }
}

std::vector<std::byte> Session::receive(const Header& asked, std::vector<Descriptor>* received) {
  std::vector<std::byte> reply(kMaxReply);
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  iovec part{reply.data(), reply.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t size = 0;
  do {
    size = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size <= 0) {
    const bool late = size < 0 && errno == EAGAIN;
    break_off(late ? ETIMEDOUT : ECONNRESET,
              late ? "did not answer in time" : "closed the connection: it ended, or ended the lease");
  }
  std::vector<Descriptor> descriptors;
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr; each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= each->cmsg_len; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(each) + at, sizeof fd);
      descriptors.emplace_back(fd);
    }
  }
  std::span<const std::byte> left(reply.data(), static_cast<std::size_t>(size));
  Header header{};
  const bool whole = take(left, header) && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  if (!whole || header.magic != kMagic || header.sequence != asked.sequence || header.length != left.size()) {
    break_off(EPROTO, "sent what is no reply to a request; is it another program?");
  }
  if (header.type == static_cast<std::uint16_t>(Message::kError)) {
    std::int32_t error = 0;
    if (!take(left, error) || error <= 0) {
      break_off(EPROTO, "sent an error without a number");
    }
    throw SystemError(error, "tutti-nvmed at " + path_ + " refuses: " +
                                 std::string(reinterpret_cast<const char*>(left.data()), left.size()));
  }
  if (header.version != kVersion || header.type != (asked.type | kReply)) {
    break_off(EPROTO, "sent a reply of another kind than was asked for");
  }
  if (received != nullptr) {
    *received = std::move(descriptors);
  }
  return {left.begin(), left.end()};
}

std::vector<std::byte> Session::request(Message type, std::span<const std::byte> payload, int fd,
                                        std::vector<Descriptor>* received) {
  const std::lock_guard lock(mutex_);
  if (broken_) {
    throw SystemError(ENOTCONN, "the lease from tutti-nvmed at " + path_ + " is over; make a new runtime",
                      path_);
  }
  const Header header{kMagic, kVersion, static_cast<std::uint16_t>(type), ++sequence_,
                      static_cast<std::uint32_t>(payload.size())};
  send(header, payload, fd);
  return receive(header, received);
}

void Session::take_welcome(std::span<const std::byte> payload, std::vector<Descriptor>& received) {
  bool good = take(payload, welcome_) && welcome_.queues >= 1 && received.size() == 3;
  for (std::uint32_t i = 0; good && i < (welcome_.queues + 3U) / 4 * 4; ++i) {
    std::uint16_t id = 0;
    good = take(payload, id) && (i >= welcome_.queues || 8U * (id + 1U) <= welcome_.doorbell_bytes);
    if (i < welcome_.queues) {
      queue_ids_.push_back(id);
    }
  }
  for (std::uint32_t i = 0; good && i < welcome_.ranges; ++i) {
    Range range{};
    good = take(payload, range);
    ranges_.push_back({range.nsid, range.first, range.blocks});
  }
  if (!good) {
    break_off(EPROTO, "sent a welcome that is not complete");
  }
  state_ = SharedMapping(received[0].get(), 0, 4096, false);
  doorbells_ = SharedMapping(received[1].get(), 0, welcome_.doorbell_bytes, true);
  daemon_ = std::move(received[2]);
  // The daemon answers nobody while it resets the controller, which may take CAP.TO for each of CC.EN's
  // edges. That is no reason to give up the lease: the controller may work again afterwards.
  static_cast<void>(set_limit(
      SO_RCVTIMEO, answer_timeout_ + 2 * std::chrono::milliseconds(Capabilities{welcome_.cap}.timeout_ms())));
  name_.assign(welcome_.controller, ::strnlen(welcome_.controller, kNameBytes));
}

bool Session::daemon_ended() const noexcept {
  pollfd watched{daemon_.get(), POLLIN, 0};
  return ::poll(&watched, 1, 0) > 0;
}

std::uint32_t Session::state() const noexcept {
  const std::uint32_t state = load_acquire(state_.words() + kStateWord);
  return state != kOver && daemon_ended() ? kOver : state;
}

Session::Window Session::map(int fd, std::uint64_t offset, std::uint64_t size) {
  const Map asked{offset, size};
  const std::vector<std::byte> reply = request(Message::kMap, bytes_of(asked), fd, nullptr);
  std::span<const std::byte> left(reply);
  Mapped mapped{};
  Window window;
  bool good = take(left, mapped);
  std::uint64_t total = 0;
  for (std::uint32_t i = 0; good && i < mapped.runs; ++i) {
    DmaRun run;
    good = take(left, run.iova) && take(left, run.size);
    total += run.size;
    window.runs.push_back(run);
  }
  if (!good || total != size) {
    throw SystemError(EPROTO, "tutti-nvmed at " + path_ + " mapped another size than was asked for");
  }
  window.id = mapped.window;
  return window;
}

void Session::unmap(std::uint32_t window) noexcept {
  const Unmap asked{window, 0};
  try {
    static_cast<void>(request(Message::kUnmap, bytes_of(asked), -1, nullptr));
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): it goes with the lease then
  }
}

Session::Result Session::admin(const Command& command) {
  const std::vector<std::byte> reply = request(Message::kAdmin, bytes_of(command), -1, nullptr);
  std::span<const std::byte> left(reply);
  Result result;
  if (!take(left, result.answer)) {
    throw SystemError(EPROTO, "tutti-nvmed at " + path_ + " sent an answer that is not complete");
  }
  result.data.assign(left.begin(), left.end());
  return result;
}

void Session::reset() { static_cast<void>(request(Message::kReset, {}, -1, nullptr)); }

void Session::end() noexcept {
  broken_ = true;
  ::shutdown(socket_.get(), SHUT_RDWR);
}

void Session::renew() noexcept {
  const std::chrono::milliseconds pause(std::max(welcome_.lease_ms / 4, 1U));
  std::unique_lock lock(renewal_mutex_);
  while (!renewal_ends_.wait_for(lock, pause, [this] { return ending_; })) {
    lock.unlock();
    try {
      static_cast<void>(request(Message::kBeat, {}, -1, nullptr));
    } catch (const Error&) {
      return;  // the state page says the rest
    }
    lock.lock();
  }
}

}  // namespace tutti::runtime::nvme::broker
