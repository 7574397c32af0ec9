// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/runtime/data_path.hpp"
#include "tutti/runtime/io.hpp"
#include "tutti/runtime/ordering.hpp"

namespace tutti::runtime::detail {

struct Batch;
using Timers = std::multimap<TimePoint, Batch*>;

enum class ItemState : std::uint8_t {
  kOpen,  ///< no result yet
  kLate,  ///< its deadline gave it a result; the device has not answered yet
  kDone,  ///< result given, target and memory released
};

/// Where the result of a late item goes once the device answers.
struct LateResults {
  std::shared_ptr<Batch> batch;
  std::vector<std::uint32_t> place;  ///< item of the late batch, by item of the original one
};

/// The record of one submission, guarded by the runtime's lock but for what never changes after submit.
struct Batch {
  explicit Batch(std::size_t most) {
    completion.status.resize(most);
    completion.bytes.resize(most);
    states.resize(most, ItemState::kOpen);
  }

  void set_count(std::size_t count) noexcept {
    completion.status.resize(count);
    completion.bytes.resize(count);
    states.resize(count);
    unfinished = outstanding = count;
  }

  /// Room for what is filled in while nothing may fail.
  void reserve_for(const SubmitOptions& options, std::size_t requests_offered) {
    if (!options.deadlines.empty()) {
      deadlines.reserve(std::min(states.size(), requests_offered));
    }
    if (options.gate != nullptr || options.gate_word) {
      requests.reserve(states.size());
    }
  }

  [[nodiscard]] std::size_t size() const noexcept { return states.size(); }

  /// Never changes after submit: read without the lock too.
  [[nodiscard]] TimePoint deadline_of(std::size_t item) const noexcept {
    return deadlines.empty() ? deadline : deadlines[item];
  }

  /// The earliest deadline of an item without a result, or TimePoint::max().
  [[nodiscard]] TimePoint next_deadline() const noexcept {
    TimePoint earliest = TimePoint::max();
    for (std::size_t i = 0; i < size(); ++i) {
      if (states[i] == ItemState::kOpen) {
        earliest = std::min(earliest, deadline_of(i));
      }
    }
    return earliest;
  }

  /// 0, or the errno of the first request that was rejected or failed.
  [[nodiscard]] std::int32_t first_error() const noexcept {
    for (std::size_t i = 0; i < size(); ++i) {
      if (completion.status[i] != 0) {
        const bool rejected_earlier =
            first_rejected && first_rejected->first < (requests.empty() ? i : requests[i]);
        return rejected_earlier ? first_rejected->second : completion.status[i];
      }
    }
    return first_rejected ? first_rejected->second : 0;
  }

  Completion completion;
  std::vector<ItemState> states;
  std::size_t unfinished = 0;   ///< items without a result
  std::size_t outstanding = 0;  ///< items whose target and memory are in use
  bool announced = false;       ///< all results are there: waiters told, gate open
  bool given_up = false;        ///< waited for or abandoned
  std::condition_variable finished;
  std::shared_ptr<Batch> keep_alive;  ///< itself, while items are outstanding
  Batch* previous = nullptr;          ///< the runtime's list of batches with outstanding items
  Batch* next = nullptr;
  std::optional<LateResults> late_results;

  TimePoint deadline = TimePoint::max();
  std::vector<TimePoint> deadlines;
  std::optional<Timers::iterator> timer;

  std::shared_ptr<Gate> gate;
  Memory* gate_memory = nullptr;
  std::vector<std::uint32_t> requests;  ///< request of each item, where requests were rejected
  std::optional<std::pair<std::size_t, std::int32_t>> first_rejected;  ///< request and errno
};

/// Operations of a batch that wait for a dependency.
struct HeldOps {
  std::shared_ptr<Batch> batch;
  std::vector<IoOp> ops;
  std::shared_ptr<Dependency> after;
  Memory* word_memory = nullptr;
  TimePoint since;
};

}  // namespace tutti::runtime::detail
