// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tutti/runtime/ordering.hpp"
#include "tutti/runtime/write_policy.hpp"

namespace tutti::runtime::detail {

/// Decides when the next write of one root may begin. Holds numbers only: the caller has the queues, the lock
/// and the clock.
class WritePacer {
 public:
  /// What the caller knows of the root at this moment.
  struct View {
    bool reads_waiting = false;
    std::uint64_t reads_in_flight = 0;
    std::uint64_t write_bytes_in_flight = 0;
    std::uint64_t writes_in_flight = 0;
    std::uint64_t next_bytes = 0;  ///< of the oldest waiting write
    TimePoint next_since;          ///< when it came
  };

  /// @returns `now` or earlier when it may begin; a later time to ask again at; TimePoint::max() when only a
  /// completion can change the answer.
  [[nodiscard]] TimePoint when(const WritePolicy& policy, const View& view, TimePoint now) const noexcept;

  void began(const WritePolicy& policy, const View& view, TimePoint now) noexcept;
  void read_finished(const WritePolicy& policy, std::uint64_t bytes, TimePoint now) noexcept;

  [[nodiscard]] bool busy(const WritePolicy& policy, const View& view, TimePoint now) const noexcept;

 private:
  double credit_ = 0;  ///< bytes that may be written while reads go on
  TimePoint last_read_;
  TimePoint last_write_;
  TimePoint rate_free_;  ///< when the rate allows the next write
};

}  // namespace tutti::runtime::detail
