// SPDX-License-Identifier: Apache-2.0
// Messages between a client and tutti-nvmed, as docs/nvmed.md has them: one datagram each on a SOCK_SEQPACKET
// socket, little-endian, every structure without padding of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::runtime::nvme::broker {

inline constexpr std::uint32_t kMagic = 0x4d564e54;  // "TNVM"
inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::size_t kMaxRequest = 512;
inline constexpr std::size_t kMaxReply = std::size_t{16} << 10;
inline constexpr std::size_t kNameBytes = 208;  ///< of a controller's name, with a NUL at least at its end
inline constexpr std::size_t kMaxRuns = 256;    ///< in which one window may lie on the bus

enum class Message : std::uint16_t {
  kHello = 1,
  kMap = 2,
  kUnmap = 3,
  kAdmin = 4,
  kReset = 5,
  kBeat = 6,
  kStatus = 7,
  kError = 0xffff,  ///< a reply; others have kReply set in their request's number
};
inline constexpr std::uint16_t kReply = 0x8000;

struct Header {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t type;
  std::uint32_t sequence;
  std::uint32_t length;  ///< of what follows
};
static_assert(sizeof(Header) == 16);

struct Hello {
  std::uint32_t queues;  ///< wanted; fewer may be given
  std::uint32_t reserved;
  char controller[kNameBytes];  ///< empty: the only one
};
static_assert(sizeof(Hello) == 216);

/// With three descriptors: the state page (read-only), the doorbells, the daemon's pidfd. Then `queues`
/// identifiers of 16 bits, filled up to a multiple of 8 bytes, then `ranges` times Range.
struct Welcome {
  std::uint64_t cap;  ///< the controller's, with a doorbell stride of 4 bytes
  std::uint64_t window_bytes;
  std::uint32_t windows;
  std::uint32_t version;  ///< the controller's register VS
  std::uint32_t lease_ms;
  std::uint32_t doorbell_bytes;
  std::uint32_t flags;  ///< kEnforced
  std::uint16_t queues;
  std::uint16_t ranges;
  char controller[kNameBytes];
};
static_assert(sizeof(Welcome) == 248);
inline constexpr std::uint32_t kEnforced = 1;  ///< the controller itself refuses other blocks

struct Range {
  std::uint32_t nsid;
  std::uint32_t reserved;
  std::uint64_t first;
  std::uint64_t blocks;
};
static_assert(sizeof(Range) == 24);

/// With one descriptor.
struct Map {
  std::uint64_t offset;  ///< in the file, whole pages like the size
  std::uint64_t size;
};

/// Then `runs` times an address on the bus and a size, 64 bits each.
struct Mapped {
  std::uint32_t window;
  std::uint32_t runs;
};

struct Unmap {
  std::uint32_t window;
  std::uint32_t reserved;
};

/// The request is the command's 64 bytes. What Identify reads follows the answer.
struct Answer {
  std::uint32_t dw0;
  std::uint16_t status;
  std::uint16_t reserved;
};
static_assert(sizeof(Answer) == 8);

/// Words of the state page.
inline constexpr std::size_t kStateWord = 0;
inline constexpr std::uint32_t kUp = 1;
inline constexpr std::uint32_t kLost = 2;  ///< the controller was reset: no queue exists any more
/// The controller is away for now, and nothing reaches memory. A reset that is asked for tries it again.
inline constexpr std::uint32_t kDown = 3;
inline constexpr std::uint32_t kOver =
    0xffffffff;  ///< the lease is over, and nothing reaches memory any more

}  // namespace tutti::runtime::nvme::broker
