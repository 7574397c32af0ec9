// SPDX-License-Identifier: Apache-2.0
// How a team carries out a layer on its queue: lanes take items and cut them into commands, one doorbell
// shows a batch of them, completions are taken as many as there are. Nothing waits without a deadline.
#pragma once

#include <cstdint>

#include "tutti/runtime/nvme/core/annotate.hpp"
#include "tutti/runtime/nvme/core/atomic.hpp"
#include "tutti/runtime/nvme/core/bits.hpp"
#include "tutti/runtime/nvme/core/layer.hpp"
#include "tutti/runtime/nvme/core/ordered.hpp"
#include "tutti/runtime/nvme/core/team.hpp"

namespace tutti::runtime::nvme {

/// What a lane works on.
struct LaneState {
  Splitter splitter;
  CommandPiece piece;  ///< cut, and not yet issued, while `ready`
  std::uint32_t item = 0;
  std::uint32_t nsid = 0;
  bool busy = false;
  bool ready = false;
  std::uint64_t before = 0;  ///< bytes of the lanes before
  Completion entry{};
  bool fresh = false;        ///< `entry` is new
  std::uint32_t closes = 0;  ///< item of `entry`
  std::uint64_t offset = 0;  ///< in it, of the command of `entry`
  std::uint32_t gone = 0;    ///< commands given up
  std::uint64_t gone_bytes = 0;
};

/// One layer on one queue.
template <typename Team>
class LayerRun {
 public:
  TUTTI_HD LayerRun(Team& team, IssueLane& lane, const LayerBody& layer)
      : team_(team), lane_(lane), layer_(layer), range_(layer.ranges[lane.drive]) {
    place_ = (lane.index + layer.turn) % lane.count;
    const std::uint32_t above = range_.count + lane.count - 1;
    mine_ = above < place_ ? 0 : (above - place_) / lane.count;
  }

  TUTTI_HD void run() {
    if (lane_.lost == 0) {
      lane_.lost = told();  // before the first doorbell: the queue may be gone
    }
    if (lane_.lost != 0 || is_taken_back()) {
      abandon();
    }
    std::uint32_t idle = 0;
    for (std::uint32_t round = 1; !finished(); ++round) {
      const bool issued = issue();
      const bool reaped = reap();
      if (issued || reaped) {
        idle = 0;
      } else {
        team_.pause(idle++);
      }
      if (round % kLookEvery == 0) {
        look_after();
      }
    }
  }

 private:
  static constexpr std::uint32_t kLookEvery = 16;

  [[nodiscard]] TUTTI_HD bool finished() {
    return in_flight_ == 0 && next_ == mine_ &&
           team_.vote([](std::uint32_t, LaneState& state) { return state.busy; }) == 0;
  }

  /// Whether the host gives this lane's items to somebody else, because the lane began too late.
  [[nodiscard]] TUTTI_HD bool is_taken_back() {
    return team_.lead([&] {
      return layer_.begun == nullptr
                 ? std::uint64_t{0}
                 : std::uint64_t{say_and_look(layer_.begun + lane_.number, 1, layer_.taken_back)};
    }) != 0;
  }

  /// An errno, when the host says that everything under way is to be given up.
  [[nodiscard]] TUTTI_HD std::uint32_t told() {
    return static_cast<std::uint32_t>(team_.lead([&] { return std::uint64_t{load_relaxed(lane_.control)}; }));
  }

  [[nodiscard]] TUTTI_HD std::uint32_t number_of(std::uint32_t which) const {
    return range_.first + place_ + which * lane_.count;
  }

  TUTTI_HD void set_status(std::uint32_t item, std::uint32_t status) {
    const std::uint32_t place = layer_.items[item].status;
    store_relaxed(reinterpret_cast<std::uint32_t*>(layer_.status + place), status);
    if (layer_.host_status != nullptr) {
      store_relaxed(reinterpret_cast<std::uint32_t*>(layer_.host_status + place), status);
    }
  }

  /// The item is over. A host that looks before the layer is done sees all that was before.
  TUTTI_HD void settle(std::uint32_t item, std::uint64_t failure, std::uint32_t given_up) {
    const auto error = failure == kNoFailure ? 0U : static_cast<std::uint32_t>(failure & 0xffffU);
    if (layer_.host_good == nullptr) {
      set_status(item, error);
      return;
    }
    const std::uint32_t place = layer_.items[item].status;
    store_relaxed(reinterpret_cast<std::uint32_t*>(layer_.status + place), error);
    if (error != 0) {
      store_relaxed(layer_.host_good + place, failure >> 16);
    }
    store_release(reinterpret_cast<std::uint32_t*>(layer_.host_status + place), error | given_up);
  }

  /// One command of the item, which begins at `offset` in it, is over, or no more of them come. The last one
  /// settles its status.
  TUTTI_HD void close(std::uint32_t item, std::uint32_t error, std::uint64_t offset) {
    ItemProgress& progress = layer_.progress[item];
    if (error != 0) {
      keep_smaller(&progress.failure, (offset << 16) | error);
    }
    if (fetch_add(&progress.open, 0xffffffffU) == 1) {
      settle(item, load_relaxed(&progress.failure), load_relaxed(&progress.given_up));
    }
  }

  /// Bytes of the lane's item before those that were not cut yet.
  [[nodiscard]] TUTTI_HD std::uint64_t cut_so_far(const LaneState& state) const {
    return layer_.items[state.item].length - state.splitter.left;
  }

  TUTTI_HD void begin(LaneState& state, std::uint32_t item) {
    const LayerItem& wanted = layer_.items[item];
    state.item = item;
    state.nsid = lane_.tables.nsids[wanted.place];
    state.splitter.stripe = {0, 1, 0};
    state.splitter.shards = lane_.tables.places + wanted.place;
    state.splitter.windows = lane_.tables.windows + wanted.window;
    state.splitter.target_offset = wanted.target_offset;
    state.splitter.memory_offset = wanted.memory_offset;
    state.splitter.left = wanted.length;
    state.busy = true;
    state.ready = false;
    store_relaxed(&layer_.progress[item].failure, kNoFailure);
    store_relaxed(&layer_.progress[item].given_up, 0U);
    store_relaxed(&layer_.progress[item].open, 1U);
    set_status(item, kItemUnderWay);
  }

  /// Cuts the next command; what has failed goes no further.
  TUTTI_HD void cut(LaneState& state) {
    std::uint32_t error = 0;
    const std::uint64_t offset = cut_so_far(state);
    if (load_relaxed(&layer_.progress[state.item].failure) == kNoFailure) {
      const SplitStep step = state.splitter.next(state.piece);
      if (step == SplitStep::kPiece) {
        state.ready = true;
        return;
      }
      error = step == SplitStep::kNoBlock ? kItemNoBlock : step == SplitStep::kNoMemory ? kItemNoMemory : 0;
    }
    state.busy = false;
    close(state.item, error, offset);
  }

  TUTTI_HD void take_items() {
    if (next_ < mine_) {
      const std::uint32_t idle = team_.vote([](std::uint32_t, LaneState& state) { return !state.busy; });
      const std::uint32_t left = mine_ - next_;
      team_.each([&](std::uint32_t i, LaneState& state) {
        if (!state.busy && bits_below(idle, i) < left) {
          begin(state, number_of(next_ + bits_below(idle, i)));
        }
      });
      next_ += smaller(count_bits(idle), left);
    }
    team_.each([&](std::uint32_t, LaneState& state) {
      if (state.busy && !state.ready) {
        cut(state);
      }
    });
  }

  /// Writes as many commands as there is room for and shows them to the drive at once.
  TUTTI_HD bool issue() {
    take_items();
    const std::uint32_t ready = team_.vote([](std::uint32_t, LaneState& state) { return state.ready; });
    const std::uint32_t room =
        smaller(smaller(lane_.sq.space(), lane_.ids.free_count), lane_.max_commands - in_flight_);
    if (ready == 0 || room == 0) {
      return false;
    }
    team_.sums([](std::uint32_t, LaneState& state) { return state.ready ? state.piece.length : 0; },
               [](std::uint32_t, LaneState& state, std::uint64_t before) { state.before = before; });
    const std::uint32_t chosen = team_.vote([&](std::uint32_t i, LaneState& state) {
      return state.ready && bits_below(ready, i) < room && bytes_ + state.before < lane_.max_bytes;
    });
    const std::uint32_t count = count_bits(chosen);
    if (count == 0) {
      return false;
    }
    const std::uint64_t now = team_.now_ns();
    const std::uint64_t sent =
        team_.sums([&](std::uint32_t i, LaneState& state) { return bit(chosen, i) ? state.piece.length : 0; },
                   [](std::uint32_t, LaneState&, std::uint64_t) {});
    team_.each([&](std::uint32_t i, LaneState& state) {
      if (bit(chosen, i)) {
        write(state, bits_below(chosen, i), now);
      }
    });
    lane_.ids.free_count -= count;
    lane_.sq.tail = (lane_.sq.tail + count) % lane_.sq.depth;
    in_flight_ += count;
    bytes_ += sent;
    lane_.commands += count;
    ++lane_.doorbells;
    team_.lead([&] {
      ring_doorbell(lane_.sq_doorbell, lane_.sq.tail);
      return 0;
    });
    return true;
  }

  /// Command number `rank` of the batch.
  TUTTI_HD void write(LaneState& state, std::uint32_t rank, std::uint64_t now) {
    const std::uint32_t slot = lane_.ids.free_slots[lane_.ids.free_count - 1 - rank];
    const std::uint16_t cid = lane_.ids.ids[slot];
    lane_.ids.in_use[slot] = 1;
    Flight& flight = lane_.flights[slot];
    flight.issued_ns = now;
    flight.bytes = state.piece.length;
    flight.offset = cut_so_far(state) - state.piece.length;
    store_relaxed(&flight.item, state.item);
    fetch_add(&layer_.progress[state.item].open, 1);
    lane_.sq.entries[(lane_.sq.tail + rank) % lane_.sq.depth] =
        make_io(layer_.opcode, state.nsid, state.piece.slba, state.piece.blocks, cid, state.piece.data);
    state.ready = false;
  }

  /// Takes the completions that are there, up to one a lane.
  TUTTI_HD bool reap() {
    const std::uint32_t depth = lane_.cq.depth;
    const std::uint32_t fresh = team_.vote([&](std::uint32_t i, LaneState& state) {
      if (i >= depth || in_flight_ == 0) {
        return false;
      }
      const bool wraps = lane_.cq.head + i >= depth;
      const std::uint32_t place = wraps ? lane_.cq.head + i - depth : lane_.cq.head + i;
      return read_completion(lane_.cq.entries + place, lane_.cq.phase != wraps, state.entry);
    });
    const std::uint32_t count = ones_from_below(fresh);
    if (count == 0) {
      return false;
    }
    const std::uint32_t good =
        team_.vote([&](std::uint32_t i, LaneState& state) { return i < count && claim(state); });
    const std::uint64_t moved = team_.sums(
        [&](std::uint32_t i, LaneState& state) {
          return bit(good, i) ? lane_.flights[lane_.ids.slot_of(cid_of(state.entry))].bytes : 0;
        },
        [](std::uint32_t, LaneState&, std::uint64_t) {});
    team_.each([&](std::uint32_t i, LaneState& state) {
      if (bit(good, i)) {
        free_id(cid_of(state.entry), bits_below(good, i));
        close(state.closes, static_cast<std::uint32_t>(to_errno(status_of(state.entry))), state.offset);
      }
    });
    if (good != 0) {
      lane_.sq.head =
          static_cast<std::uint32_t>(team_.pick(highest_bit(good), [](std::uint32_t, LaneState& state) {
            return std::uint64_t{sq_head_of(state.entry)};
          }));
    }
    const std::uint32_t settled = count_bits(good);
    lane_.ids.free_count += settled;
    in_flight_ -= settled;
    bytes_ -= moved;
    lane_.strays += count - settled;
    lane_.cq.phase = lane_.cq.phase != (lane_.cq.head + count >= depth);
    lane_.cq.head = (lane_.cq.head + count) % depth;
    team_.lead([&] {
      ring_doorbell(lane_.cq_doorbell, lane_.cq.head);
      return 0;
    });
    return true;
  }

  /// Whether the completion is that of a command under way, and nobody has taken it yet.
  TUTTI_HD bool claim(LaneState& state) {
    const std::uint16_t cid = cid_of(state.entry);
    const std::uint32_t told = sq_head_of(state.entry);
    const SubmissionRing& sq = lane_.sq;
    const bool head_is_possible =
        told < sq.depth && ring_used(sq.head, told, sq.depth) <= ring_used(sq.head, sq.tail, sq.depth);
    if (sq_id_of(state.entry) != lane_.queue_id || !head_is_possible || !lane_.ids.owns(cid)) {
      return false;
    }
    Flight& flight = lane_.flights[lane_.ids.slot_of(cid)];
    state.offset = flight.offset;
    state.closes = exchange(&flight.item, kNoItem);
    return state.closes != kNoItem;
  }

  /// CommandIds::give_back() for number `rank` of a batch.
  TUTTI_HD void free_id(std::uint16_t cid, std::uint32_t rank) {
    CommandIds one = lane_.ids;
    one.free_count += rank;
    one.give_back(cid);
  }

  /// Deadlines, and what the host says.
  TUTTI_HD void look_after() {
    const std::uint32_t stop = told();
    const std::uint64_t now = team_.now_ns();
    // A team that was kept from running for longer than the deadline has answers to take first.
    for (std::uint32_t round = 0; round < lane_.cq.depth && reap(); ++round) {
    }
    team_.each([&](std::uint32_t i, LaneState& state) {
      state.gone = 0;
      state.gone_bytes = 0;
      for (std::uint32_t slot = i; slot < lane_.ids.capacity; slot += kTeamLanes) {
        Flight& flight = lane_.flights[slot];
        const bool late = now > flight.issued_ns && now - flight.issued_ns > layer_.timeout_ns;
        if (lane_.ids.in_use[slot] == 0 || !(stop != 0 || late)) {
          continue;
        }
        const std::uint32_t item = exchange(&flight.item, kNoItem);
        if (item != kNoItem) {
          ++state.gone;
          state.gone_bytes += flight.bytes;
          store_relaxed(&layer_.progress[item].given_up, kItemGivenUp);
          close(item, stop != 0 ? stop : std::uint32_t{kItemTimedOut}, flight.offset);
        }
      }
    });
    const auto nothing = [](std::uint32_t, LaneState&, std::uint64_t) {};
    const std::uint64_t gone =
        team_.sums([](std::uint32_t, LaneState& state) { return std::uint64_t{state.gone}; }, nothing);
    bytes_ -= team_.sums([](std::uint32_t, LaneState& state) { return state.gone_bytes; }, nothing);
    in_flight_ -= static_cast<std::uint32_t>(gone);
    if (gone != 0 || stop != 0) {
      lane_.lost = stop != 0 ? stop : std::uint32_t{kItemTimedOut};
      abandon();
    }
  }

  /// Issues nothing more. What is under way may still end by itself.
  TUTTI_HD void abandon() {
    team_.each([&](std::uint32_t i, LaneState& state) {
      if (state.busy) {
        const std::uint64_t issued = cut_so_far(state) - (state.ready ? state.piece.length : 0);
        state.busy = state.ready = false;
        close(state.item, kItemNotIssued, issued);
      }
      for (std::uint32_t which = next_ + i; which < mine_; which += kTeamLanes) {
        settle(number_of(which), kItemNotIssued, 0);
      }
    });
    next_ = mine_;
  }

  Team& team_;
  IssueLane& lane_;
  const LayerBody layer_;  ///< a copy: the ring is across the bus
  const LayerRange range_;
  std::uint32_t place_ = 0;  ///< of this queue among the drive's, in this layer
  std::uint32_t mine_ = 0;   ///< items of this queue
  std::uint32_t next_ = 0;
  std::uint32_t in_flight_ = 0;
  std::uint64_t bytes_ = 0;
};

/// Forgets what was under way, if the host says that the controller has new queues.
template <typename Team>
TUTTI_HD void clear_lane(Team& team, IssueLane& lane, IssueLane* shared) {
  const auto clear = static_cast<LaneClear>(
      team.lead([&] { return std::uint64_t{static_cast<std::uint32_t>(shared->clear)}; }));
  if (clear == LaneClear::kKeep) {
    return;
  }
  team.lead([&] {
    CommandIds ids = lane.ids;
    if (clear == LaneClear::kNew) {
      ids.reset();
    }
    for (std::uint32_t slot = 0; slot < ids.capacity; ++slot) {
      if (ids.in_use[slot] != 0) {
        ids.give_back(ids.ids[slot]);
      }
      lane.flights[slot].item = kNoItem;
    }
    shared->clear = LaneClear::kKeep;
    return 0;
  });
  lane.ids.free_count = lane.ids.capacity;
  lane.sq.head = lane.sq.tail = lane.cq.head = 0;
  lane.cq.phase = true;
  lane.lost = 0;
  lane.sq_doorbell = shared->sq_doorbell;
  lane.cq_doorbell = shared->cq_doorbell;
}

/// Carries out layers of the ring, in their order: those up to number `until`, for which this start was made,
/// and what comes while it stays. Every layer has a start after it was shown, and starts of one lane run one
/// after the other: whoever leaves need not look back. A kernel that never left would hold up everything that
/// waits for its device.
template <typename Team>
TUTTI_HD void serve(Team& team, const LayerRing& ring, IssueLane* shared, std::uint64_t until) {
  if (team.lead([&] { return load_acquire(&shared->layers); }) >= until) {
    return;  // the start before has done it
  }
  IssueLane lane = *shared;
  const std::uint64_t begin = team.now_ns();
  std::uint64_t idle_since = begin;
  std::uint32_t idle = 0;
  while (true) {
    // In this order: a layer that was shown before the stop is not missed.
    const bool stop = team.lead([&] { return std::uint64_t{load_acquire(ring.stop)}; }) != 0;
    const std::uint64_t tail = team.lead([&] { return load_acquire(ring.tail); });
    const std::uint64_t now = team.now_ns();
    if (lane.layers >= until && now - begin >= ring.stay_ns) {
      return;
    }
    if (lane.layers == tail) {
      if (stop || now - idle_since >= ring.linger_ns) {
        return;
      }
      team.pause(idle++);
      continue;
    }
    idle = 0;
    clear_lane(team, lane, shared);
    LayerDescriptor& layer = ring.slots[lane.layers % ring.depth];
    LayerRun<Team>(team, lane, layer).run();
    ++lane.layers;
    team.each([](std::uint32_t, LaneState&) {});
    team.lead([&] {
      shared->sq = lane.sq;
      shared->cq = lane.cq;
      shared->ids.free_count = lane.ids.free_count;
      store_release(&shared->lost, lane.lost);  // the queue is made anew after all that was here
      shared->commands = lane.commands;
      shared->doorbells = lane.doorbells;
      shared->strays = lane.strays;
      store_release(&shared->layers, lane.layers);
      const std::uint64_t ticket = layer.ticket;
      std::uint64_t* const done = layer.done;
      if (fetch_add(&layer.teams_left, 0xffffffffU) == 1) {
        store_release(done, ticket);
      }
      return 0;
    });
    idle_since = team.now_ns();
  }
}

}  // namespace tutti::runtime::nvme
