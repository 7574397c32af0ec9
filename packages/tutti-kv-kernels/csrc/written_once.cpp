// SPDX-License-Identifier: Apache-2.0
#include "written_once.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "message.h"

namespace tutti::kv {
namespace {

// One plane of one layer that is written, and the memory between its first byte and its last.
struct Part {
  const Layer* layer;
  const Plane* plane;
  std::int64_t begin;  // an address
  std::int64_t end;
};

struct Range {
  std::int64_t begin;
  std::int64_t end;
};

// (count, stride) of all that repeats the plane's run.
std::array<std::pair<std::int64_t, std::int64_t>, Plane::kDims + 2> repeats_of(const Plane& plane) {
  return {std::pair{plane.num_blocks, plane.block_stride},
          {plane.tokens_per_block, plane.token_stride},
          {plane.counts[0], plane.strides[0]},
          {plane.counts[1], plane.strides[1]},
          {plane.counts[2], plane.strides[2]}};
}

// Bytes from the plane's first to its last, where steps by multiples of `modulus` lead nowhere; 0: all steps
// count.
std::int64_t reach_of(const Plane& plane, std::int64_t modulus) {
  std::int64_t reach = plane.run_bytes;
  for (const auto& [count, stride] : repeats_of(plane)) {
    if (modulus == 0 || stride % modulus != 0) {
      reach += (count - 1) * stride;
    }
  }
  return reach;
}

bool are_apart(std::vector<Range>& ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  const auto touch = [](const Range& a, const Range& b) { return b.begin < a.end; };
  return std::adjacent_find(ranges.begin(), ranges.end(), touch) == ranges.end();
}

// Whether the parts keep to places of their own in every stretch of `modulus` bytes.
bool are_apart_modulo(std::span<const Part> parts, std::int64_t modulus) {
  std::vector<Range> ranges;
  ranges.reserve(parts.size() + 1);
  const std::int64_t origin = parts.front().begin;
  for (const Part& part : parts) {
    const std::int64_t begin = (part.begin - origin) % modulus;
    ranges.push_back({begin, begin + reach_of(*part.plane, modulus)});
  }
  // The first one again, behind the end: whoever reaches that far reaches into it.
  ranges.push_back({modulus, modulus + ranges.front().end});
  return are_apart(ranges);
}

bool are_apart_by_strides(std::span<const Part> parts) {
  for (const auto& [count, stride] : repeats_of(*parts.front().plane)) {
    if (count > 1 && are_apart_modulo(parts, stride)) {
      return true;
    }
  }
  return false;
}

std::vector<Part> written_parts(const TransferPlan& plan, std::span<std::byte* const> storages) {
  std::vector<const Layer*> layers;
  layers.reserve(plan.segments.size());
  for (const TransferPlan::Segment& segment : plan.segments) {
    layers.push_back(segment.layer);
  }
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  std::vector<Part> parts;
  for (const Layer* layer : layers) {
    for (const Plane& plane : layer->merged) {
      const auto base = reinterpret_cast<std::intptr_t>(storages[static_cast<std::size_t>(plane.storage)]);
      const std::int64_t begin = base + plane.offset;
      parts.push_back({layer, &plane, begin, begin + reach_of(plane, 0)});
    }
  }
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.begin < b.begin; });
  return parts;
}

struct Run {
  std::int64_t begin;
  std::int64_t end;
  std::size_t place;  // index into the plan's ids
};

void add_runs(std::vector<Run>& runs, const Part& part, std::int64_t id, std::size_t place) {
  const Plane& plane = *part.plane;
  const std::int64_t block = part.begin - plane.offset + block_address(plane, id);
  for (std::int64_t i = 0; i < plane.counts[0]; ++i) {
    for (std::int64_t j = 0; j < plane.counts[1]; ++j) {
      for (std::int64_t k = 0; k < plane.counts[2]; ++k) {
        const std::int64_t begin = block + i * plane.strides[0] + j * plane.strides[1] + k * plane.strides[2];
        runs.push_back({begin, begin + plane.run_bytes, place});
      }
    }
  }
}

// The parts may meet, for some ids: compares all that is written.
void require_runs_apart(const TransferPlan& plan, std::span<const Part> parts) {
  std::vector<Run> runs;
  const auto columns = static_cast<std::size_t>(plan.columns);
  for (std::size_t place = 0; place < plan.block_ids.size(); ++place) {
    for (const Part& part : parts) {
      if (plan.block_ids[place] != kNoBlock && part.layer == plan.segments[place / columns].layer) {
        add_runs(runs, part, plan.block_ids[place], place);
      }
    }
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.begin < b.begin; });
  const auto touch = [](const Run& a, const Run& b) { return b.begin < a.end; };
  if (const auto found = std::adjacent_find(runs.begin(), runs.end(), touch); found != runs.end()) {
    const auto [first, second] = std::minmax(found->place, (found + 1)->place);
    const std::int64_t index = plan.segments[second / columns].layer - plan.layers.data();
    refuse("block ", plan.block_ids[second], " of layer ", index, " (segment ", second / columns,
           ") shares memory with block ", plan.block_ids[first], " of layer ",
           plan.segments[first / columns].layer - plan.layers.data(), " (segment ", first / columns,
           "); a scatter writes each byte once");
  }
}

}  // namespace

void require_planes_apart(const TransferPlan& plan, std::span<std::byte* const> storages) {
  const std::vector<Part> parts = written_parts(plan, storages);
  for (std::size_t begin = 0; begin < parts.size();) {
    std::size_t next = begin + 1;
    for (std::int64_t end = parts[begin].end; next < parts.size() && parts[next].begin < end; ++next) {
      end = std::max(end, parts[next].end);
    }
    const std::span together = std::span(parts).subspan(begin, next - begin);
    if (together.size() > 1 && !are_apart_by_strides(together)) {
      require_runs_apart(plan, together);
    }
    begin = next;
  }
}

}  // namespace tutti::kv
