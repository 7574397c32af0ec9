// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/nvme/admin_queue.hpp"

#include <cerrno>
#include <optional>
#include <string>

#include "tutti/runtime/nvme/backoff.hpp"
#include "tutti/runtime/nvme/registers.hpp"
#include "tutti/runtime/nvme/status.hpp"

namespace tutti::runtime::nvme {
namespace {

constexpr std::chrono::microseconds kLongestNap(200);

[[noreturn]] void unanswered(const Transport& transport, const char* what, int error) {
  std::string text = transport.name() + ": " + what;
  if (error == ENODEV) {
    text += ": " + transport.describe_gone();
  } else if (error == EIO) {
    text += ": the controller reports a fatal error or was reset; it needs a controller reset";
  } else {
    text += " was not answered in time";
  }
  throw CommandFailed(error, text, 0);
}

}  // namespace

int check_alive(Transport& transport) {
  const std::uint32_t csts = transport.read32(kCsts);
  if (csts == kAllOnes) {
    return ENODEV;
  }
  return (csts & kCstsFatal) != 0 || (csts & kCstsReady) == 0 ? EIO : 0;
}

Completion AdminQueue::execute(const Command& command, const char* what, Duration timeout) {
  const TimePoint deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout);
  if (const int dead = check_alive(transport_)) {
    unanswered(transport_, what, dead);
  }
  if (!queue_.has_room()) {
    unanswered(transport_, what, ETIMEDOUT);  // 31 commands before this one were not
  }
  const std::uint16_t cid = queue_.submit(command);
  queue_.ring();
  std::optional<Completion> answer;
  Backoff backoff(kLongestNap);
  while (!answer) {
    const bool moved = queue_.poll([&](std::uint16_t done, const Completion& entry) {
      if (done == cid) {
        answer = entry;
      }
    }) > 0;
    if (moved) {
      continue;
    }
    if (Clock::now() >= deadline) {
      const int dead = check_alive(transport_);
      unanswered(transport_, what, dead != 0 ? dead : ETIMEDOUT);
    }
    backoff.pause();
  }
  const std::uint16_t status = status_of(*answer);
  if (status != 0) {
    throw CommandFailed(to_errno(status), transport_.name() + ": " + what + ": " + describe_status(status),
                        status);
  }
  return *answer;
}

}  // namespace tutti::runtime::nvme
