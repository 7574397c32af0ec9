// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tutti::runtime {

/// How writes share a root (one drive) with reads. Reads always go first. A root is busy while reads are
/// waiting or in flight and for `idle_after` seconds more; then writes get little, else all they can take.
///
/// The defaults keep reads at nine tenths of what they reach alone: a written byte costs a flash drive up to
/// twice the time of a read one, and they get three for each hundred that are read.
struct WritePolicy {
  double share = 0.03;                                          ///< busy: bytes written for each byte read
  std::uint64_t busy_bytes_in_flight = std::uint64_t{2} << 20;  ///< busy: written at once, and one item more
  std::uint64_t bytes_in_flight = std::uint64_t{32} << 20;      ///< not busy: the same
  double rate = 0;            ///< bytes per second at most, busy or not; 0: no limit
  double idle_after = 0.002;  ///< seconds
  double max_wait = 0.5;      ///< seconds; busy: the longest time without any write, whatever is read
};

/// @throws InvalidArgument naming the field, its value and the rule.
void check_write_policy(const WritePolicy& policy);

}  // namespace tutti::runtime
