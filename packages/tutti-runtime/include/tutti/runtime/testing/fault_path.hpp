// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tutti/runtime/data_path.hpp"
#include "tutti/runtime/ordering.hpp"

namespace tutti::runtime::testing {

/// What a device does to the operations that match. Conditions that are not set match everything.
struct FaultRule {
  std::optional<Direction> direction;
  std::string target;                 ///< part of the target's path or name
  std::optional<std::uint32_t> item;  ///< number in its batch, accepted ones counted
  std::uint64_t skip = 0;             ///< matching operations that are left alone first
  std::uint64_t every = 1;            ///< then one of so many
  std::uint64_t times = std::numeric_limits<std::uint64_t>::max();  ///< then, so many in all

  double delay_min = 0;  ///< seconds that the operation is held back, drawn from [delay_min, delay_max]
  double delay_max = 0;
  bool hang = false;                         ///< held back until FaultControl::release()
  std::int32_t error = 0;                    ///< errno; nothing is moved
  std::optional<std::uint64_t> short_bytes;  ///< moves so many bytes, a multiple of 4096, then says EIO
};

/// The first rule that matches an operation acts on it.
struct FaultPlan {
  std::vector<FaultRule> rules;
  std::uint32_t reorder = 0;  ///< operations are gathered in groups of so many and begun in random order
  std::uint32_t accept = std::numeric_limits<std::uint32_t>::max();  ///< items of a batch, others EAGAIN
  double bandwidth = 0;     ///< bytes per second of a device that serves one operation after another; 0: none
  bool per_target = false;  ///< each target has a device of its own; else each root
  double write_cost = 1;    ///< a written byte takes so much longer than a read one
  std::uint64_t seed = 0;
};

/// The switchboard of a FaultPath, usable from any thread while it runs and after.
class FaultControl {
 public:
  /// @throws InvalidArgument for numbers that make no sense.
  explicit FaultControl(FaultPlan plan = {});

  /// From the next operation on; rules count anew. What is held back already stays so.
  void set_plan(FaultPlan plan);

  /// Lets everything that hangs go on to the device.
  void release();

  /// Operations held back at this moment, hanging or delayed.
  [[nodiscard]] std::size_t held() const;

  /// Waits until at least `count` operations are held back. False at the timeout.
  [[nodiscard]] bool wait_held(std::size_t count, Duration timeout) const;

 private:
  friend class FaultPath;

  struct Rule {
    FaultRule rule;
    std::uint64_t seen = 0;
    std::uint64_t hit = 0;
  };

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  FaultPlan plan_;
  std::vector<Rule> rules_;
  std::uint64_t version_ = 0;  ///< of the plan
  std::uint64_t releases_ = 0;
  std::size_t held_ = 0;
};

/// A data path that misbehaves as the control says, in front of one that does the work.
[[nodiscard]] std::unique_ptr<DataPath> make_fault_path(std::unique_ptr<DataPath> next,
                                                        std::shared_ptr<FaultControl> control);

}  // namespace tutti::runtime::testing
