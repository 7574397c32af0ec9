// SPDX-License-Identifier: Apache-2.0
#include "device_engine.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>
#include <system_error>
#include <utility>

#include "tutti/runtime/detail/io_thread.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/backoff.hpp"

namespace tutti::runtime::nvme {
namespace {

constexpr std::uint32_t kSlots = 8;
constexpr std::uint32_t kMostItems = 512;  // of a layer
constexpr std::chrono::microseconds kLongestNap(100);
constexpr Clock::duration kLookEvery = std::chrono::milliseconds(10);
// Of the time of a command: a layer of which nothing ends for so long waits for a command that may be lost.
// What comes meanwhile need not wait behind it.
constexpr double kStalledAfter = 0.1;

std::uint32_t* status_word(std::int32_t* status) noexcept { return reinterpret_cast<std::uint32_t*>(status); }

}  // namespace

DeviceEngine::DeviceEngine(std::unique_ptr<TeamHost> teams, std::vector<Drive*> drives,
                           const DeviceSettings& settings)
    : settings_(settings),
      drives_(std::move(drives)),
      teams_(std::move(teams)),
      tables_(*teams_, teams_mutex_, drives_.size()),
      lanes_(*teams_, teams_mutex_, tables_, drives_, kSlots, settings),
      slots_(kSlots) {
  for (Slot& slot : slots_) {
    slot.items = shared_array<LayerItem>(*teams_, kMostItems);
    slot.ranges = shared_array<LayerRange>(*teams_, drives_.size());
    slot.progress = local_array<ItemProgress>(*teams_, kMostItems);
    slot.status = local_array<std::int32_t>(*teams_, kMostItems);
    slot.host_status = shared_array<std::int32_t>(*teams_, kMostItems);
    slot.host_good = shared_array<std::uint64_t>(*teams_, kMostItems);
    slot.begun = shared_array<std::uint32_t>(*teams_, lanes_.teams());
    slot.taken_back = shared_array<std::uint32_t>(*teams_, 1);
    slot.done = shared_array<std::uint64_t>(*teams_, 1);
    slot.ops.reserve(kMostItems);
    slot.open.reserve(kMostItems);
  }
  finished_.reserve(kSlots * kMostItems);
  left_.reserve(kSlots * kMostItems);
}

DeviceEngine::~DeviceEngine() { stop(); }

void DeviceEngine::start(DeviceEnds& ends) {
  ends_ = &ends;
  try {
    thread_ = detail::start_io_thread("tutti-device", [this] { work(); });
  } catch (const std::system_error& error) {
    throw SystemError(error.code().value(), "cannot start a device's thread: " + error.code().message());
  }
}

void DeviceEngine::stop() noexcept {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      wake_.notify_all();
    }
    thread_.join();
  }
  lanes_.stop();
}

void DeviceEngine::submit(std::span<const DeviceOp> ops) {
  const std::lock_guard lock(mutex_);
  const std::size_t reads = reads_.size();
  const std::size_t writes = writes_.size();
  try {
    for (const DeviceOp& each : ops) {
      (each.op.direction == Direction::kRead ? reads_ : writes_).push_back(each);
    }
  } catch (...) {
    reads_.resize(reads);
    writes_.resize(writes);
    throw;
  }
  wake_.notify_one();
}

std::vector<IoOp> DeviceEngine::withdraw(const OpFilter& filter) {
  std::vector<IoOp> ended;
  const std::lock_guard lock(mutex_);
  ended.reserve(reads_.size() + writes_.size());
  for (std::deque<DeviceOp>* const waiting : {&reads_, &writes_}) {
    const auto gone = std::stable_partition(waiting->begin(), waiting->end(),
                                            [&](const DeviceOp& each) { return !filter(each.op); });
    std::transform(gone, waiting->end(), std::back_inserter(ended),
                   [](const DeviceOp& each) { return each.op; });
    waiting->erase(gone, waiting->end());
  }
  return ended;
}

void DeviceEngine::work() noexcept {
  Backoff backoff(kLongestNap);
  while (wait_for_work()) {
    const bool shown = show_layers();
    const bool ended = collect();
    report();
    if (shown || ended) {
      backoff.reset();
    } else {
      backoff.pause();
    }
    look_after();
    report();
  }
}

/// False when it is time to stop. An engine with nothing to do costs nothing.
bool DeviceEngine::wait_for_work() {
  if (!is_idle()) {
    return true;
  }
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return stopping_ || !reads_.empty() || !writes_.empty(); });
  return !reads_.empty() || !writes_.empty();
}

bool DeviceEngine::show_layers() {
  bool any = false;
  while (shown_ - oldest_ < kSlots && !lanes_.is_broken()) {
    Slot& slot = slots_[shown_ % kSlots];
    if (!take(slot.ops)) {
      break;
    }
    if (is_idle()) {
      watch_drives(true);
      moved_ = Clock::now();
    }
    fill(slot);
    ++shown_;
    any = true;
  }
  return any;
}

/// What the next layer has. False when nothing waits.
bool DeviceEngine::take(std::vector<DeviceOp>& ops) {
  const std::lock_guard lock(mutex_);
  std::deque<DeviceOp>& from = reads_.empty() ? writes_ : reads_;
  const auto count = static_cast<std::ptrdiff_t>(std::min<std::size_t>(from.size(), kMostItems));
  ops.assign(from.begin(), from.begin() + count);
  from.erase(from.begin(), from.begin() + count);
  return count > 0;
}

/// Writes the layer's tables and shows it.
void DeviceEngine::fill(Slot& slot) {
  std::stable_sort(slot.ops.begin(), slot.ops.end(),
                   [](const DeviceOp& a, const DeviceOp& b) { return a.drive < b.drive; });
  std::fill_n(slot.ranges, drives_.size(), LayerRange{});
  slot.open.clear();
  for (std::uint32_t i = 0; i < slot.ops.size(); ++i) {
    const DeviceOp& each = slot.ops[i];
    const auto memory_offset = static_cast<std::uint64_t>(each.op.address - each.op.memory->address);
    slot.items[i] = {each.op.target_offset, memory_offset, each.op.length, each.place, each.window, i};
    LayerRange& range = slot.ranges[each.drive];
    range.first = range.count == 0 ? i : range.first;
    ++range.count;
    store_relaxed(status_word(slot.host_status + i), std::uint32_t{kItemUnderWay});
    slot.open.push_back(i);
  }
  for (std::uint32_t lane = 0; lane < lanes_.teams(); ++lane) {
    store_relaxed(slot.begun + lane, 0U);
  }
  store_relaxed(slot.taken_back, 0U);
  LayerDescriptor layer;
  layer.begun = slot.begun;
  layer.taken_back = slot.taken_back;
  layer.items = slot.items;
  layer.ranges = slot.ranges;
  layer.progress = slot.progress;
  layer.status = slot.status;
  layer.host_status = slot.host_status;
  layer.host_good = slot.host_good;
  layer.done = slot.done;
  layer.timeout_ns = static_cast<std::uint64_t>(settings_.command_timeout.count() * 1e9);
  layer.opcode = slot.ops.front().op.direction == Direction::kRead ? IoOpcode::kRead : IoOpcode::kWrite;
  slot.ticket = lanes_.show(layer);
}

bool DeviceEngine::collect() {
  bool any = false;
  for (std::uint64_t i = oldest_; i < shown_; ++i) {
    any = collect(slots_[i % kSlots]) || any;
  }
  while (!is_idle()) {
    const Slot& slot = slots_[oldest_ % kSlots];
    if (!slot.open.empty() || (load_acquire(slot.done) != slot.ticket && !told_broken_)) {
      break;
    }
    ++oldest_;
    any = true;
  }
  if (any) {
    moved_ = Clock::now();
    takes_more_.store(!lanes_.is_broken(), std::memory_order_relaxed);
    if (is_idle()) {
      watch_drives(false);
    }
  }
  return any;
}

bool DeviceEngine::collect(Slot& slot) {
  const bool done = load_acquire(slot.done) == slot.ticket || told_broken_;
  const std::size_t before = slot.open.size();
  std::erase_if(slot.open, [&](std::uint32_t item) { return end_item(slot, item, done); });
  return slot.open.size() != before;
}

/// Whether the item has a result, and nothing of it is under way. A success may be used at once, an error
/// that a drive told too; where a command was given up, its queue must be made anew before.
bool DeviceEngine::end_item(const Slot& slot, std::uint32_t item, bool layer_is_done) {
  const std::uint32_t word = load_acquire(status_word(slot.host_status + item));
  const bool given_up = (word & kItemGivenUp) != 0 || word == kItemUnderWay;
  if (given_up && (!layer_is_done || !lanes_.is_settled(slot.ops[item].drive))) {
    return false;
  }
  const auto error = static_cast<std::int32_t>(word & (kItemGivenUp - 1));
  IoOp op = slot.ops[item].op;
  const bool late = error == kItemTimedOut;
  if (error == kItemNotIssued || error == kItemUnderWay ||
      (late && op.direction == Direction::kRead && Clock::now() < op.deadline)) {
    op.upper_error = late ? ETIMEDOUT : 0;
    left_.push_back(op);
    return true;
  }
  op.status = error;
  op.done = error == 0 ? op.length : load_relaxed(slot.host_good + item);
  finished_.push_back(op);
  return true;
}

void DeviceEngine::look_after() {
  const TimePoint now = Clock::now();
  if (now - looked_ < kLookEvery) {
    return;
  }
  looked_ = now;
  int error = 0;
  {
    const std::lock_guard lock(teams_mutex_);
    error = teams_->check();
  }
  if ((error != 0 || lanes_.is_broken()) && !told_broken_) {
    told_broken_ = true;
    lanes_.give_up();
    ends_->broke(error != 0 ? std::strerror(error) : "its teams did not start, or did not come to rest");
  }
  const auto patience =
      std::chrono::duration_cast<Clock::duration>(settings_.command_timeout * kStalledAfter);
  if (lanes_.is_broken() || (!is_idle() && now - moved_ > patience)) {
    takes_more_.store(false, std::memory_order_relaxed);
    take_back_unbegun();
    leave_waiting();
  }
}

/// A team works on one layer after the other: what lies behind a command that may be lost goes elsewhere.
void DeviceEngine::take_back_unbegun() noexcept {
  for (std::uint64_t i = oldest_; i < shown_; ++i) {
    Slot& slot = slots_[i % kSlots];
    std::erase_if(slot.open, [&](std::uint32_t item) {
      const DeviceOp& each = slot.ops[item];
      const std::uint32_t lane =
          lanes_.lane_of(each.drive, item - slot.ranges[each.drive].first, slot.ticket);
      if (say_and_look(slot.taken_back, 1, slot.begun + lane) != 0) {
        return false;
      }
      left_.push_back(each.op);
      return true;
    });
  }
}

void DeviceEngine::watch_drives(bool on) noexcept {
  for (Drive* const drive : drives_) {
    drive->watch_teams(on);
  }
}

/// What no team has been shown need not wait for them.
void DeviceEngine::leave_waiting() noexcept {
  bool any = true;
  while (any) {
    {
      const std::lock_guard lock(mutex_);
      for (std::deque<DeviceOp>* const waiting : {&reads_, &writes_}) {
        while (!waiting->empty() && left_.size() < left_.capacity()) {
          left_.push_back(waiting->front().op);
          waiting->pop_front();
        }
      }
    }
    any = !left_.empty();
    report();
  }
}

void DeviceEngine::report() noexcept {
  if (!finished_.empty()) {
    ends_->done(finished_);
    finished_.clear();
  }
  if (!left_.empty()) {
    ends_->left_over(left_);
    left_.clear();
  }
}

}  // namespace tutti::runtime::nvme
