// SPDX-License-Identifier: Apache-2.0
#include "copy_engine.h"

#include <atomic>

#include "../message.h"
#include "driver.h"

namespace tutti::kv {
namespace {

// Calls that are tolerable for one transfer, some microseconds each.
constexpr std::size_t kMostSingleCopies = 1024;

// A batch needs a stream of its own (CUDA runtime, cudaMemcpyBatchAsync: not the legacy default stream), and
// cannot be recorded into a graph.
bool batch_is_possible(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) {
    return false;
  }
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  require_cuda(cudaStreamIsCapturing(stream, &capturing), "asking whether a graph is captured");
  return capturing == cudaStreamCaptureStatusNone;
}

bool start_batch(const CopyRuns& runs, bool to_slots, cudaStream_t stream) {
  static std::atomic<bool> driver_lacks_it{false};
  if (driver_lacks_it.load(std::memory_order_relaxed) || !batch_is_possible(stream)) {
    return false;
  }
  std::vector<void*> targets;
  std::vector<const void*> sources;
  std::vector<std::size_t> sizes;
  for (const CopyRun& run : runs.copies) {
    targets.push_back(to_slots ? run.slot : run.page);
    sources.push_back(to_slots ? run.page : run.slot);
    sizes.push_back(run.bytes);
  }
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  std::size_t first = 0;
  const cudaError_t code = cudaMemcpyBatchAsync(targets.data(), sources.data(), sizes.data(), sizes.size(),
                                                &attributes, &first, 1, stream);
  if (code == cudaErrorCallRequiresNewerDriver || code == cudaErrorNotSupported) {
    static_cast<void>(cudaGetLastError());
    driver_lacks_it.store(true, std::memory_order_relaxed);
    return false;
  }
  require_cuda(code, "starting a batch of copies");
  return true;
}

}  // namespace

void start_copies(const CopyRuns& runs, bool to_slots, cudaStream_t stream) {
  if (runs.fills.size() > kMostSingleCopies ||
      (runs.copies.size() > kMostSingleCopies && !batch_is_possible(stream))) {
    refuse("a transfer of ", runs.copies.size(), " runs and ", runs.fills.size(),
           " fills is too much for the copy engines without a batch; use a stream that is not the default "
           "one, or the kernel");
  }
  const bool by_batch = runs.copies.size() > 1 && start_batch(runs, to_slots, stream);
  for (std::size_t i = 0; !by_batch && i < runs.copies.size(); ++i) {
    const CopyRun& run = runs.copies[i];
    require_cuda(cudaMemcpyAsync(to_slots ? run.slot : run.page, to_slots ? run.page : run.slot, run.bytes,
                                 cudaMemcpyDefault, stream),
                 "starting a copy");
  }
  for (const Fill& fill : runs.fills) {
    require_cuda(cudaMemsetAsync(fill.slot, 0, fill.bytes, stream), "filling a slot's rest");
  }
}

}  // namespace tutti::kv
