// SPDX-License-Identifier: Apache-2.0
// The driver's controller and queues against the soft controller: what it finds, what it moves, how it
// recovers.
#include <cerrno>
#include <set>

#include "soft_rig.hpp"
#include "tutti/runtime/nvme/status.hpp"

using namespace soft_rig;

namespace {

ControllerOptions impatient() {
  ControllerOptions options;
  options.admin_timeout = Duration(0.5);
  return options;
}

void a_controller_is_identified() {
  SoftSettings settings = one_namespace();
  settings.name = "disk0";
  settings.mdts_bytes = 131072;
  settings.noiob = 256;
  settings.namespaces.push_back({8 * kMiB, "", 4096, 0});
  settings.max_queues = 5;
  settings.sgl = true;
  settings.doorbell_stride = 16;
  Rig rig(settings);
  const Controller& controller = *rig.controller;
  CHECK(controller.transport().name() == "soft:disk0");
  CHECK(controller.identity().serial == "SOFT-disk0" &&
        controller.identity().model == "Tutti soft controller");
  CHECK(controller.identity().takes_sgl() && controller.identity().volatile_write_cache);
  CHECK(controller.max_transfer_bytes() == 131072 && controller.page_bytes() == 4096);
  CHECK(controller.max_queues() == 5 && controller.max_entries() == 1024);
  CHECK(controller.namespaces().size() == 2 && controller.find_namespace(3) == nullptr);
  CHECK(controller.find_namespace(1)->block_shift == 9 && controller.find_namespace(1)->bytes() == 4 * kMiB);
  CHECK(controller.find_namespace(2)->block_shift == 12 && controller.find_namespace(2)->blocks == 2048);
  CHECK(controller.find_namespace(1)->boundary_blocks == 256);
  rig.controller.reset();
  CHECK(rig.control->counters().shutdowns == 1);
  rig.require_no_violations();
}

void what_is_written_is_read() {
  Rig rig;
  auto queue = rig.controller->make_queue_pair(8);
  const DmaMemory memory = rig.memory(16384);
  fill_random(memory.address(), 8192, 1);
  CHECK(run(*queue, make_write(1, 100, 16, 0, prp_pointer(memory.iova(), memory.iova() + 4096))) == 0);
  CHECK(run(*queue, make_flush(1, 0)) == 0);
  CHECK(run(*queue, make_read(1, 100, 16, 0, prp_pointer(memory.iova() + 8192, memory.iova() + 12288))) == 0);
  CHECK(std::memcmp(memory.address(), memory.address() + 8192, 8192) == 0);
  for (std::uint32_t i = 0; i < 100; ++i) {  // many rounds of the ring
    CHECK(run(*queue, make_read(1, 100 + i % 16, 1, 0, prp_pointer(memory.iova() + 8192, 0))) == 0);
    CHECK(std::memcmp(memory.address() + std::size_t{i % 16} * 512, memory.address() + 8192, 512) == 0);
  }
  rig.controller->delete_queue_pair(*queue);
  queue.reset();
  rig.controller.reset();
  rig.require_no_violations();
}

void a_full_queue_is_drained_whatever_the_order() {
  SoftSettings settings = one_namespace();
  settings.latency = 0.0005;
  Rig rig(settings);
  auto queue = rig.controller->make_queue_pair(16);
  CHECK(queue->capacity() == 15);
  SoftRule rule;
  rule.fault = SoftFault::kReorder;
  rule.hold = 3;
  rule.every = 5;
  rule.times = 0;
  rig.control->add(rule);
  const DmaMemory memory = rig.memory(16 * 512);
  for (int round = 0; round < 20; ++round) {
    std::set<std::uint16_t> sent;
    while (queue->has_room()) {
      sent.insert(queue->submit(make_read(1, sent.size(), 1, 0, prp_pointer(memory.iova(), 0))));
    }
    CHECK(!sent.empty());
    queue->ring();
    // What is held for others that do not come would wait for ever: keep some coming.
    std::size_t left = sent.size();
    while (left > 0) {
      const auto done = collect(*queue, 1, 0.05);
      for (const auto& [cid, status] : done) {
        left -= sent.erase(cid);
        CHECK(status == 0);
      }
      if (done.empty() && queue->has_room()) {
        queue->submit(make_flush(1, 0));
        queue->ring();
      }
    }
    rig.control->heal();
    collect(*queue, queue->in_flight(), 0.05);
  }
  rig.controller->shutdown();
  rig.require_no_violations();
}

void statuses_are_told_as_they_are() {
  Rig rig;
  auto queue = rig.controller->make_queue_pair(8);
  const DmaMemory memory = rig.memory(4096);
  const auto kind = [&](const Command& command) { return kind_of_status(run(*queue, command)); };
  CHECK(kind(make_read(1, 8192, 1, 0, prp_pointer(memory.iova(), 0))) == kStatusLbaOutOfRange);
  CHECK(kind(make_read(9, 0, 1, 0, prp_pointer(memory.iova(), 0))) == kStatusInvalidNamespace);
  CHECK(kind(make_read(1, 0, 8, 0, prp_pointer(0x1000, 0))) == kStatusDataTransferError);
  SoftRule rule;
  rule.status = kStatusUnrecoveredRead;
  rule.first_lba = rule.last_lba = 77;
  rig.control->add(rule);
  CHECK(kind(make_read(1, 70, 7, 0, prp_pointer(memory.iova(), 0))) == 0);
  CHECK(kind(make_read(1, 71, 7, 0, prp_pointer(memory.iova(), 0))) == kStatusUnrecoveredRead);
  CHECK(rig.control->violations().size() == 3);
}

void an_admin_command_that_is_not_answered_ends() {
  Rig rig(one_namespace(), impatient());
  SoftRule rule;
  rule.fault = SoftFault::kDropCompletion;
  rule.admin = true;
  rig.control->add(rule);
  int error = 0;
  try {
    static_cast<void>(rig.controller->make_queue_pair(8));
  } catch (const CommandFailed& failed) {
    error = failed.error_number();
  }
  CHECK(error == ETIMEDOUT);
  rig.controller->reset();
  CHECK(rig.controller->make_queue_pair(8) != nullptr);
}

void a_late_command_is_aborted() {
  Rig rig;
  auto queue = rig.controller->make_queue_pair(8);
  SoftRule rule;
  rule.fault = SoftFault::kLateCompletion;
  rule.delay = 1000;
  rig.control->add(rule);
  const DmaMemory memory = rig.memory(4096);
  const std::uint16_t cid = queue->submit(make_read(1, 0, 1, 0, prp_pointer(memory.iova(), 0)));
  queue->ring();
  CHECK(rig.control->wait_faults(1, Duration(10)));
  CHECK(rig.controller->abort(*queue, cid));
  const auto done = collect(*queue, 1);
  CHECK(done.size() == 1 && done[0].first == cid && done[0].second == kStatusAbortRequested);
  CHECK(!rig.controller->abort(*queue, cid));
  CHECK(run(*queue, make_flush(1, 0)) == 0);
  rig.require_no_violations();
}

// The completion is lost for good: only a new queue gives the identifier and the place in the ring back.
void a_queue_is_made_anew() {
  for (const SoftFault fault : {SoftFault::kDropCompletion, SoftFault::kWrongPhase, SoftFault::kBadHead}) {
    Rig rig;
    auto queue = rig.controller->make_queue_pair(4);
    SoftRule rule;
    rule.fault = fault;
    rig.control->add(rule);
    const std::uint16_t cid = queue->submit(make_flush(1, 0));
    queue->ring();
    CHECK(rig.control->wait_faults(1, Duration(10)));
    CHECK(collect(*queue, 1, 0.02).empty() && queue->owns(cid));
    rig.controller->remake(*queue);
    CHECK(queue->in_flight() == 0 && !queue->owns(cid));
    for (int i = 0; i < 10; ++i) {
      CHECK(run(*queue, make_flush(1, 0)) == 0);
    }
    rig.require_no_violations();
  }
}

void a_lost_doorbell_is_made_good_by_the_next() {
  Rig rig;
  auto queue = rig.controller->make_queue_pair(8);
  SoftRule rule;
  rule.fault = SoftFault::kIgnoreDoorbell;
  rig.control->add(rule);
  queue->submit(make_flush(1, 0));
  queue->ring();
  CHECK(rig.control->wait_faults(1, Duration(10)));
  CHECK(collect(*queue, 1, 0.02).empty());
  queue->submit(make_flush(1, 0));
  queue->ring();
  CHECK(collect(*queue, 2).size() == 2);
  rig.require_no_violations();
}

void completions_that_are_nobodys_are_left_out() {
  SoftSettings settings = one_namespace();
  settings.latency = 0.02;
  Rig rig(settings);
  auto queue = rig.controller->make_queue_pair(8);
  SoftRule rule;
  rule.fault = SoftFault::kStrayCompletion;
  rig.control->add(rule);
  CHECK(run(*queue, make_flush(1, 0)) == 0);
  CHECK(queue->strays() == 1);
  // The second completion comes while the next command of the same slot is under way.
  rule.fault = SoftFault::kDuplicateCompletion;
  rule.delay = 0.001;
  rig.control->add(rule);
  const DmaMemory memory = rig.memory(4096);
  fill_random(memory.address(), 512, 5);
  CHECK(run(*queue, make_write(1, 3, 1, 0, prp_pointer(memory.iova(), 0))) == 0);
  std::memset(memory.address(), 0, 512);
  std::vector<std::byte> expected(512);
  fill_random(expected.data(), 512, 5);
  CHECK(run(*queue, make_read(1, 3, 1, 0, prp_pointer(memory.iova(), 0))) == 0);
  CHECK(std::memcmp(memory.address(), expected.data(), 512) == 0);
  CHECK(queue->strays() == 2);
}

void a_fatal_controller_is_reset() {
  for (const SoftFault fault : {SoftFault::kFatal, SoftFault::kReset}) {
    Rig rig;
    auto queue = rig.controller->make_queue_pair(8);
    SoftRule rule;
    rule.fault = fault;
    rig.control->add(rule);
    queue->submit(make_flush(1, 0));
    queue->ring();
    CHECK(rig.control->wait_faults(1, Duration(10)));
    Backoff backoff;
    while (rig.controller->check_alive() == 0) {
      backoff.pause();
    }
    CHECK(rig.controller->check_alive() == EIO);
    rig.controller->reset();
    queue->clear();
    rig.controller->create(*queue);
    CHECK(rig.controller->check_alive() == 0 && run(*queue, make_flush(1, 0)) == 0);
    rig.require_no_violations();
  }
}

void a_device_that_is_gone_says_so_at_once() {
  Rig rig;
  auto queue = rig.controller->make_queue_pair(8);
  rig.control->unplugged.store(true);
  CHECK(rig.controller->check_alive() == ENODEV);
  CHECK_THROWS(CommandFailed, rig.controller->make_queue_pair(8));
  CHECK_THROWS(SystemError, rig.controller->reset());
  rig.control->heal();
  Backoff backoff;
  while (rig.controller->check_alive() == ENODEV) {
    backoff.pause();
  }
  rig.controller->reset();
  queue->clear();
  rig.controller->create(*queue);
  CHECK(run(*queue, make_flush(1, 0)) == 0);
}

void a_stuck_controller_ends_every_wait() {
  SoftSettings settings = one_namespace();
  settings.timeout_ms = 500;
  Rig rig(settings, impatient());
  rig.control->stuck.store(true);
  CHECK_THROWS(CommandFailed, rig.controller->make_queue_pair(8));
  CHECK_THROWS(SystemError, rig.controller->reset());
  rig.controller->shutdown();
}

void what_this_driver_cannot_use_is_refused() {
  Rig rig;
  CHECK_THROWS(InvalidArgument, rig.controller->make_queue_pair(1));
  std::vector<std::unique_ptr<QueuePair>> queues;
  queues.push_back(rig.controller->make_queue_pair(100000));
  CHECK(queues[0]->depth() == 1024);
  for (std::uint32_t i = 1; i < rig.controller->max_queues(); ++i) {
    queues.push_back(rig.controller->make_queue_pair(2));
  }
  CHECK_THROWS(InvalidArgument, rig.controller->make_queue_pair(2));
  rig.controller->shutdown();
}

}  // namespace

int main() {
  a_controller_is_identified();
  what_is_written_is_read();
  a_full_queue_is_drained_whatever_the_order();
  statuses_are_told_as_they_are();
  an_admin_command_that_is_not_answered_ends();
  a_late_command_is_aborted();
  a_queue_is_made_anew();
  a_lost_doorbell_is_made_good_by_the_next();
  completions_that_are_nobodys_are_left_out();
  a_fatal_controller_is_reset();
  a_device_that_is_gone_says_so_at_once();
  a_stuck_controller_ends_every_wait();
  what_this_driver_cannot_use_is_refused();
}
