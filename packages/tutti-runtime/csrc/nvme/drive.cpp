// SPDX-License-Identifier: Apache-2.0
#include "drive.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "tutti/runtime/detail/io_thread.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/backoff.hpp"

namespace tutti::runtime::nvme {
namespace {

// Completions come by the drive's own writes: a sleep costs latency, and no sleep costs a core.
constexpr std::chrono::microseconds kLongestNap(100);
constexpr std::chrono::milliseconds kTeamsWatch(10);
// A controller that tells no MDTS can have a limit all the same: QEMU 7.2 ends a command of more than 1024
// pages with Internal Error.
constexpr std::uint64_t kMostCommandBytes = std::uint64_t{4} << 20;

}  // namespace

const NamespaceIdentity* DriveFacts::find(std::uint32_t nsid) const noexcept {
  const auto place = std::find_if(namespaces.begin(), namespaces.end(),
                                  [nsid](const NamespaceIdentity& each) { return each.nsid == nsid; });
  return place == namespaces.end() ? nullptr : &*place;
}

Drive::Drive(std::unique_ptr<Transport> transport, const DriveSettings& settings,
             std::shared_ptr<detail::Notices> notices)
    : settings_(settings), notices_(std::move(notices)) {
  ControllerOptions options;
  options.admin_timeout = settings.admin_timeout;
  options.max_queues = settings.queues + settings.team_queues;
  controller_ = std::make_unique<Controller>(std::move(transport), options);
  facts_.name = controller_->transport().name();
  facts_.identity = controller_->identity();
  facts_.namespaces = controller_->namespaces();
  facts_.page_bytes = controller_->page_bytes();
  facts_.max_command_bytes = std::min(controller_->max_transfer_bytes(), kMostCommandBytes);
  facts_.transport = controller_->transport().caps();
  const std::uint32_t granted = controller_->max_queues();
  const std::uint32_t for_teams = std::min(settings.team_queues, granted - 1);
  facts_.queues = std::min(settings.queues, granted - for_teams);
  try {
    for (std::uint32_t i = 0; i < facts_.queues; ++i) {
      Lane lane;
      lane.queue = controller_->make_queue_pair(settings.queue_entries);
      lane.flying.resize(lane.queue->capacity());
      max_in_flight_ += lane.queue->capacity();
      facts_.queue_entries = lane.queue->depth();
      lanes_.push_back(std::move(lane));
    }
    for (std::uint32_t i = 0; i < for_teams; ++i) {
      team_queues_.push_back(controller_->make_queue_pair(settings.queue_entries, settings.team_memory));
    }
  } catch (...) {
    controller_->shutdown();  // before the queues' memory goes
    throw;
  }
  // One more than can have commands under way: the one that is being issued.
  actives_.resize(max_in_flight_ + 1);
  finished_.reserve(max_in_flight_ + 1);
  again_.reserve(max_in_flight_);
  for (std::uint32_t i = 0; i < actives_.size(); ++i) {
    free_actives_.push_back(i);
  }
}

Drive::~Drive() { stop(); }

void Drive::start(CompletionSink& sink) {
  sink_ = &sink;
  try {
    thread_ = detail::start_io_thread("tutti-nvme", [this] { work(); });
  } catch (const std::system_error& error) {
    throw SystemError(error.code().value(), "cannot start a drive's thread: " + error.code().message());
  }
}

void Drive::stop() noexcept {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      wake_.notify_all();
    }
    thread_.join();
  }
  controller_->shutdown();
}

void Drive::submit(std::span<const DriveOp> ops) {
  const std::lock_guard lock(mutex_);
  const std::size_t before = waiting_.size();
  try {
    waiting_.insert(waiting_.end(), ops.begin(), ops.end());
  } catch (...) {
    waiting_.resize(before);
    throw;
  }
  if (asleep_) {
    wake_.notify_one();
  }
}

void Drive::refuse(std::span<const DriveOp> ops, std::int32_t status) noexcept {
  for (DriveOp each : ops) {
    each.op.status = status;
    each.op.done = 0;
    sink_->complete({&each.op, 1});
  }
}

void Drive::withdraw(const OpFilter& filter, std::int32_t status) noexcept {
  std::vector<DriveOp> ended;
  {
    const std::lock_guard lock(mutex_);
    const auto gone = std::stable_partition(waiting_.begin(), waiting_.end(),
                                            [&](const DriveOp& each) { return !filter(each.op); });
    ended.assign(gone, waiting_.end());
    waiting_.erase(gone, waiting_.end());
  }
  refuse(ended, status);
}

void Drive::work() noexcept {
  Backoff backoff(kLongestNap);
  while (wait_for_work()) {
    const bool issued = issue();
    const bool reaped = reap();
    report();
    if (issued || reaped) {
      backoff.reset();
    } else {
      backoff.pause();
    }
    look_after(Clock::now());
    report();
  }
}

void Drive::watch_teams(bool on) noexcept {
  const std::lock_guard lock(mutex_);
  teams_busy_.store(on, std::memory_order_relaxed);
  if (on && asleep_) {
    wake_.notify_one();
  }
}

/// False when it is time to stop. A drive with nothing to do costs nothing, one that teams work on little.
bool Drive::wait_for_work() {
  if (in_flight_ > 0 || current_ >= 0) {
    return true;
  }
  const auto called = [this] { return stopping_ || !waiting_.empty(); };
  std::unique_lock lock(mutex_);
  asleep_ = true;
  if (!called() && teams_busy_.load(std::memory_order_relaxed)) {
    wake_.wait_for(lock, kTeamsWatch);
  } else {
    wake_.wait(lock, [&] { return called() || teams_busy_.load(std::memory_order_relaxed); });
  }
  asleep_ = false;
  return !waiting_.empty() || !stopping_;
}

bool Drive::issue() {
  if (state_ != State::kUp) {
    fail_waiting();
    return false;
  }
  bool any = false;
  while (current_ >= 0 || begin_next()) {
    if (!issue_current()) {
      break;
    }
    any = true;
  }
  for (Lane& lane : lanes_) {
    lane.queue->ring();
  }
  return any;
}

/// Takes the next operation off the list. False when there is none.
bool Drive::begin_next() {
  if (free_actives_.empty()) {
    return false;
  }
  const std::uint32_t index = free_actives_.back();
  Active& active = actives_[index];
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) {
      return false;
    }
    active = Active{};
    active.op = waiting_.front();
    waiting_.pop_front();
  }
  free_actives_.pop_back();
  current_ = index;
  const IoOp& op = active.op.op;
  if (active.op.window != nullptr) {
    active.splitter.stripe = {0, 1, 0};
    active.splitter.shards = &active.op.target->place();
    active.splitter.windows = active.op.window;
    active.splitter.target_offset = op.target_offset;
    active.splitter.memory_offset = static_cast<std::uint64_t>(op.address - op.memory->address);
    active.splitter.left = op.length;
  }
  return true;
}

/// One command always may be under way.
bool Drive::window_is_full() const noexcept {
  return in_flight_ > 0 && (bytes_in_flight_ >= settings_.window_bytes ||
                            (settings_.window_commands != 0 && in_flight_ >= settings_.window_commands));
}

Drive::Lane* Drive::lane_with_room(const void* rather_not) noexcept {
  Lane* last = nullptr;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[next_lane_];
    next_lane_ = next_lane_ + 1 == lanes_.size() ? 0 : next_lane_ + 1;
    if (lane.queue->has_room()) {
      last = &lane;
      if (last != rather_not) {
        break;
      }
    }
  }
  return last;
}

/// Sends the next command of the current operation. False when there is no room for it now.
bool Drive::issue_current() {
  const auto index = static_cast<std::uint32_t>(current_);
  Active& active = actives_[index];
  const IoOp& op = active.op.op;
  Lane* const lane = window_is_full() ? nullptr : lane_with_room();
  if (lane == nullptr) {
    return false;
  }
  Flying flying;
  flying.active = index;
  if (op.direction == Direction::kFlush) {
    flying.command = make_flush(active.op.target->nsid(), 0);
    active.all_issued = true;
  } else {
    CommandPiece piece;
    const std::uint64_t done = op.length - active.splitter.left;
    const SplitStep step =
        active.status != 0 ? SplitStep::kDone : active.splitter.next(piece);  // what failed goes no further
    if (step != SplitStep::kPiece) {
      if (step != SplitStep::kDone) {
        active.status = step == SplitStep::kNoBlock ? ENXIO : EFAULT;
        active.failed_at = done;
      }
      active.all_issued = true;
      current_ = -1;
      end_if_done(index);
      return true;
    }
    const IoOpcode opcode = op.direction == Direction::kRead ? IoOpcode::kRead : IoOpcode::kWrite;
    flying.command = make_io(opcode, active.op.target->nsid(), piece.slba, piece.blocks, 0, piece.data);
    flying.offset = done;
    flying.length = piece.length;
    active.all_issued = active.splitter.left == 0;
  }
  ++active.outstanding;
  send(*lane, flying);
  if (active.all_issued) {
    current_ = -1;
  }
  return true;
}

void Drive::send(Lane& lane, const Flying& flying) {
  const std::uint16_t cid = lane.queue->submit(flying.command);
  Flying& slot = lane.flying[lane.queue->slot_of(cid)];
  slot = flying;
  slot.issued = Clock::now();
  slot.overdue = false;
  slot.lane = &lane;
  ++in_flight_;
  bytes_in_flight_ += flying.length;
}

bool Drive::reap() {
  bool any = false;
  for (Lane& lane : lanes_) {
    any = reap(lane) || any;
  }
  return any;
}

bool Drive::reap(Lane& lane) {
  return lane.queue->poll([&](std::uint16_t cid, const Completion& entry) {
    const Flying& flying = lane.flying[lane.queue->slot_of(cid)];
    const std::uint16_t status = status_of(entry);
    --in_flight_;
    bytes_in_flight_ -= flying.length;
    const std::uint16_t kind = kind_of_status(status);
    if (kind == kStatusAbortRequested || kind == kStatusAbortedSqDeletion) {
      take_back(flying, false);
    } else {
      end_command(flying, to_errno(status));
    }
  }) > 0;
}

void Drive::end_command(const Flying& flying, std::int32_t error) {
  Active& active = actives_[flying.active];
  --active.outstanding;
  if (error != 0 && (active.status == 0 || flying.offset < active.failed_at)) {
    active.status = error;
    active.failed_at = flying.offset;
  }
  end_if_done(flying.active);
}

void Drive::end_if_done(std::uint32_t index) {
  Active& active = actives_[index];
  if (active.outstanding != 0 || !active.all_issued) {
    return;
  }
  IoOp& op = active.op.op;
  op.status = active.status;
  op.done = active.status == 0 ? op.length : active.failed_at;
  finished_.push_back(op);
  free_actives_.push_back(index);
}

void Drive::report() {
  if (!finished_.empty()) {
    sink_->complete(finished_);
    finished_.clear();
  }
}

}  // namespace tutti::runtime::nvme
