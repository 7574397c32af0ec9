// SPDX-License-Identifier: Apache-2.0
// Submission of whole layers by teams: what a layer moves is prepared once, in tables that the teams read;
// submitting it again costs the host one descriptor, however many items it has.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/runtime/nvme/controller.hpp"
#include "tutti/runtime/nvme/core/layer.hpp"
#include "tutti/runtime/nvme/team_host.hpp"
#include "tutti/runtime/ordering.hpp"

namespace tutti::runtime::nvme {

class DriveWindow;
struct LaneControl;

struct LayerEngineSettings {
  std::uint32_t queues = 2;           ///< queue pairs of a drive, and so teams, 1 to 64
  std::uint32_t queue_entries = 256;  ///< of each, 2 to 4096
  std::uint32_t window_commands = 0;  ///< under way on a drive at once; 0: what the queues take
  std::uint64_t window_bytes = std::uint64_t{64} << 20;  ///< the same in bytes, 1 or more
  Duration command_timeout{5.0};
  Duration retry_after{1.0};        ///< until a drive that does not come back is tried again
  std::uint32_t ring_entries = 64;  ///< layers submitted and not yet done, 1 to 4096
  std::uint32_t max_windows = 64;
  std::uint32_t max_places = 4096;  ///< on each drive
  bool sgl = true;                  ///< use SGLs where a controller takes them
  /// How long teams without work look for more before they leave, 0 to 1 s; the next submit starts them
  /// again. On a GPU nothing that waits for the whole device (cuMemFree, cuCtxSynchronize, loading of a
  /// module) ends while they are there.
  Duration linger{0.002};
  Duration stay{
      0.05};  ///< after which they leave even so, and whoever waits for the device has a turn, to 1 s
};

/// A slice of a place, as the caller names it.
struct LayerSlice {
  std::uint32_t drive = 0;
  std::uint32_t place = 0;
  std::uint32_t window = 0;
  std::uint64_t target_offset = 0;
  std::uint64_t memory_offset = 0;
  std::uint64_t length = 0;
};

struct LayerCounters {
  std::uint64_t commands = 0;
  std::uint64_t doorbells = 0;  ///< of submission queues
  std::uint64_t strays = 0;
  std::uint64_t remade = 0;  ///< queues
  std::uint64_t resets = 0;
};

/// Not thread-safe. Once wait() has returned true for a ticket, nothing of its layer is under way any more.
class LayerEngine {
 public:
  /// @throws InvalidArgument for a setting outside its range, and for a controller whose doorbells are not
  /// words that teams can store to; what Controller throws.
  LayerEngine(std::vector<std::unique_ptr<Controller>> controllers, std::unique_ptr<TeamHost> teams,
              const LayerEngineSettings& settings);
  /// Ends the teams and hands the controllers back.
  ~LayerEngine();
  LayerEngine(const LayerEngine&) = delete;
  LayerEngine& operator=(const LayerEngine&) = delete;

  /// Memory that items may name, which stays while the engine lives. @returns its number.
  /// @throws InvalidArgument, also when there are `max_windows`; SystemError
  std::uint32_t add_window(std::byte* address, std::uint64_t size, MemoryKind kind, int device);
  /// Blocks of a namespace that items may name. @returns its number among those of the drive.
  /// @throws InvalidArgument, also when there are `max_places`
  std::uint32_t add_place(std::uint32_t drive, std::uint32_t nsid, std::span<const BlockExtent> extents);
  /// Prepares a layer: all reads, or all writes. @returns its number.
  /// @throws InvalidArgument for a slice that names what is not there, or ends outside of its window, or is
  /// off whole blocks.
  std::uint32_t add_layer(IoOpcode opcode, std::span<const LayerSlice> slices);

  /// Hands a layer to the teams. @returns its ticket. @throws InvalidArgument for an unknown layer;
  /// SystemError: EBUSY when it is under way already, EAGAIN when the ring is full, EIO after the device
  /// failed.
  std::uint64_t submit(std::uint32_t layer);
  /// Waits until the layer of the ticket is done; what a fault has left is cleared up before it returns:
  /// queues are made anew, a controller is reset, or cut off from memory. @returns false at the timeout.
  /// @throws SystemError when the teams' device failed, or a drive neither answers nor can be kept from
  /// memory.
  [[nodiscard]] bool wait(std::uint64_t ticket, Duration timeout);
  /// 0 or an errno of each slice, in their order, as of the last time that the layer was done.
  [[nodiscard]] std::span<const std::int32_t> statuses(std::uint32_t layer) const;
  /// The same words as the teams' device sees them, and the word that has the ticket of the last round that
  /// is done: for kernels and streams.
  [[nodiscard]] const std::int32_t* device_statuses(std::uint32_t layer) const;
  [[nodiscard]] const std::uint64_t* done_word(std::uint32_t layer) const;

  [[nodiscard]] std::uint32_t teams() const noexcept { return static_cast<std::uint32_t>(queues_.size()); }
  [[nodiscard]] LayerCounters counters() const;
  /// Lets teams play the drives, which say success and move nothing: to measure submission alone. Before the
  /// first submit, until stop(); the controllers themselves are kept from memory.
  /// @throws SystemError where a bus has no switch for that.
  void play_drives();
  /// Ends the teams; nothing may be under way. @throws SystemError
  void stop();

 private:
  struct Drive;
  struct Layer {
    LayerDescriptor form;  ///< all but the ticket
    std::int32_t* host_status = nullptr;
    std::uint32_t count = 0;
    std::uint64_t ticket = 0;  ///< of the last round
  };
  struct Queue {
    std::unique_ptr<QueuePair> pair;
    std::uint32_t drive = 0;
  };

  void make_lanes();
  void check_slice(const LayerSlice& slice) const;
  [[nodiscard]] bool is_done(std::uint64_t ticket) const;
  [[nodiscard]] bool wait_done(std::uint64_t ticket, TimePoint deadline);
  void watch();
  [[nodiscard]] bool any_lost() const;
  void recover();
  void recover(std::uint32_t drive);
  [[nodiscard]] bool remake_lost(std::uint32_t drive);
  void renew(std::uint32_t lane);
  void cut_off(std::uint32_t drive, const char* why);
  void shut_down() noexcept;

  const LayerEngineSettings settings_;
  std::unique_ptr<TeamHost> teams_;
  std::vector<Drive> drives_;
  std::vector<Queue> queues_;
  IssueLane* lanes_ = nullptr;
  LaneControl* controls_ = nullptr;  ///< [lanes]
  LayerRing ring_;
  std::uint64_t* tail_ = nullptr;
  std::uint32_t* stop_ = nullptr;
  std::uint32_t* played_out_ = nullptr;  ///< ends the teams that play drives
  bool plays_ = false;
  std::uint64_t shown_ = 0;
  std::vector<std::uint32_t> slot_layers_;
  std::vector<Layer> layers_;
  std::vector<std::uint64_t> window_sizes_;
  TimePoint looked_;
  bool down_ = false;  ///< a drive did not come back
  TimePoint retry_at_;
  LayerCounters counters_;
};

}  // namespace tutti::runtime::nvme
