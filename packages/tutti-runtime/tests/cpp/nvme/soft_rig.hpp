// SPDX-License-Identifier: Apache-2.0
// A soft controller with the driver on it, and memory that the two share.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "../check.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/backoff.hpp"
#include "tutti/runtime/nvme/controller.hpp"
#include "tutti/runtime/nvme/soft.hpp"

namespace soft_rig {

using namespace tutti::runtime;
using namespace tutti::runtime::nvme;

inline constexpr std::uint64_t kMiB = 1 << 20;

inline SoftSettings one_namespace(std::uint64_t bytes = 4 * kMiB, std::uint32_t lba_bytes = 512) {
  SoftSettings settings;
  settings.namespaces.push_back({bytes, "", lba_bytes, 0});
  return settings;
}

struct Rig {
  explicit Rig(const SoftSettings& settings = one_namespace(), ControllerOptions options = {})
      : control(std::make_shared<SoftControl>()),
        controller(std::make_unique<Controller>(make_soft_transport(settings, control), options)) {}

  [[nodiscard]] DmaMemory memory(std::uint64_t size) const {
    return controller->transport().allocate(size, MemoryKind::kHost);
  }

  void require_no_violations() const {
    for (const std::string& each : control->violations()) {
      std::fprintf(stderr, "violation: %s\n", each.c_str());
    }
    CHECK(control->violations().empty());
  }

  std::shared_ptr<SoftControl> control;
  std::unique_ptr<Controller> controller;
};

/// Polls until `count` commands have completed or `seconds` have passed. @returns (cid, status) of each.
inline std::vector<std::pair<std::uint16_t, std::uint16_t>> collect(QueuePair& queue, std::size_t count,
                                                                    double seconds = 10) {
  std::vector<std::pair<std::uint16_t, std::uint16_t>> done;
  const TimePoint deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(Duration(seconds));
  Backoff backoff;
  while (done.size() < count && Clock::now() < deadline) {
    const auto take = [&](std::uint16_t cid, const nvme::Completion& entry) {
      done.emplace_back(cid, status_of(entry));
    };
    if (queue.poll(take) > 0) {
      backoff.reset();
    } else {
      backoff.pause();
    }
  }
  return done;
}

/// Runs one command. @returns its status field.
inline std::uint16_t run(QueuePair& queue, const Command& command) {
  queue.submit(command);
  queue.ring();
  const auto done = collect(queue, 1);
  CHECK(done.size() == 1);
  return done.front().second;
}

inline void fill_random(std::byte* memory, std::uint64_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::uint64_t i = 0; i < size; i += 8) {
    const std::uint64_t value = random();
    std::memcpy(memory + i, &value, sizeof value);
  }
}

}  // namespace soft_rig
