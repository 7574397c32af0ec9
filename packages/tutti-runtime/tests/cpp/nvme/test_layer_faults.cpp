// SPDX-License-Identifier: Apache-2.0
// Whatever a drive does, a layer ends with the truth for each item, and the next one works.
#include "layer_rig.hpp"

using namespace layer_rig;

namespace {

/// A short time only where one must pass: a busy machine can hold a thread for a while.
LayerEngineSettings quick(bool fails_by_time = true) {
  LayerEngineSettings settings;
  settings.queue_entries = 16;
  settings.command_timeout = Duration(fails_by_time ? 0.5 : 30);
  settings.retry_after = Duration(0);
  return settings;
}

/// A controller whose reset is given up soon.
SoftSettings hasty() {
  SoftSettings settings = one_namespace();
  settings.timeout_ms = 500;
  return settings;
}

std::size_t failures(const std::vector<std::int32_t>& statuses) {
  return static_cast<std::size_t>(
      std::count_if(statuses.begin(), statuses.end(), [](std::int32_t each) { return each != 0; }));
}

/// Reads 200 pages while one command meets `rule`, then without it. Bytes of items that say 0 must be right.
void meets(const SoftRule& rule, bool fails, std::int32_t status, bool lingers = true) {
  LayerEngineSettings settings = quick(status == kItemTimedOut);
  settings.linger = Duration(lingers ? 0.002 : 0);
  settings.window_commands = 12;  // so that completions that come twice find a place
  Bench bench(settings, hasty());
  constexpr std::uint32_t count = 200;
  fill_random(bench.memory.address(), count * kPage, 5);
  const std::vector<std::byte> wanted(bench.memory.address(), bench.memory.address() + count * kPage);
  CHECK(bench.all_done(bench.layer(IoOpcode::kWrite, count, kPage)));
  const std::uint32_t read = bench.layer(IoOpcode::kRead, count, kPage);
  std::memset(bench.memory.address(), 0xee, count * kPage);
  bench.controls[0]->add(rule);
  const std::vector<std::int32_t> statuses = bench.run(read);
  std::fprintf(stderr, "fault %d: %zu of %u items failed\n", static_cast<int>(rule.fault), failures(statuses),
               count);
  CHECK(bench.controls[0]->counters().faults > 0);
  CHECK((failures(statuses) > 0) == fails);
  if (status != 0) {
    CHECK(std::find(statuses.begin(), statuses.end(), status) != statuses.end());
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    CHECK(statuses[i] != kItemUnderWay);
    CHECK(statuses[i] != 0 ||
          std::memcmp(bench.memory.address() + i * kPage, wanted.data() + i * kPage, kPage) == 0);
  }
  bench.heal(0);
  std::memset(bench.memory.address(), 0xee, count * kPage);
  const std::vector<std::int32_t> again = bench.run(read);
  CHECK(failures(again) == 0);
  CHECK(std::memcmp(bench.memory.address(), wanted.data(), count * kPage) == 0);
  bench.require_no_violations();
}

SoftRule rule_for(SoftFault fault) {
  SoftRule rule;
  rule.fault = fault;
  rule.skip = fault == SoftFault::kIgnoreDoorbell ? 0 : 70;
  return rule;
}

void what_ends_with_an_error() {
  meets(rule_for(SoftFault::kDropCompletion), true, kItemTimedOut);
  meets(rule_for(SoftFault::kWrongPhase), true, kItemTimedOut);
  meets(rule_for(SoftFault::kBadHead), true, kItemTimedOut);
  meets(rule_for(SoftFault::kFatal), true, 5);
  meets(rule_for(SoftFault::kReset), true, 0);
  meets(rule_for(SoftFault::kStuck), true, kItemTimedOut);
  meets(rule_for(SoftFault::kUnplug), true, 19);
  SoftRule status = rule_for(SoftFault::kStatus);
  status.status = kStatusUnrecoveredRead;
  meets(status, true, 61);
  meets(rule_for(SoftFault::kDropCompletion), true, kItemTimedOut, false);
  meets(rule_for(SoftFault::kUnplug), true, 19, false);
}

void what_does_no_harm() {
  SoftRule late = rule_for(SoftFault::kLateCompletion);
  late.delay = 0.02;
  meets(late, false, 0);
  SoftRule reorder = rule_for(SoftFault::kReorder);
  reorder.hold = 3;
  reorder.every = 9;
  reorder.times = 3;  // none of them near the end, where nothing follows that would let it go
  meets(reorder, false, 0);
  meets(rule_for(SoftFault::kStrayCompletion), false, 0);
  SoftRule twice = rule_for(SoftFault::kDuplicateCompletion);
  twice.delay = 0;
  meets(twice, false, 0);
}

/// The last doorbell of a layer is lost: nothing more is rung that could bring the commands to light.
void a_lost_doorbell() {
  Bench bench(quick(), hasty());
  bench.controls[0]->add(rule_for(SoftFault::kIgnoreDoorbell));
  const std::uint32_t read = bench.layer(IoOpcode::kRead, 1, kPage);
  CHECK((bench.run(read) == std::vector<std::int32_t>{kItemTimedOut}));
  CHECK(bench.engine->counters().remade == 1);
  CHECK(bench.all_done(read));
  bench.require_no_violations();
}

/// The second completion of a command comes while the next one of its slot is under way: it is not that
/// one's.
void a_completion_of_the_command_before() {
  LayerEngineSettings settings = quick(false);
  settings.queues = 1;
  settings.window_commands = 1;
  SoftSettings soft = hasty();
  soft.latency = 0.1;
  Bench bench(settings, soft);
  fill_random(bench.memory.address(), 3 * kPage, 6);
  const std::vector<std::byte> wanted(bench.memory.address(), bench.memory.address() + 3 * kPage);
  CHECK(bench.all_done(bench.layer(IoOpcode::kWrite, 3, kPage)));
  std::memset(bench.memory.address(), 0xee, 3 * kPage);
  SoftRule twice = rule_for(SoftFault::kDuplicateCompletion);
  twice.skip = 1;
  twice.delay = 0.02;
  bench.controls[0]->add(twice);
  CHECK(bench.all_done(bench.layer(IoOpcode::kRead, 3, kPage)));
  CHECK(std::memcmp(bench.memory.address(), wanted.data(), 3 * kPage) == 0);
  bench.engine->stop();
  CHECK(bench.engine->counters().strays == 1);
}

/// What one status says does not stop the other drive's items.
void a_fault_stays_on_its_drive() {
  Bench bench(quick(), hasty(), 2);
  SoftRule rule = rule_for(SoftFault::kStuck);
  rule.skip = 10;
  bench.controls[1]->add(rule);
  const std::vector<std::int32_t> statuses = bench.run(bench.layer(IoOpcode::kRead, 200, kPage));
  for (std::size_t i = 0; i < statuses.size(); i += 2) {
    CHECK(statuses[i] == 0);
  }
  CHECK(failures(statuses) > 0);
  bench.heal(1);
  CHECK(bench.all_done(bench.layer(IoOpcode::kRead, 200, kPage)));
}

/// A drive that stays away: every layer ends, with errors, until it is back.
void a_drive_that_stays_away() {
  Bench bench(quick(), hasty());
  const std::uint32_t read = bench.layer(IoOpcode::kRead, 40, kPage);
  bench.controls[0]->add(rule_for(SoftFault::kUnplug));
  SoftRule now = rule_for(SoftFault::kUnplug);
  now.skip = 0;
  bench.controls[0]->add(now);
  for (int i = 0; i < 3; ++i) {
    CHECK(failures(bench.run(read)) > 0);
  }
  bench.heal(0);
  CHECK(bench.all_done(read));
}

}  // namespace

int main() {
  what_ends_with_an_error();
  what_does_no_harm();
  a_lost_doorbell();
  a_completion_of_the_command_before();
  a_fault_stays_on_its_drive();
  a_drive_that_stays_away();
  return 0;
}
