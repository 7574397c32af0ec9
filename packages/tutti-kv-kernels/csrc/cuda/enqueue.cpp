// SPDX-License-Identifier: Apache-2.0
#include "enqueue.h"

#include <algorithm>
#include <cstdint>

#include "../message.h"
#include "driver.h"
#include "enqueue_pages.h"

namespace tutti::kv {
namespace {

constexpr std::int64_t kLanesPerWarp = 32;
constexpr std::int64_t kWideBlock = 1024;  // fills a multiprocessor
constexpr std::int64_t kNarrowBlock = 256;
constexpr std::int64_t kNarrowBlocksEach = 4;  // of a multiprocessor
// Tiles that a warp moves in one span. Wide blocks go on to other spans; 8 to 32 tiles make no difference
// there. A narrow block ends with its span, and the next starts wherever one has ended: large launches are
// faster so than with blocks that stay (docs/gpu.md). With one tile a warp the checksum costs more.
constexpr std::int64_t kWideRounds = 8;
constexpr std::int64_t kNarrowRounds = 2;

std::int64_t ceil_div(std::int64_t value, std::int64_t divisor) { return (value + divisor - 1) / divisor; }

// Cuts the segments into spans: few enough that all blocks have work, and for the whole device one a block.
LaunchShape shape_launch(const DeviceGeometry& geometry, TransferLaunch& launch, std::int64_t num_sms,
                         bool fills_slots) {
  const std::int64_t tile = tile_bytes(geometry.access);
  const std::int64_t bytes = fills_slots ? geometry.window.slot_bytes : geometry.block_bytes * launch.columns;
  const std::int64_t segment_tiles = ceil_div(bytes, tile);
  constexpr std::int64_t kMaxSegmentTiles = 65535;  // SegmentSums count in 16 bits
  if (segment_tiles > kMaxSegmentTiles || segment_tiles * launch.segments >= INT32_MAX) {
    refuse(launch.segments, " segments of ", bytes, " bytes are too much for a launch: at most ",
           kMaxSegmentTiles * tile, " bytes each and ", INT32_MAX * tile, " together with this alignment");
  }
  const bool limited = num_sms > 0;
  const std::int64_t threads = limited ? kWideBlock : kNarrowBlock;
  const std::int64_t blocks =
      limited ? num_sms : std::int64_t{multiprocessors(geometry.device)} * kNarrowBlocksEach;
  const std::int64_t warps = threads / kLanesPerWarp;
  const std::int64_t rounds = ceil_div(segment_tiles * launch.segments, blocks * warps);
  const std::int64_t most_rounds = limited ? kWideRounds : kNarrowRounds;
  const std::int64_t span_tiles = std::min(std::min(rounds, most_rounds) * warps, segment_tiles);
  const std::int64_t segment_spans = ceil_div(segment_tiles, span_tiles);
  const std::int64_t spans = segment_spans * launch.segments;
  launch.segment_tiles = static_cast<std::uint32_t>(segment_tiles);
  launch.span_tiles = static_cast<std::uint32_t>(span_tiles);
  launch.segment_spans = FastDivisor::of(static_cast<std::uint32_t>(segment_spans));
  launch.total_spans = static_cast<std::uint32_t>(spans);
  return {.access = geometry.access,
          .blocks = static_cast<std::uint32_t>(limited ? std::min(blocks, spans) : spans),
          .threads = static_cast<std::uint32_t>(threads),
          .stream = current_stream(geometry.device)};
}

}  // namespace

void enqueue(KernelMode mode, const DeviceGeometry& geometry, const TransferLaunch& launch,
             const LaunchOptions& options) {
  if (options.num_sms == 0 && enqueue_pages(mode, geometry, launch, options)) {
    return;
  }
  TransferLaunch shaped = launch;
  const LaunchShape shape = shape_launch(geometry, shaped, options.num_sms, mode == KernelMode::kGather);
  cudaError_t code = cudaSuccess;
  if (geometry.is_large()) {
    if (options.resident == nullptr) {
      refuse("a geometry of ", geometry.num_layers, " layers with ", geometry.num_planes,
             " planes, or of tokens, needs a copy of itself on the device (resident)");
    }
    code = launch_transfer(mode, shape, shaped, resident_table(options.resident));
  } else {
    SmallTable table;
    std::copy_n(geometry.planes, SmallTable::kMaxPlanes, table.planes);
    std::copy_n(geometry.layers, SmallTable::kMaxLayers, table.layers);
    code = launch_transfer(mode, shape, shaped, table);
  }
  require_cuda(code, "launching a transfer");
}

void enqueue_scatter(Verify verify, const DeviceGeometry& geometry, TransferLaunch launch,
                     const LaunchOptions& options) {
  launch.compare = 1;
  launch.missing_blocks = 1;
  if (verify == Verify::kBefore) {
    enqueue(KernelMode::kSumSlots, geometry, launch, options);
    launch.read_status = launch.status;
    launch.status = nullptr;
    launch.checksums = nullptr;
    launch.sums = nullptr;
  }
  enqueue(KernelMode::kScatter, geometry, launch, options);
}

}  // namespace tutti::kv
