// SPDX-License-Identifier: Apache-2.0
#include "copy_engine.h"

#include <atomic>
#include <vector>

#include "copy_streams.h"
#include "driver.h"

namespace tutti::kv {
namespace {

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  require_cuda(cudaStreamIsCapturing(stream, &capturing), "asking whether a graph is captured");
  return capturing != cudaStreamCaptureStatusNone;
}

// Copies as the calls take them.
struct CopyLists {
  std::vector<void*> targets;
  std::vector<const void*> sources;
  std::vector<std::size_t> sizes;
};

CopyLists list_copies(const CopyRuns& runs, bool to_slots) {
  CopyLists lists;
  lists.targets.reserve(runs.copies.size());
  lists.sources.reserve(runs.copies.size());
  lists.sizes.reserve(runs.copies.size());
  for (const CopyRun& run : runs.copies) {
    lists.targets.push_back(to_slots ? run.slot : run.page);
    lists.sources.push_back(to_slots ? run.page : run.slot);
    lists.sizes.push_back(run.bytes);
  }
  return lists;
}

// One call for many copies. It cannot be recorded into a graph, and takes no legacy default stream.
cudaError_t start_batch(CopyLists& lists, std::size_t first, std::size_t end, cudaStream_t stream) {
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  std::size_t from = 0;
  return cudaMemcpyBatchAsync(&lists.targets[first], &lists.sources[first], &lists.sizes[first], end - first,
                              &attributes, &from, 1, stream);
}

// False, with nothing started, where the driver has no such call.
bool start_batches(CopyLists& lists, bool to_slots, cudaStream_t stream) {
  static std::atomic<bool> driver_lacks_it{false};
  if (driver_lacks_it.load(std::memory_order_relaxed) || is_capturing(stream)) {
    return false;
  }
  spread_copies(lists.sizes.size(), to_slots, stream,
                [&](std::size_t first, std::size_t end, cudaStream_t side) {
                  const cudaError_t code = start_batch(lists, first, end, side);
                  if (code != cudaErrorCallRequiresNewerDriver && code != cudaErrorNotSupported) {
                    return code;
                  }
                  static_cast<void>(cudaGetLastError());
                  driver_lacks_it.store(true, std::memory_order_relaxed);
                  return cudaSuccess;
                });
  return !driver_lacks_it.load(std::memory_order_relaxed);
}

}  // namespace

void start_copies(const CopyRuns& runs, bool to_slots, cudaStream_t stream) {
  CopyLists lists = list_copies(runs, to_slots);
  if (lists.sizes.size() < 2 || !start_batches(lists, to_slots, stream)) {
    for (std::size_t i = 0; i < lists.sizes.size(); ++i) {
      require_cuda(
          cudaMemcpyAsync(lists.targets[i], lists.sources[i], lists.sizes[i], cudaMemcpyDefault, stream),
          "starting a copy");
    }
  }
  for (const Fill& fill : runs.fills) {
    require_cuda(cudaMemsetAsync(fill.slot, 0, fill.bytes, stream), "filling a slot's rest");
  }
}

}  // namespace tutti::kv
