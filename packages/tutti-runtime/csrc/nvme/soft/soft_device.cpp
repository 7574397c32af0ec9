// SPDX-License-Identifier: Apache-2.0
#include "soft_device.hpp"

#include <algorithm>
#include <utility>

#include "tutti/runtime/nvme/core/ring.hpp"
#include "tutti/runtime/nvme/registers.hpp"

namespace tutti::runtime::nvme::soft {
namespace {

constexpr std::uint32_t kFetchAtOnce = 64;  // so that one queue does not keep the others waiting

Clock::duration seconds(double value) { return std::chrono::duration_cast<Clock::duration>(Duration(value)); }

}  // namespace

Device::Device(const SoftSettings& settings, SoftControl& control, std::span<std::uint32_t> bar)
    : settings_(settings), control_(control), bar_(bar) {
  for (const SoftNamespace& each : settings.namespaces) {
    namespaces_.push_back(std::make_unique<Storage>(each, settings.device));
  }
  reset_registers();
}

std::uint32_t Device::load(std::uint32_t offset) const noexcept { return load_acquire(&bar_[offset / 4]); }
void Device::store(std::uint32_t offset, std::uint32_t value) noexcept {
  store_release(&bar_[offset / 4], value);
}

void Device::reset_registers() noexcept {
  for (std::size_t i = 0; i < bar_.size(); ++i) {
    store_release(&bar_[i], 0U);
  }
  std::uint32_t stride_code = 0;
  while ((4U << stride_code) < settings_.doorbell_stride) {
    ++stride_code;
  }
  constexpr std::uint32_t contiguous_queues = 1U << 16;
  constexpr std::uint32_t nvm_commands = 1U << 5;  // bit 37
  store(kCap, (settings_.max_entries - 1) | contiguous_queues | ((settings_.timeout_ms / 500) << 24));
  store(kCap + 4, stride_code | nvm_commands);
  store(kVs, 0x00020000);
}

bool Device::step() {
  if (control_.stuck.load(std::memory_order_acquire)) {
    return false;
  }
  if (control_.unplugged.load(std::memory_order_acquire)) {
    gone_.store(true, std::memory_order_release);
    drop_queues();
    return false;
  }
  if (gone()) {
    reset_registers();
    enabled_ = failed_ = false;
    gone_.store(false, std::memory_order_release);
  }
  bool busy = look_at_configuration();
  if (!enabled_ || failed_ || !bus_master_) {
    return busy;
  }
  for (auto& [id, queue] : cqs_) {
    while (!queue.waiting.empty() && room(queue, id) > 0) {
      const Completion entry = queue.waiting.front();
      queue.waiting.pop_front();
      write(queue, entry, false);
    }
  }
  // An admin command can delete queues: walk by number.
  for (std::uint32_t id = 0; id <= settings_.max_queues && enabled_ && !failed_; ++id) {
    const auto queue = sqs_.find(static_cast<std::uint16_t>(id));
    if (queue != sqs_.end()) {
      busy = look_at_queue(queue->first, queue->second) || busy;
    }
  }
  return run_due() || busy;
}

bool Device::look_at_configuration() {
  const std::uint32_t cc = load(kCc);
  if ((cc & kCcEnable) != 0 && !enabled_) {
    enable(cc);
    return true;
  }
  if ((cc & kCcEnable) == 0 && enabled_) {
    disable();
    return true;
  }
  const std::uint32_t csts = load(kCsts);
  if ((cc & kCcShutdownMask) != 0 && (csts & kCstsShutdownMask) == 0) {
    for (const auto& storage : namespaces_) {
      static_cast<void>(storage->flush());
    }
    control_.count([](SoftCounters& counters) { ++counters.shutdowns; });
    store(kCsts, csts | kCstsShutdownDone);
    return true;
  }
  return false;
}

void Device::enable(std::uint32_t cc) {
  enabled_ = true;
  failed_ = false;
  page_ = std::uint64_t{4096} << ((cc >> kCcPageShift) & 0xfU);
  const std::uint32_t aqa = load(kAqa);
  SubmissionQueue sq;
  CompletionQueue cq;
  sq.depth = (aqa & 0xfffU) + 1;
  cq.depth = ((aqa >> 16) & 0xfffU) + 1;
  sq.iova = load(kAsq) | (std::uint64_t{load(kAsq + 4)} << 32);
  cq.iova = load(kAcq) | (std::uint64_t{load(kAcq + 4)} << 32);
  std::byte* const commands = windows_.find(sq.iova, sq.depth * sizeof(Command));
  std::byte* const completions = windows_.find(cq.iova, cq.depth * sizeof(Completion));
  if (page_ != 4096) {
    fatal("CC.MPS outside of CAP.MPSMIN and CAP.MPSMAX");
  } else if ((cc & (0xfU << 16)) != kCcSqEntry64 || (cc & (0xfU << 20)) != kCcCqEntry16) {
    fatal("CC.IOSQES must be 6 and CC.IOCQES 4");
  } else if (sq.depth < 2 || cq.depth < 2 || sq.iova % page_ != 0 || cq.iova % page_ != 0) {
    fatal("admin queues must have two entries or more and begin at a page");
  } else if (commands == nullptr || completions == nullptr) {
    fatal("admin queues outside of every window");
  } else {
    sq.entries = reinterpret_cast<const Command*>(commands);
    cq.entries = reinterpret_cast<Completion*>(completions);
    cq.users = 1;
    sqs_.emplace(0, std::move(sq));
    cqs_.emplace(0, std::move(cq));
    for (std::size_t i = kDoorbells / 4; i < bar_.size(); ++i) {
      store_release(&bar_[i], 0U);
    }
    control_.count([](SoftCounters& counters) { ++counters.enables; });
    store(kCsts, kCstsReady);
  }
}

void Device::disable() {
  drop_queues();
  enabled_ = failed_ = false;
  store(kCsts, 0);
}

void Device::drop_queues() {
  sqs_.clear();
  cqs_.clear();
  pending_.clear();
  pending_bytes_ = 0;
}

void Device::fatal(const std::string& why) {
  if (!why.empty()) {
    control_.violate(why);
  }
  failed_ = true;
  drop_queues();
  store(kCsts, load(kCsts) | kCstsFatal);
}

void Device::guard_queue(std::uint16_t id, const SoftGuard& guard) {
  if (guard.owner == 0) {
    guards_.erase(id);
  } else {
    guards_.insert_or_assign(id, guard);
  }
}

/// What a real controller would not even see: for a driver of this process it ends the test that has it;
/// another process's queue is left alone from here on.
void Device::blame(std::uint16_t id, SubmissionQueue& queue, const std::string& why) {
  if (guards_.find(id) == guards_.end()) {
    fatal(why);
    return;
  }
  control_.violate(why);
  queue.broken = true;
}

/// No controller takes commands whose completions have no place any more.
bool Device::has_backlog(const SubmissionQueue& queue) const {
  const CompletionQueue& answers = cqs_.at(queue.cq);
  return answers.waiting.size() >= answers.depth;
}

void Device::check_queues() {
  for (const auto& [id, queue] : sqs_) {
    if (windows_.find(queue.iova, queue.depth * sizeof(Command)) == nullptr) {
      fatal("memory of submission queue " + std::to_string(id) + " was unmapped while the queue exists");
      return;
    }
  }
  for (const auto& [id, queue] : cqs_) {
    if (windows_.find(queue.iova, queue.depth * sizeof(Completion)) == nullptr) {
      fatal("memory of completion queue " + std::to_string(id) + " was unmapped while the queue exists");
      return;
    }
  }
}

bool Device::take_doorbell(std::uint16_t id, SubmissionQueue& queue) {
  const std::uint32_t tail = load(sq_tail_doorbell(id, settings_.doorbell_stride));
  if (tail == queue.tail || queue.ignored_tail == tail) {
    return tail == queue.tail && queue.head != queue.tail;
  }
  queue.ignored_tail.reset();
  if (tail >= queue.depth) {
    blame(id, queue,
          "doorbell of submission queue " + std::to_string(id) + " out of range: " + std::to_string(tail));
    return false;
  }
  const std::uint32_t before = ring_used(queue.told_head, queue.tail, queue.depth);
  if (before + ring_used(queue.tail, tail, queue.depth) > queue.depth - 1) {
    blame(id, queue, "submission queue " + std::to_string(id) + " overrun");
    return false;
  }
  if (control_.match(true, id == 0, 0, 0, 0)) {
    queue.ignored_tail = tail;
    return queue.head != queue.tail;
  }
  queue.tail = tail;
  return true;
}

bool Device::look_at_queue(std::uint16_t id, SubmissionQueue& queue) {
  if (queue.broken || has_backlog(queue) || !take_doorbell(id, queue)) {
    return false;
  }
  for (std::uint32_t i = 0; i < kFetchAtOnce; ++i) {
    // fetch() can delete the queue, or everything.
    const auto place = sqs_.find(id);
    const bool dead = failed_ || control_.stuck.load() || control_.unplugged.load();
    if (dead || place == sqs_.end() || place->second.head == place->second.tail ||
        has_backlog(place->second)) {
      break;
    }
    fetch(id, place->second);
  }
  return true;
}

void Device::fetch(std::uint16_t id, SubmissionQueue& queue) {
  Pending pending;
  pending.queue = id;
  pending.command = queue.entries[queue.head];
  queue.head = ring_next(queue.head, queue.depth);
  const Command& command = pending.command;
  if (queue.cids[command.cid]) {
    control_.violate("command identifier " + std::to_string(command.cid) + " of queue " + std::to_string(id) +
                     " is in flight already");
    post(id, command.cid, {kStatusCommandIdConflict, 0}, std::nullopt);
    return;
  }
  queue.cids[command.cid] = true;
  const bool moves = id != 0 && (command.opcode == 1 || command.opcode == 2);
  pending.rule = control_.match(false, id == 0, command.opcode, moves ? slba_of(command) : 0,
                                moves ? blocks_of(command) : 1);
  std::uint64_t bytes = 0;
  if (id != 0) {
    control_.count([](SoftCounters& counters) { ++counters.commands; });
    bytes = moves && command.nsid - 1 < namespaces_.size()
                ? std::uint64_t{blocks_of(command)} * namespaces_[command.nsid - 1]->lba_bytes()
                : 0;
  }
  pending.bytes = bytes;
  begin(pending);
}

void Device::begin(Pending& pending) {
  double delay = pending.queue != 0 ? settings_.latency : 0;
  if (pending.rule) {
    switch (pending.rule->fault) {
      case SoftFault::kFatal:
        fatal("");
        return;
      case SoftFault::kReset:
        reset_registers();
        drop_queues();
        enabled_ = failed_ = false;
        return;
      case SoftFault::kStuck:
        control_.stuck.store(true, std::memory_order_release);
        return;
      case SoftFault::kUnplug:
        control_.unplugged.store(true, std::memory_order_release);
        return;
      case SoftFault::kReorder: {
        pending.others = pending.rule->hold;
        const std::uint16_t id = pending.queue;
        sqs_.at(id).held.push_back(pending);
        return;
      }
      case SoftFault::kLateCompletion:
        delay += pending.rule->delay;
        break;
      default:
        break;
    }
  }
  const bool modelled = settings_.bandwidth > 0 && pending.bytes > 0;
  if (delay <= 0 && !modelled) {
    finish(pending);
    return;
  }
  TimePoint due = Clock::now();
  if (modelled) {
    link_free_ =
        std::max(link_free_, due) + seconds(static_cast<double>(pending.bytes) / settings_.bandwidth);
    due = link_free_;
  }
  keep(due + seconds(delay), pending);
}

void Device::keep(TimePoint due, const Pending& pending) {
  pending_.emplace(due, pending);
  pending_bytes_ += pending.bytes;
  if (pending.queue != 0) {
    control_.count([this](SoftCounters& counters) {
      counters.most_commands = std::max<std::uint64_t>(counters.most_commands, pending_.size());
      counters.most_bytes = std::max(counters.most_bytes, pending_bytes_);
    });
  }
}

bool Device::run_due() {
  if (pending_.empty()) {
    return false;
  }
  const TimePoint now = Clock::now();
  while (!pending_.empty() && pending_.begin()->first <= now && !failed_) {
    const Pending pending = pending_.extract(pending_.begin()).mapped();
    pending_bytes_ -= pending.bytes;
    finish(pending);
  }
  return true;
}

void Device::finish(const Pending& pending) {
  const std::uint16_t id = pending.queue;
  if (sqs_.find(id) == sqs_.end()) {
    return;
  }
  if (pending.only_notice) {
    post(id, pending.command.cid, {}, std::nullopt);
    return;
  }
  Outcome outcome;
  if (pending.rule && pending.rule->fault == SoftFault::kStatus) {
    outcome.status = pending.rule->status;
  } else {
    outcome = id == 0 ? run_admin(pending.command) : run_io(id, pending.command);
  }
  const auto queue = sqs_.find(id);
  if (failed_ || queue == sqs_.end()) {
    return;
  }
  if (pending.rule && pending.rule->fault == SoftFault::kDropCompletion) {
    return;  // its identifier stays in flight: for the drive the command never ended
  }
  queue->second.cids[pending.command.cid] = false;
  if (pending.rule && pending.rule->fault == SoftFault::kDuplicateCompletion) {
    Pending again = pending;
    again.only_notice = true;
    again.bytes = 0;
    keep(Clock::now() + seconds(pending.rule->delay), again);
  }
  post(id, pending.command.cid, outcome, pending.rule);
  let_go_of_held(id);
}

void Device::let_go_of_held(std::uint16_t id) {
  const auto place = sqs_.find(id);
  if (place == sqs_.end() || place->second.held.empty()) {
    return;
  }
  std::vector<Pending> ready;
  std::vector<Pending>& held = place->second.held;
  for (auto each = held.begin(); each != held.end();) {
    if (each->others > 1) {
      --each->others;
      ++each;
    } else {
      ready.push_back(*each);
      each = held.erase(each);
    }
  }
  for (Pending& each : ready) {
    each.rule.reset();
    finish(each);
  }
}

std::uint32_t Device::room(CompletionQueue& queue, std::uint16_t cq_id) {
  const std::uint32_t head = load(cq_head_doorbell(cq_id, settings_.doorbell_stride));
  if (head >= queue.depth) {
    fatal("doorbell of completion queue " + std::to_string(cq_id) + " out of range: " + std::to_string(head));
    return 0;
  }
  return ring_space(head, queue.tail, queue.depth);
}

void Device::post(std::uint16_t queue_id, std::uint16_t cid, Outcome outcome,
                  const std::optional<SoftRule>& rule) {
  SubmissionQueue& sq = sqs_.at(queue_id);
  CompletionQueue& cq = cqs_.at(sq.cq);
  const auto fault = [&](SoftFault which) { return rule && rule->fault == which; };
  sq.told_head = sq.head;
  const std::uint32_t head = fault(SoftFault::kBadHead) ? sq.depth + 1 : sq.head;
  Completion entry{outcome.result, 0, head | (std::uint32_t{queue_id} << 16),
                   cid | (std::uint32_t{outcome.status} << 17)};
  if (fault(SoftFault::kStrayCompletion)) {
    Completion stray = entry;
    stray.dw3 ^= 0x5555U;
    put(cq, sq.cq, stray, false);
  }
  put(cq, sq.cq, entry, fault(SoftFault::kWrongPhase));
}

void Device::put(CompletionQueue& queue, std::uint16_t cq_id, const Completion& entry, bool wrong_phase) {
  if (!queue.waiting.empty() || room(queue, cq_id) == 0) {
    if (failed_) {
      return;
    }
    if (!std::exchange(queue.overrun_said, true)) {
      control_.violate("completion queue " + std::to_string(cq_id) +
                       " is full: more commands were under way than it has room for");
    }
    queue.waiting.push_back(entry);
    return;
  }
  write(queue, entry, wrong_phase);
}

void Device::write(CompletionQueue& queue, const Completion& entry, bool wrong_phase) noexcept {
  Completion& slot = queue.entries[queue.tail];
  const bool phase = queue.phase != wrong_phase;
  queue.tail = ring_next(queue.tail, queue.depth);
  queue.phase = queue.tail == 0 ? !queue.phase : queue.phase;
  slot.dw0 = entry.dw0;
  slot.dw1 = entry.dw1;
  slot.dw2 = entry.dw2;
  store_release(&slot.dw3, (entry.dw3 & ~(1U << 16)) | (phase ? 1U << 16 : 0U));
}

}  // namespace tutti::runtime::nvme::soft
