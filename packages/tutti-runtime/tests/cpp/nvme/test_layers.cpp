// SPDX-License-Identifier: Apache-2.0
// Layers on teams: every byte arrives, in few doorbells and within the window, however the drive is made.
#include <array>
#include <random>

#include "layer_rig.hpp"

using namespace layer_rig;

namespace {

/// Writes random bytes, clears the memory, reads them back.
void round_trip(const LayerEngineSettings& settings, const SoftSettings& soft, std::size_t drives,
                std::uint32_t count, std::uint64_t length) {
  Bench bench(settings, soft, drives);
  const std::uint64_t size = count * length;
  fill_random(bench.memory.address(), size, count);
  const std::vector<std::byte> wanted(bench.memory.address(), bench.memory.address() + size);
  CHECK(bench.all_done(bench.layer(IoOpcode::kWrite, count, length)));
  std::memset(bench.memory.address(), 0xee, size);
  const std::uint32_t read = bench.layer(IoOpcode::kRead, count, length);
  CHECK(bench.all_done(read));
  CHECK(std::memcmp(bench.memory.address(), wanted.data(), size) == 0);
  std::memset(bench.memory.address(), 0xee, size);
  CHECK(bench.all_done(read));  // the tables stay good
  CHECK(std::memcmp(bench.memory.address(), wanted.data(), size) == 0);
  bench.require_no_violations();
}

void drives_of_every_kind() {
  LayerEngineSettings settings;
  settings.queue_entries = 16;
  round_trip(settings, one_namespace(), 1, 1, kPage);
  round_trip(settings, one_namespace(), 1, 500, kPage);
  round_trip(settings, one_namespace(), 3, 96, 32 * 1024);
  SoftSettings small = one_namespace();
  small.mdts_bytes = 8192;
  small.noiob = 24;
  round_trip(settings, small, 2, 63, 64 * 1024);
  SoftSettings scattered = one_namespace(4 * kMiB, 4096);
  scattered.dma_granule = 65536;
  scattered.sgl = true;
  round_trip(settings, scattered, 1, 31, 128 * 1024);
  scattered.sgl = false;
  scattered.dma_granule = 4096;
  round_trip(settings, scattered, 1, 31, 128 * 1024);
}

void rings_of_every_size() {
  for (const std::uint32_t entries : {2U, 3U, 7U, 32U, 33U, 256U}) {
    LayerEngineSettings settings;
    settings.queue_entries = entries;
    settings.queues = 3;
    round_trip(settings, one_namespace(), 1, 333, kPage);
  }
}

void teams_that_start_anew() {
  LayerEngineSettings settings;
  settings.linger = Duration(0);
  settings.queue_entries = 8;
  round_trip(settings, one_namespace(), 2, 200, kPage);
}

void one_doorbell_for_many_commands() {
  LayerEngineSettings settings;
  settings.queues = 1;
  Bench bench(settings);
  CHECK(bench.all_done(bench.layer(IoOpcode::kRead, 128, kPage)));
  bench.engine->stop();
  CHECK(bench.engine->counters().commands == 128);
  CHECK(bench.engine->counters().doorbells == 4);  // 32 lanes, and room for all
  bench.require_no_violations();
}

/// A drive that answers late sees no more at once than the window has.
void the_window_holds() {
  for (const bool by_bytes : {false, true}) {
    LayerEngineSettings settings;
    settings.queues = 2;
    settings.window_commands = by_bytes ? 0 : 6;
    settings.window_bytes = by_bytes ? 6 * kPage : kMiB;
    SoftSettings soft = one_namespace();
    soft.latency = 0.0005;
    Bench bench(settings, soft);
    CHECK(bench.all_done(bench.layer(IoOpcode::kRead, 60, kPage)));
    bench.engine->stop();
    // Three commands a queue fill it, so each doorbell shows three at most.
    CHECK(bench.engine->counters().doorbells >= 20);
    bench.require_no_violations();
  }
}

void many_layers_in_the_ring() {
  LayerEngineSettings settings;
  settings.ring_entries = 4;
  settings.queue_entries = 16;
  Bench bench(settings, one_namespace(), 2);
  std::vector<std::uint32_t> layers;
  layers.reserve(4);
  for (std::uint32_t i = 0; i < 4; ++i) {
    layers.push_back(bench.layer(IoOpcode::kRead, 50, kPage, i * 50 * kPage));
  }
  for (std::uint32_t round = 0; round < 50; ++round) {
    std::array<std::uint64_t, 4> tickets{};
    for (std::uint32_t i = 0; i < 4; ++i) {
      tickets[i] = bench.engine->submit(layers[i]);
    }
    for (std::uint32_t i = 4; i-- > 0;) {  // the last one first: all others are done then
      CHECK(bench.engine->wait(tickets[i], Duration(60)));
    }
  }
  CHECK(bench.engine->wait(1, Duration(0)));
  bench.engine->stop();
  CHECK(bench.engine->counters().commands == 50U * 4 * 50);
  CHECK(bench.engine->counters().strays == 0);
  bench.require_no_violations();
}

template <typename Function>
bool refuses(Function function, const char* words) {
  try {
    function();
  } catch (const Error& error) {
    return std::string(error.what()).find(words) != std::string::npos;
  }
  return false;
}

void what_is_refused() {
  LayerEngineSettings settings;
  settings.ring_entries = 1;
  SoftSettings soft = one_namespace();
  soft.latency = 0.2;
  Bench bench(settings, soft);
  const auto add = [&](const LayerSlice& slice) {
    return [&bench, slice] { bench.engine->add_layer(IoOpcode::kRead, {&slice, 1}); };
  };
  CHECK(refuses(add({1, 0, 0, 0, 0, kPage}), "not there"));
  CHECK(refuses(add({0, 1, 0, 0, 0, kPage}), "not there"));
  CHECK(refuses(add({0, 0, 1, 0, 0, kPage}), "not there"));
  CHECK(refuses(add({0, 0, 0, 0, bench.memory.size() - kPage + 512, kPage}), "must lie in its window"));
  CHECK(refuses(add({0, 0, 0, 0, 0, 100}), "whole blocks"));
  CHECK(refuses([&] { bench.engine->submit(7); }, "layer=7"));
  CHECK(refuses([&] { static_cast<void>(bench.engine->wait(1, Duration(0))); }, "was not given out"));
  const std::uint32_t one = bench.layer(IoOpcode::kRead, 1, kPage);
  const std::uint32_t two = bench.layer(IoOpcode::kRead, 1, kPage);
  const std::uint64_t ticket = bench.engine->submit(one);
  CHECK(refuses([&] { bench.engine->submit(one); }, "under way already"));
  CHECK(refuses([&] { bench.engine->submit(two); }, "not done"));
  CHECK(bench.engine->wait(ticket, Duration(60)));
  CHECK(bench.all_done(two));
  settings.queues = 0;
  CHECK(refuses([&] { Bench bad(settings); }, "queues"));
}

/// Places that end before the item does, and holes in them.
void items_without_blocks() {
  Bench bench;
  const std::array<BlockExtent, 2> extents{{{0, 64, 8}, {16, 128, 8}}};
  const std::uint32_t place = bench.engine->add_place(0, 1, extents);
  std::vector<LayerSlice> slices;
  slices.reserve(5);
  for (std::uint64_t i = 0; i < 4; ++i) {  // pages of 8 blocks: the second and the fourth have none
    slices.push_back({0, place, bench.window, i * kPage, i * kPage, kPage});
  }
  slices.push_back({0, place, bench.window, 0, 0, 2 * kPage});  // ends in the hole
  const std::vector<std::int32_t> statuses = bench.run(bench.engine->add_layer(IoOpcode::kRead, slices));
  CHECK((statuses == std::vector<std::int32_t>{0, kItemNoBlock, 0, kItemNoBlock, kItemNoBlock}));
  bench.require_no_violations();
}

}  // namespace

int main() {
  drives_of_every_kind();
  rings_of_every_size();
  teams_that_start_anew();
  one_doorbell_for_many_commands();
  the_window_holds();
  many_layers_in_the_ring();
  what_is_refused();
  items_without_blocks();
  return 0;
}
