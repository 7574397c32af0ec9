// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

namespace tutti::runtime {

/// GPU drivers pin device memory in 64 KiB pages; host memory follows the same rule so that a window can
/// move.
inline constexpr std::uint64_t kMemoryAlignment = 64 * 1024;
/// The largest logical block of today's drives and the smallest page: every offset and length is a multiple.
inline constexpr std::uint64_t kIoAlignment = 4096;
/// Linux moves at most 2 GiB - 4 KiB in one call; one power of two below that.
inline constexpr std::uint64_t kMaxSingleIoBytes = std::uint64_t{1} << 30;

enum class Direction : std::uint32_t {
  kRead = 0,   ///< target -> memory
  kWrite = 1,  ///< memory -> target
  kFlush = 2,  ///< writes of the target that had finished before submission become durable
};

/// One item of a batch, shared byte for byte with the NumPy dtype of the Python package.
struct IoRequest {
  std::uint32_t direction;
  std::uint32_t reserved;  ///< must be 0
  std::uint64_t memory;
  std::uint64_t memory_offset;
  std::uint64_t target;
  std::uint64_t target_offset;
  std::uint64_t length;
};

static_assert(std::is_trivially_copyable_v<IoRequest> && std::is_standard_layout_v<IoRequest>);
static_assert(offsetof(IoRequest, direction) == 0);
static_assert(offsetof(IoRequest, reserved) == 4);
static_assert(offsetof(IoRequest, memory) == 8);
static_assert(offsetof(IoRequest, memory_offset) == 16);
static_assert(offsetof(IoRequest, target) == 24);
static_assert(offsetof(IoRequest, target_offset) == 32);
static_assert(offsetof(IoRequest, length) == 40);
static_assert(sizeof(IoRequest) == 48);

/// Outcome of a finished batch, over its accepted items in submission order.
struct Completion {
  std::vector<std::int32_t> status;  ///< 0 or a positive errno; a short transfer is EIO
  std::vector<std::uint64_t> bytes;  ///< bytes moved, also where status is not 0

  /// 1 for an item that timed out in the device and is still there: its memory and target stay in use, and a
  /// late read can still write into the memory. Empty when there is none.
  std::vector<std::uint8_t> late;
  /// A batch of just the late items, in their order: finished once the device has answered all of them, with
  /// what really became of each. Wait for it, or abandon it.
  std::optional<std::uint64_t> late_handle;
};

/// Counters since creation; none ever decreases.
struct Stats {
  std::uint64_t submitted = 0;  ///< items offered: accepted + rejected
  std::uint64_t accepted = 0;
  std::uint64_t rejected = 0;
  std::uint64_t completed = 0;  ///< items finished, with success or not
  std::uint64_t failed = 0;     ///< of those, with an errno
  std::uint64_t timed_out = 0;  ///< of those, with ETIMEDOUT
  std::uint64_t canceled = 0;   ///< of those, with ECANCELED
  std::uint64_t late = 0;       ///< of those that timed out, the ones that a device held at that moment
  std::uint64_t late_done = 0;  ///< of those, answered since
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  std::uint64_t direct_fallbacks = 0;  ///< targets that went from O_DIRECT to buffered I/O
  std::uint64_t step_downs = 0;        ///< times that a data path was given up for a simpler one
};

}  // namespace tutti::runtime
