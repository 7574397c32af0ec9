// SPDX-License-Identifier: Apache-2.0
// What the host hands to the teams that submit: tables that stay, and a ring of layers. Plain words, in
// memory that both sides see.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/runtime/nvme/core/annotate.hpp"
#include "tutti/runtime/nvme/core/command.hpp"
#include "tutti/runtime/nvme/core/command_ids.hpp"
#include "tutti/runtime/nvme/core/data_window.hpp"
#include "tutti/runtime/nvme/core/ring.hpp"
#include "tutti/runtime/nvme/core/split.hpp"

namespace tutti::runtime::nvme {

/// Item statuses beside those of to_errno(), by their numbers on Linux.
enum ItemStatus : std::int32_t {
  kItemDone = 0,
  kItemNoBlock = 6,      ///< ENXIO: part of the item has no extent
  kItemNoMemory = 14,    ///< EFAULT: part of the memory is not in the window
  kItemTimedOut = 110,   ///< ETIMEDOUT: a command was not answered in time
  kItemNotIssued = 125,  ///< ECANCELED: its queue was lost before all of its commands were issued
  kItemUnderWay = 115,   ///< EINPROGRESS: not to be seen once its layer is done
};

/// In a host status beside the errno: a command of the item was given up, and may still be under way until
/// its queue is made anew.
inline constexpr std::uint32_t kItemGivenUp = 1U << 16;

/// One transfer: a slice of a place on one drive, to or from a window. Offsets and length in bytes, multiples
/// of the largest block.
struct LayerItem {
  std::uint64_t target_offset = 0;
  std::uint64_t memory_offset = 0;
  std::uint64_t length = 0;
  std::uint32_t place = 0;   ///< among DriveTables::places
  std::uint32_t window = 0;  ///< among DriveTables::windows
  std::uint32_t status = 0;  ///< its place among the layer's statuses
};

/// What one drive's commands need. Written before any layer that names it.
struct DriveTables {
  const ShardPlace* places = nullptr;
  const std::uint32_t* nsids = nullptr;  ///< of each place
  const DataWindow* windows = nullptr;   ///< as this drive reaches them
};

/// The items of a layer that go to one drive.
struct LayerRange {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

/// How far an item is, for the teams alone.
struct ItemProgress {
  std::uint32_t open = 0;      ///< commands under way, and one more while there are others to issue
  std::uint32_t given_up = 0;  ///< kItemGivenUp, or 0
  /// The first byte that was not moved, in the upper 48 bits, and why below; kNoFailure: nothing failed.
  std::uint64_t failure = 0;
};
inline constexpr std::uint64_t kNoFailure = UINT64_MAX;

/// One submission: all items of one direction. Nobody writes to it once it is shown.
struct LayerBody {
  const LayerItem* items = nullptr;
  const LayerRange* ranges = nullptr;   ///< [drives], places in `items`
  ItemProgress* progress = nullptr;     ///< [items]
  std::int32_t* status = nullptr;       ///< [statuses] 0 or an errno, for kernels that use the bytes
  std::int32_t* host_status = nullptr;  ///< [statuses] the same for the host; null: nobody asks there
  /// [statuses] bytes before the first failure of an item that failed; null: nobody asks. With it, a host
  /// status may be used before the layer is done, and has kItemGivenUp where that is so.
  std::uint64_t* host_good = nullptr;
  /// [lanes] not 0 once the lane has begun; null: the layer is not taken back.
  std::uint32_t* begun = nullptr;
  const std::uint32_t* taken_back = nullptr;  ///< not 0: lanes that have not begun do nothing of it
  std::uint64_t* done = nullptr;              ///< has `ticket` once all statuses are final
  std::uint64_t ticket = 0;                   ///< more than that of every layer before
  std::uint64_t timeout_ns = 0;               ///< of one command
  std::uint32_t turn = 0;                     ///< which queue of a drive gets the first item
  IoOpcode opcode = IoOpcode::kRead;
};

/// A place of the ring. The host writes it, shows it by the ring's tail, and may use it again when `done` has
/// the ticket.
struct LayerDescriptor : LayerBody {
  std::uint32_t teams_left = 0;  ///< the host writes the number of teams, which count down
};

struct LayerRing {
  LayerDescriptor* slots = nullptr;
  std::uint32_t depth = 0;
  const std::uint64_t* tail = nullptr;  ///< layers that were ever shown
  const std::uint32_t* stop = nullptr;  ///< not 0: leave as soon as no layer is left
  std::uint64_t linger_ns = 0;          ///< how long a team without work looks for more before it leaves
  std::uint64_t stay_ns = 0;            ///< after which it leaves though there is more, for the next start
};

/// A command under way.
struct Flight {
  std::uint64_t issued_ns = 0;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  ///< in the item
  std::uint32_t item = 0;    ///< kNoItem: nobody waits for it any more
  std::uint32_t reserved = 0;
};
inline constexpr std::uint32_t kNoItem = 0xffffffffU;

/// What a team does to its side of a queue before its next layer.
enum class LaneClear : std::uint32_t {
  kKeep,
  kNew,    ///< sets up its tables
  kAgain,  ///< the controller has new queues: forgets what was under way; identifiers go on
};

/// One queue pair and the team that owns it. The host writes nothing here while the team runs, only to what
/// `control` points to.
struct IssueLane {
  SubmissionRing sq;
  CompletionRing cq;
  CommandIds ids;
  Flight* flights = nullptr;  ///< [ids.capacity]
  std::uint32_t* sq_doorbell = nullptr;
  std::uint32_t* cq_doorbell = nullptr;
  std::uint16_t queue_id = 0;
  std::uint32_t number = 0;  ///< among all lanes
  std::uint32_t drive = 0;
  std::uint32_t index = 0;  ///< of this queue among those of the drive
  std::uint32_t count = 1;  ///< queues of the drive
  DriveTables tables;
  std::uint32_t max_commands = 0;  ///< this queue's share of the drive's issue window, 1 or more
  std::uint64_t max_bytes = 0;     ///< the same; one command may always be under way

  const std::uint32_t* control = nullptr;  ///< an errno: give up everything under way with it
  LaneClear clear = LaneClear::kNew;
  std::uint32_t lost = 0;    ///< why the queue must be made anew before it is used again, or 0
  std::uint64_t layers = 0;  ///< taken from the ring
  std::uint64_t commands = 0;
  std::uint64_t doorbells = 0;  ///< of the submission queue
  std::uint64_t strays = 0;     ///< completions that belonged to nobody
};

}  // namespace tutti::runtime::nvme
