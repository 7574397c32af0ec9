// SPDX-License-Identifier: Apache-2.0
// An engine with teams on the CPU, on soft controllers.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "soft_rig.hpp"
#include "tutti/runtime/nvme/layer_engine.hpp"
#include "tutti/runtime/nvme/registers.hpp"

namespace layer_rig {

using namespace soft_rig;

inline constexpr std::uint64_t kPage = 4096;

inline ControllerOptions options_for(const LayerEngineSettings& settings) {
  ControllerOptions options;
  options.max_queues = settings.queues;
  options.admin_timeout = Duration(1.0);
  return options;
}

struct Bench {
  explicit Bench(const LayerEngineSettings& settings = {}, const SoftSettings& soft = one_namespace(),
                 std::size_t drives = 1) {
    std::vector<std::unique_ptr<Controller>> controllers;
    for (std::size_t i = 0; i < drives; ++i) {
      controls.push_back(std::make_shared<SoftControl>());
      controllers.push_back(
          std::make_unique<Controller>(make_soft_transport(soft, controls.back()), options_for(settings)));
      transports.push_back(&controllers.back()->transport());
    }
    engine = std::make_unique<LayerEngine>(std::move(controllers), make_cpu_teams(), settings);
    memory = transports.front()->allocate(soft.namespaces.front().bytes, MemoryKind::kHost);
    window = engine->add_window(memory.address(), memory.size(), MemoryKind::kHost, kAnyDevice);
    blocks = soft.namespaces.front().bytes / soft.namespaces.front().lba_bytes;
    for (std::uint32_t i = 0; i < drives; ++i) {
      const BlockExtent all{0, 0, blocks};
      CHECK(engine->add_place(i, 1, {&all, 1}) == 0);
    }
  }
  ~Bench() { engine.reset(); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  /// `count` items of `length` bytes, one behind the other in memory and on the drives, item i on drive i mod
  /// n.
  std::uint32_t layer(IoOpcode opcode, std::uint32_t count, std::uint64_t length, std::uint64_t first = 0) {
    std::vector<LayerSlice> slices;
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto drive = static_cast<std::uint32_t>(i % transports.size());
      slices.push_back({drive, 0, window, first + i * length, first + i * length, length});
    }
    return engine->add_layer(opcode, slices);
  }

  std::vector<std::int32_t> run(std::uint32_t layer) {
    CHECK(engine->wait(engine->submit(layer), Duration(60)));
    const auto statuses = engine->statuses(layer);
    return {statuses.begin(), statuses.end()};
  }

  bool all_done(std::uint32_t layer) {
    const std::vector<std::int32_t> statuses = run(layer);
    return std::all_of(statuses.begin(), statuses.end(), [](std::int32_t each) { return each == 0; });
  }

  /// Ends every fault, and waits until an unplugged drive is back.
  void heal(std::size_t drive) const {
    controls[drive]->heal();
    Backoff backoff;
    while (transports[drive]->read32(kCsts) == kAllOnes) {
      backoff.pause();
    }
  }

  void require_no_violations() const {
    for (const auto& control : controls) {
      for (const std::string& each : control->violations()) {
        std::fprintf(stderr, "violation: %s\n", each.c_str());
      }
      CHECK(control->violations().empty());
    }
  }

  std::vector<std::shared_ptr<SoftControl>> controls;
  std::vector<Transport*> transports;
  std::unique_ptr<LayerEngine> engine;
  DmaMemory memory;
  std::uint32_t window = 0;
  std::uint64_t blocks = 0;
};

}  // namespace layer_rig
