// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/detail/write_pacer.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "tutti/runtime/error.hpp"

namespace tutti::runtime {
namespace {

void check(bool good, const char* field, double value, const char* rule) {
  if (!good) {
    throw InvalidArgument(std::string("write_policy.") + field + "=" + std::to_string(value) + " must be " +
                          rule);
  }
}

bool is_time(double seconds) { return std::isfinite(seconds) && seconds >= 0 && seconds <= 3600; }

/// Reads that went on for long do not pay for a flood of writes in the midst of others.
double most_credit(const WritePolicy& policy) { return 4 * static_cast<double>(policy.busy_bytes_in_flight); }

Clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(Duration(seconds));
}

}  // namespace

void check_write_policy(const WritePolicy& policy) {
  check(policy.share >= 0 && policy.share <= 1, "share", policy.share, "from 0 to 1");
  check(std::isfinite(policy.rate) && policy.rate >= 0, "rate", policy.rate, "0 or more bytes per second");
  check(is_time(policy.idle_after), "idle_after", policy.idle_after, "from 0 to 3600 seconds");
  check(is_time(policy.max_wait), "max_wait", policy.max_wait, "from 0 to 3600 seconds");
  check(policy.busy_bytes_in_flight > 0, "busy_bytes_in_flight", 0, "more than 0");
  check(policy.bytes_in_flight > 0, "bytes_in_flight", 0, "more than 0");
}

namespace detail {

bool WritePacer::busy(const WritePolicy& policy, const View& view, TimePoint now) const noexcept {
  return view.reads_waiting || view.reads_in_flight != 0 || now < last_read_ + to_duration(policy.idle_after);
}

TimePoint WritePacer::when(const WritePolicy& policy, const View& view, TimePoint now) const noexcept {
  const bool is_busy = busy(policy, view, now);
  const std::uint64_t limit = is_busy ? policy.busy_bytes_in_flight : policy.bytes_in_flight;
  // One item is always let through, however large: else it would never go.
  if (view.writes_in_flight != 0 && view.write_bytes_in_flight + view.next_bytes > limit) {
    return TimePoint::max();
  }
  TimePoint next = now;
  // What is larger than all the credit there can be needs just that much, and leaves a debt.
  const double needed = std::min(static_cast<double>(view.next_bytes), most_credit(policy));
  if (is_busy && credit_ < needed) {
    next = std::max(view.next_since, last_write_) + to_duration(policy.max_wait);
    if (!view.reads_waiting && view.reads_in_flight == 0) {
      next = std::min(next, last_read_ + to_duration(policy.idle_after));
    }
  }
  return policy.rate > 0 ? std::max(next, rate_free_) : next;
}

void WritePacer::began(const WritePolicy& policy, const View& view, TimePoint now) noexcept {
  const auto bytes = static_cast<double>(view.next_bytes);
  last_write_ = now;
  if (busy(policy, view, now)) {
    credit_ = std::max(credit_, 0.0) - bytes;
  }
  if (policy.rate > 0) {
    rate_free_ = std::max(rate_free_, now) + to_duration(bytes / policy.rate);
  }
}

void WritePacer::read_finished(const WritePolicy& policy, std::uint64_t bytes, TimePoint now) noexcept {
  last_read_ = now;
  credit_ = std::min(credit_ + static_cast<double>(bytes) * policy.share, most_credit(policy));
}

}  // namespace detail
}  // namespace tutti::runtime
