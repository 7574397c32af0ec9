// SPDX-License-Identifier: Apache-2.0
// What a drive does when commands stay away.
#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "drive.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/backoff.hpp"
#include "tutti/runtime/nvme/status.hpp"

namespace tutti::runtime::nvme {
namespace {

// A command that went down with its queue or controller through no fault of its own is sent again, but one
// that brings the controller down each time must end.
constexpr std::uint32_t kMostTries = 3;
constexpr Clock::duration kLookEvery = std::chrono::milliseconds(10);

Clock::duration ticks(Duration seconds) { return std::chrono::duration_cast<Clock::duration>(seconds); }

}  // namespace

void Drive::say(const char* key, const std::string& text) {
  if (notices_ != nullptr) {
    notices_->add(std::string(key) + ":" + facts_.name, facts_.name + ": " + text);
  }
}

void Drive::look_after(TimePoint now) {
  if (now - looked_ < kLookEvery) {
    return;
  }
  looked_ = now;
  if (state_ != State::kUp) {
    if (now >= retry_at_) {
      reset_controller();
    }
    return;
  }
  if (controller_->check_alive() != 0) {
    reset_controller();
    return;
  }
  if (!mend_team_queues()) {
    reset_controller();
    return;
  }
  for (Lane& lane : lanes_) {
    bool overdue = false;
    for (std::uint32_t slot = 0; slot < lane.flying.size(); ++slot) {
      Flying& flying = lane.flying[slot];
      if (lane.queue->command_ids().in_use[slot] != 0 &&
          now - flying.issued > ticks(settings_.command_timeout)) {
        flying.overdue = overdue = true;
      }
    }
    if (overdue) {
      recover(lane);
      return;  // others are looked at in the next round: a reset may have changed everything
    }
  }
}

/// Makes anew what teams have given up, or deletes it for good. False when the controller does not let it.
bool Drive::mend_team_queues() {
  for (std::uint32_t i = 0; i < team_queues_.size(); ++i) {
    if (teams_ == nullptr || !teams_->is_lost(number_, i)) {
      continue;
    }
    const bool over = teams_->is_over();
    try {
      if (over) {
        controller_->delete_submission_queue(*team_queues_[i]);
        controller_->delete_completion_queue(*team_queues_[i]);
      } else {
        controller_->remake(*team_queues_[i]);
      }
    } catch (const Error&) {
      return false;
    }
    say("team_queue", over ? "a device failed; its queues were deleted"
                           : "a command of a device was not answered in time; its queue was made anew");
    teams_->renew(number_, i, *team_queues_[i]);
  }
  return true;
}

void Drive::recover(Lane& lane) {
  say("command_timeout", "a command was not answered in " +
                             std::to_string(settings_.command_timeout.count()) +
                             " s; it was aborted, and its queue made anew where that did not help");
  if (!abort_overdue(lane)) {
    reset_controller();
  } else if (!wait_for_overdue(lane)) {
    remake(lane);
  }
}

/// False when the controller does not answer.
bool Drive::abort_overdue(Lane& lane) {
  const CommandIds& ids = lane.queue->command_ids();
  for (std::uint32_t slot = 0; slot < lane.flying.size(); ++slot) {
    if (ids.in_use[slot] == 0 || !lane.flying[slot].overdue) {
      continue;
    }
    try {
      static_cast<void>(controller_->abort(*lane.queue, ids.ids[slot]));
    } catch (const CommandFailed& failed) {
      if (failed.status() == 0) {
        return false;
      }
    }
    reap(lane);
  }
  return true;
}

/// Whether all of them have come back, aborted or done.
bool Drive::wait_for_overdue(Lane& lane) {
  constexpr Duration longest(0.1);
  const CommandIds& ids = lane.queue->command_ids();
  const TimePoint deadline = Clock::now() + ticks(std::min(settings_.command_timeout, longest));
  Backoff backoff;
  while (true) {
    reap(lane);
    bool any = false;
    for (std::uint32_t slot = 0; slot < lane.flying.size(); ++slot) {
      any = any || (ids.in_use[slot] != 0 && lane.flying[slot].overdue);
    }
    if (!any || Clock::now() >= deadline) {
      return !any;
    }
    backoff.pause();
  }
}

/// A queue of which something is lost: deleted, so that nothing of it can still run, and made again.
void Drive::remake(Lane& lane) {
  try {
    controller_->delete_submission_queue(*lane.queue);
    reap(lane);  // what had completed, and what the deletion ended
    controller_->delete_completion_queue(*lane.queue);
    settle(lane);
    controller_->create(*lane.queue);
    send_again();
  } catch (const Error&) {
    reset_controller();
  }
}

/// A command that the drive ended unfinished: it was too late, or went down with its queue or controller. A
/// read that was too late is sent once more when its queue is gone, so that what may have been lost was the
/// queue's fault; of a write nobody knows whether it happened, which its caller must hear.
void Drive::take_back(const Flying& flying, bool queue_is_gone) {
  const IoOp& op = actives_[flying.active].op.op;
  const bool once_more =
      queue_is_gone && op.direction == Direction::kRead && flying.tries == 0 && Clock::now() < op.deadline;
  if (flying.overdue && !once_more) {
    end_command(flying, ETIMEDOUT);
  } else if (flying.tries + 1 >= kMostTries) {
    end_command(flying, EIO);
  } else {
    again_.push_back(flying);
    ++again_.back().tries;
  }
}

/// Takes back every command of a queue that the controller has no more, and clears the pair.
void Drive::settle(Lane& lane) {
  for (std::uint32_t slot = 0; slot < lane.flying.size(); ++slot) {
    if (lane.queue->command_ids().in_use[slot] != 0) {
      --in_flight_;
      bytes_in_flight_ -= lane.flying[slot].length;
      take_back(lane.flying[slot], true);
    }
  }
  lane.queue->clear();
}

/// They came from these queues, so there is room for them; what was too late goes to another, if there is
/// one.
void Drive::send_again() {
  for (const Flying& flying : again_) {
    send(*lane_with_room(flying.overdue ? flying.lane : nullptr), flying);
  }
  again_.clear();
  for (Lane& lane : lanes_) {
    lane.queue->ring();
  }
}

/// What was too late has that for its reason, whatever became of the drive afterwards.
void Drive::give_up_again(int error) {
  for (const Flying& flying : again_) {
    end_command(flying, flying.overdue ? ETIMEDOUT : error);
  }
  again_.clear();
}

void Drive::reset_controller() {
  const State before = state_;
  if (teams_ != nullptr) {
    teams_->halt(number_);
  }
  try {
    controller_->reset();
    bring_up();
    say("controller_reset", "the controller had to be reset; it works again");
  } catch (const SystemError& error) {
    if (before == State::kUp) {
      say("drive_down", std::string("given up for now: ") + error.what());
    }
    cut_off(error.error_number());
  } catch (const Error& error) {
    cut_off(EIO);
  }
}

/// After a reset nothing of before is under way any more.
void Drive::bring_up() {
  for (Lane& lane : lanes_) {
    settle(lane);
  }
  for (Lane& lane : lanes_) {
    controller_->create(*lane.queue);
  }
  bring_up_team_queues();
  state_ = State::kUp;
  send_again();
}

/// All of them before the first team may go on: a reset that fails here leaves nobody under way.
void Drive::bring_up_team_queues() {
  if (teams_ == nullptr) {
    return;
  }
  if (!teams_->is_over()) {
    for (const auto& queue : team_queues_) {
      queue->clear();
      controller_->create(*queue);
    }
  }
  for (std::uint32_t i = 0; i < team_queues_.size(); ++i) {
    teams_->renew(number_, i, *team_queues_[i]);
  }
}

/// The drive does not come back. What was under way may only end once the device can reach no memory.
void Drive::cut_off(int error) {
  retry_at_ = Clock::now() + ticks(settings_.retry_after);
  const bool is_gone = controller_->check_alive() == ENODEV;
  // First: without its registers a device may still copy.
  const bool safe = controller_->transport().set_bus_master(false) || is_gone;
  state_ = safe ? State::kDown : State::kStranded;
  down_error_ = is_gone ? ENODEV : (error == ETIMEDOUT ? EIO : error);
  if (teams_ != nullptr) {
    teams_->stays_away(number_, safe);
  }
  if (!safe) {
    return;
  }
  for (Lane& lane : lanes_) {
    settle(lane);
  }
  give_up_again(down_error_);
}

/// New operations fail at once while the drive is away, but the first one after a while tries it again.
void Drive::fail_waiting() noexcept {
  if (Clock::now() >= retry_at_) {
    reset_controller();
    if (state_ == State::kUp) {
      return;
    }
  }
  if (current_ >= 0) {
    Active& active = actives_[static_cast<std::uint32_t>(current_)];
    active.all_issued = true;
    if (active.status == 0) {
      active.status = down_error_;
      active.failed_at = active.op.window != nullptr ? active.op.op.length - active.splitter.left : 0;
    }
    end_if_done(static_cast<std::uint32_t>(std::exchange(current_, -1)));
  }
  while (begin_next()) {
    Active& active = actives_[static_cast<std::uint32_t>(current_)];
    active.all_issued = true;
    active.status = down_error_;
    active.failed_at = 0;
    end_if_done(static_cast<std::uint32_t>(std::exchange(current_, -1)));
    report();
  }
}

}  // namespace tutti::runtime::nvme
