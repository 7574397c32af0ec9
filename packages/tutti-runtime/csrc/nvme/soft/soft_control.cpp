// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "tutti/runtime/nvme/soft.hpp"

namespace tutti::runtime::nvme {
namespace {

constexpr std::size_t kMaxViolations = 100;

}  // namespace

void SoftControl::add(const SoftRule& rule) {
  const std::lock_guard lock(mutex_);
  rules_.push_back({rule});
  rule_count_.store(rules_.size(), std::memory_order_release);
}

void SoftControl::heal() {
  const std::lock_guard lock(mutex_);
  rules_.clear();
  rule_count_.store(0, std::memory_order_release);
  stuck.store(false, std::memory_order_release);
  unplugged.store(false, std::memory_order_release);
}

std::vector<std::string> SoftControl::violations() const {
  const std::lock_guard lock(mutex_);
  return violations_;
}

SoftCounters SoftControl::counters() const {
  const std::lock_guard lock(mutex_);
  SoftCounters counters = counters_;
  if (const std::int64_t since = copying_since_.load(std::memory_order_relaxed); since != 0) {
    counters.copy_under_way = static_cast<double>(ns_now() - since) * 1e-9;
  }
  return counters;
}

bool SoftControl::wait_faults(std::uint64_t count, Duration timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] { return counters_.faults >= count; });
}

void SoftControl::violate(std::string text) {
  const std::lock_guard lock(mutex_);
  if (violations_.size() < kMaxViolations) {
    violations_.push_back(std::move(text));
  }
}

std::optional<SoftRule> SoftControl::match(bool doorbell, bool admin, std::uint8_t opcode,
                                           std::uint64_t first_lba, std::uint64_t blocks) {
  if (rule_count_.load(std::memory_order_acquire) == 0) {
    return std::nullopt;
  }
  const std::lock_guard lock(mutex_);
  for (State& state : rules_) {
    const SoftRule& rule = state.rule;
    if ((rule.fault == SoftFault::kIgnoreDoorbell) != doorbell || rule.admin != admin) {
      continue;
    }
    if (!doorbell && ((rule.opcode && *rule.opcode != opcode) ||
                      (!admin && (first_lba > rule.last_lba || first_lba + blocks <= rule.first_lba)))) {
      continue;
    }
    const std::uint64_t number = state.seen++;
    const bool due = number >= rule.skip && (number - rule.skip) % rule.every == 0;
    if (due && (rule.times == 0 || state.done < rule.times)) {
      ++state.done;
      ++counters_.faults;
      changed_.notify_all();
      return rule;
    }
  }
  return std::nullopt;
}

}  // namespace tutti::runtime::nvme
