// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/nvme/layer_engine.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "../drive_window.hpp"
#include "engine_drive.hpp"
#include "lanes.hpp"
#include "tutti/runtime/detail/checks.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/backoff.hpp"
#include "tutti/runtime/nvme/core/ordered.hpp"

namespace tutti::runtime::nvme {
namespace {

void check(const LayerEngineSettings& settings, std::size_t controllers) {
  if (controllers < 1 || controllers > 64) {
    throw InvalidArgument("controllers has " + std::to_string(controllers) +
                          " entries and must have 1 to 64");
  }
  detail::check_range("queues", settings.queues, 1, 64);
  detail::check_range("queue_entries", settings.queue_entries, 2, 4096);
  detail::check_range("ring_entries", settings.ring_entries, 1, 4096);
  detail::check_range("max_windows", settings.max_windows, 1, 4096);
  detail::check_range("max_places", settings.max_places, 1, 1U << 20);
  if (settings.window_bytes == 0) {
    throw InvalidArgument("window_bytes=0 must be 1 or more");
  }
  if (!(settings.command_timeout.count() > 0 && settings.command_timeout.count() <= 3600)) {
    throw InvalidArgument("command_timeout=" + std::to_string(settings.command_timeout.count()) +
                          " must be seconds above 0 to 3600");
  }
  for (const Duration each : {settings.linger, settings.stay}) {
    if (!(each.count() >= 0 && each.count() <= 1)) {
      throw InvalidArgument("linger and stay must be seconds from 0 to 1, not " +
                            std::to_string(each.count()));
    }
  }
}

std::uint64_t to_ns(Duration seconds) { return static_cast<std::uint64_t>(seconds.count() * 1e9); }

}  // namespace

LayerEngine::LayerEngine(std::vector<std::unique_ptr<Controller>> controllers,
                         std::unique_ptr<TeamHost> teams, const LayerEngineSettings& settings)
    : settings_(settings), teams_(std::move(teams)) {
  check(settings, controllers.size());
  for (auto& controller : controllers) {
    const TransportCaps caps = controller->transport().caps();
    const bool on_gpu = teams_->queue_memory() == MemoryKind::kPinnedHost;
    if (!caps.doorbell_stores || (on_gpu && !caps.gpu_doorbells)) {
      throw InvalidArgument(controller->transport().name() +
                            ": its doorbells are no words that a team can store to (" + caps.limits + ")");
    }
    Drive& drive = drives_.emplace_back();
    drive.controller = std::move(controller);
    drive.places = local_array<ShardPlace>(*teams_, settings.max_places);
    drive.nsids = local_array<std::uint32_t>(*teams_, settings.max_places);
    drive.windows = local_array<DataWindow>(*teams_, settings.max_windows);
  }
  tail_ = shared_array<std::uint64_t>(*teams_, 1);
  stop_ = shared_array<std::uint32_t>(*teams_, 1);
  ring_ = {shared_array<LayerDescriptor>(*teams_, settings.ring_entries),
           settings.ring_entries,
           tail_,
           stop_,
           to_ns(settings.linger),
           to_ns(settings.stay)};
  slot_layers_.resize(settings.ring_entries);
  try {
    make_lanes();
  } catch (...) {
    shut_down();  // before the queues' memory goes
    throw;
  }
}

LayerEngine::~LayerEngine() {
  try {
    stop();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the device is gone, and its teams with it
  }
  shut_down();
}

void LayerEngine::shut_down() noexcept {
  for (Drive& drive : drives_) {
    if (drive.controller) {
      drive.controller->shutdown();
    }
  }
}

void LayerEngine::make_lanes() {
  for (std::uint32_t i = 0; i < drives_.size(); ++i) {
    const std::uint32_t count = std::min(settings_.queues, drives_[i].controller->max_queues());
    for (std::uint32_t queue = 0; queue < count; ++queue) {
      queues_.push_back(
          {drives_[i].controller->make_queue_pair(settings_.queue_entries, teams_->queue_memory()), i});
    }
    drives_[i].queues = count;
    drives_[i].first_lane = static_cast<std::uint32_t>(queues_.size()) - count;
  }
  lanes_ = shared_array<IssueLane>(*teams_, queues_.size());
  controls_ = shared_array<LaneControl>(*teams_, queues_.size());
  for (std::uint32_t i = 0; i < queues_.size(); ++i) {
    QueuePair& pair = *queues_[i].pair;
    const Drive& drive = drives_[queues_[i].drive];
    IssueLane& lane = *new (lanes_ + i) IssueLane;
    set_up_lane(*teams_, pair, controls_[i],
                {settings_.window_commands, settings_.window_bytes, drive.queues}, lane);
    lane.drive = queues_[i].drive;
    lane.index = i - drive.first_lane;
    lane.count = drive.queues;
    lane.tables = {drive.places, drive.nsids, drive.windows};
  }
}

std::uint32_t LayerEngine::add_window(std::byte* address, std::uint64_t size, MemoryKind kind, int device) {
  const auto number = static_cast<std::uint32_t>(window_sizes_.size());
  if (number == settings_.max_windows) {
    throw InvalidArgument("there are max_windows=" + std::to_string(number) + " windows already");
  }
  Memory memory;
  memory.address = address;
  memory.size = size;
  memory.kind = kind;
  memory.device = device;
  std::vector<std::unique_ptr<DriveWindow>> made;
  for (const Drive& drive : drives_) {
    Controller& controller = *drive.controller;
    made.push_back(std::make_unique<DriveWindow>(controller.transport(), memory, controller.page_bytes(),
                                                 settings_.sgl && controller.identity().takes_sgl()));
  }
  for (std::size_t i = 0; i < drives_.size(); ++i) {
    DataWindow view = made[i]->view();
    auto* const runs = local_array<IovaRun>(*teams_, view.map.count);
    upload(*teams_, runs, view.map.runs, view.map.count);
    view.map.runs = runs;
    upload(*teams_, drives_[i].windows + number, &view, 1);
    drives_[i].kept.push_back(std::move(made[i]));
  }
  window_sizes_.push_back(size);
  return number;
}

std::uint32_t LayerEngine::add_place(std::uint32_t drive, std::uint32_t nsid,
                                     std::span<const BlockExtent> extents) {
  if (drive >= drives_.size()) {
    throw InvalidArgument("drive=" + std::to_string(drive) + " must be below " +
                          std::to_string(drives_.size()));
  }
  Drive& home = drives_[drive];
  const NamespaceIdentity* const space = home.controller->find_namespace(nsid);
  if (space == nullptr || space->metadata_bytes != 0 || space->protection != 0 || extents.empty()) {
    throw InvalidArgument("nsid=" + std::to_string(nsid) +
                          " must be an active namespace without metadata, and have extents");
  }
  const auto number = static_cast<std::uint32_t>(home.place_shifts.size());
  if (number == settings_.max_places) {
    throw InvalidArgument("there are max_places=" + std::to_string(number) + " places on the drive already");
  }
  auto* const copy = local_array<BlockExtent>(*teams_, extents.size());
  upload(*teams_, copy, extents.data(), extents.size());
  ShardPlace place;
  place.extents = {copy, static_cast<std::uint32_t>(extents.size())};
  place.block_shift = space->block_shift;
  place.max_bytes = std::min(home.controller->max_transfer_bytes(),
                             std::uint64_t{kMaxBlocksPerCommand} << space->block_shift);
  place.boundary_blocks = space->boundary_blocks;
  upload(*teams_, home.places + number, &place, 1);
  upload(*teams_, home.nsids + number, &nsid, 1);
  home.place_shifts.push_back(space->block_shift);
  return number;
}

void LayerEngine::check_slice(const LayerSlice& slice) const {
  const bool known = slice.drive < drives_.size() && slice.window < window_sizes_.size() &&
                     slice.place < drives_[slice.drive].place_shifts.size();
  if (!known) {
    throw InvalidArgument("a slice names drive " + std::to_string(slice.drive) + ", place " +
                          std::to_string(slice.place) + ", window " + std::to_string(slice.window) +
                          ", of which one is not there");
  }
  const std::uint64_t size = window_sizes_[slice.window];
  const std::uint64_t block = std::uint64_t{1} << drives_[slice.drive].place_shifts[slice.place];
  if (slice.length > size || slice.memory_offset > size - slice.length ||
      ((slice.length | slice.target_offset) & (block - 1)) != 0 || slice.memory_offset % 4 != 0) {
    throw InvalidArgument("a slice of " + std::to_string(slice.length) + " bytes from " +
                          std::to_string(slice.memory_offset) + " must lie in its window of " +
                          std::to_string(size) + " bytes and on whole blocks of " + std::to_string(block));
  }
}

std::uint32_t LayerEngine::add_layer(IoOpcode opcode, std::span<const LayerSlice> slices) {
  if (opcode != IoOpcode::kRead && opcode != IoOpcode::kWrite) {
    throw InvalidArgument("a layer reads or writes");
  }
  if (slices.empty() || slices.size() >= kNoItem) {
    throw InvalidArgument("a layer has 1 to 2^32 - 2 slices, not " + std::to_string(slices.size()));
  }
  std::vector<std::vector<LayerItem>> sorted(drives_.size());
  for (std::uint32_t i = 0; i < slices.size(); ++i) {
    const LayerSlice& slice = slices[i];
    check_slice(slice);
    sorted[slice.drive].push_back(
        {slice.target_offset, slice.memory_offset, slice.length, slice.place, slice.window, i});
  }
  std::vector<LayerItem> items;
  std::vector<LayerRange> ranges;
  for (const std::vector<LayerItem>& part : sorted) {
    ranges.push_back({static_cast<std::uint32_t>(items.size()), static_cast<std::uint32_t>(part.size())});
    items.insert(items.end(), part.begin(), part.end());
  }
  Layer layer;
  layer.count = static_cast<std::uint32_t>(items.size());
  layer.host_status = shared_array<std::int32_t>(*teams_, items.size());
  auto* const own_items = local_array<LayerItem>(*teams_, items.size());
  auto* const own_ranges = local_array<LayerRange>(*teams_, ranges.size());
  upload(*teams_, own_items, items.data(), items.size());
  upload(*teams_, own_ranges, ranges.data(), ranges.size());
  layer.form.items = own_items;
  layer.form.ranges = own_ranges;
  layer.form.progress = local_array<ItemProgress>(*teams_, items.size());
  layer.form.status = local_array<std::int32_t>(*teams_, items.size());
  layer.form.host_status = layer.host_status;
  layer.form.done = shared_array<std::uint64_t>(*teams_, 1);
  layer.form.timeout_ns = to_ns(settings_.command_timeout);
  layer.form.teams_left = teams();
  layer.form.opcode = opcode;
  layers_.push_back(layer);
  return static_cast<std::uint32_t>(layers_.size() - 1);
}

std::uint64_t LayerEngine::submit(std::uint32_t number) {
  if (number >= layers_.size()) {
    throw InvalidArgument("layer=" + std::to_string(number) + " must be below " +
                          std::to_string(layers_.size()));
  }
  Layer& layer = layers_[number];
  if (load_acquire(layer.form.done) != layer.ticket) {
    throw SystemError(EBUSY, "layer " + std::to_string(number) + " is under way already");
  }
  if (shown_ >= ring_.depth && !is_done(shown_ - ring_.depth + 1)) {
    throw SystemError(EAGAIN, "the ring has " + std::to_string(ring_.depth) + " layers that are not done");
  }
  if (down_ && Clock::now() >= retry_at_ && (shown_ == 0 || is_done(shown_))) {
    recover();
  }
  const std::uint64_t slot = shown_ % ring_.depth;
  layer.form.ticket = layer.ticket = ++shown_;
  ring_.slots[slot] = layer.form;
  slot_layers_[slot] = number;
  store_release(tail_, shown_);
  teams_->start(ring_, lanes_, teams(), shown_);
  return shown_;
}

bool LayerEngine::is_done(std::uint64_t ticket) const {
  if (ticket + ring_.depth <= shown_) {
    return true;  // its slot was used again
  }
  const Layer& layer = layers_[slot_layers_[(ticket - 1) % ring_.depth]];
  return load_acquire(layer.form.done) >= ticket;
}

bool LayerEngine::wait_done(std::uint64_t ticket, TimePoint deadline) {
  Backoff backoff;
  while (!is_done(ticket)) {
    if (Clock::now() >= deadline) {
      return false;
    }
    watch();
    backoff.pause();
  }
  return true;
}

bool LayerEngine::wait(std::uint64_t ticket, Duration timeout) {
  if (ticket == 0 || ticket > shown_) {
    throw InvalidArgument("ticket=" + std::to_string(ticket) + " was not given out");
  }
  const TimePoint deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout);
  if (!wait_done(ticket, deadline)) {
    return false;
  }
  if (any_lost()) {
    // Teams must be at rest while their queues are made anew; every command of theirs has a deadline.
    if (!wait_done(shown_, TimePoint::max())) {
      return false;
    }
    recover();
  }
  return true;
}

std::span<const std::int32_t> LayerEngine::statuses(std::uint32_t layer) const {
  return {layers_.at(layer).host_status, layers_.at(layer).count};
}
const std::int32_t* LayerEngine::device_statuses(std::uint32_t layer) const {
  return layers_.at(layer).form.status;
}
const std::uint64_t* LayerEngine::done_word(std::uint32_t layer) const { return layers_.at(layer).form.done; }

LayerCounters LayerEngine::counters() const {
  LayerCounters sum = counters_;
  for (std::uint32_t i = 0; i < queues_.size(); ++i) {
    sum.commands += lanes_[i].commands;
    sum.doorbells += lanes_[i].doorbells;
    sum.strays += lanes_[i].strays;
  }
  return sum;
}

void LayerEngine::play_drives() {
  for (const Drive& drive : drives_) {
    if (!drive.controller->transport().set_bus_master(false)) {
      throw SystemError(ENOTSUP, drive.controller->transport().name() + ": cannot be kept from memory");
    }
  }
  auto* const lanes = shared_array<AnswerLane>(*teams_, queues_.size());
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    const QueuePair& pair = *queues_[i].pair;
    lanes[i].commands = reinterpret_cast<const Command*>(pair.sq_memory().address());
    lanes[i].completions = reinterpret_cast<nvme::Completion*>(pair.cq_memory().address());
    lanes[i].sq_doorbell = pair.sq_doorbell();
    lanes[i].cq_doorbell = pair.cq_doorbell();
    lanes[i].depth = pair.depth();
    lanes[i].queue_id = pair.id();
  }
  played_out_ = shared_array<std::uint32_t>(*teams_, 1);
  teams_->start_answering(lanes, teams(), played_out_);
  plays_ = true;
}

void LayerEngine::stop() {
  if (plays_) {
    store_release(played_out_, 1U);
  }
  plays_ = false;
  store_release(stop_, 1U);
  teams_->join();
  store_release(stop_, 0U);
}

}  // namespace tutti::runtime::nvme
