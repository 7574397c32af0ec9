// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tutti/runtime/nvme/transport.hpp"

namespace tutti::runtime::nvme {

/// A controller of a QEMU process that no guest runs in: its devices are driven through QEMU's qtest socket,
/// its memory is a file that both processes map, and a bus address is an offset into that file.
struct QtestOptions {
  std::string socket;      ///< path of QEMU's `-qtest unix:...` socket
  std::string ram;         ///< path of the file behind the machine's memory (`memory-backend-file,share=on`)
  std::uint32_t slot = 0;  ///< device number on the root bus, 1 to 31
  bool relay = false;      ///< doorbells are words that a thread forwards: how stores of a GPU are tried
  std::string peer;        ///< file behind BAR 2 of an ivshmem device, another device's memory; may be empty
  std::uint32_t peer_slot = 0;
  int device = kAnyDevice;  ///< a CUDA device that can ring the relay's doorbells and reach pinned queues
};

/// Queues lie in the first half of the machine's memory; the caller's windows are mappings (MAP_SHARED) of
/// its second half or of the peer's file. Transports on one socket share its connection. With `device` the
/// file must be one whose pages can be pinned (tmpfs, hugetlbfs); data stays in it, for QEMU reaches no GPU.
/// @throws InvalidArgument naming the option; SystemError when QEMU or a file cannot be had, or the slot
/// holds no NVMe controller.
[[nodiscard]] std::unique_ptr<Transport> open_qtest(const QtestOptions& options);

}  // namespace tutti::runtime::nvme
