// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "tutti/runtime/nvme/transport.hpp"
#include "tutti/runtime/ordering.hpp"

namespace tutti::runtime::nvme {

/// A controller that a tutti-nvmed owns and lets this process have queues of (docs/nvmed.md).
struct BrokerOptions {
  std::string socket;             ///< absolute path
  std::string controller;         ///< its name there; empty: the only one
  std::uint32_t queues = 64;      ///< to ask for; fewer may be given
  Duration answer_timeout{10.0};  ///< of one request to the daemon, above 0
};

/// Connects and takes a lease, which a thread renews until the transport and all that it mapped are gone.
///
/// The controller that a driver sees here is one of its own: registers and admin queue are answered by the
/// daemon, reset ends the queues of this client alone. Queues are those of the real controller; doorbells are
/// words in shared memory that the daemon carries on. allocate() and map() share memory with the daemon by
/// its memfd: map() takes no other memory.
/// @throws InvalidArgument for a path that is none; SystemError: what the socket says, and the daemon's
/// refusals: EACCES, EBUSY (no queue is free), ENODEV (no such controller), EPROTONOSUPPORT
[[nodiscard]] std::unique_ptr<Transport> open_broker(const BrokerOptions& options);

}  // namespace tutti::runtime::nvme
