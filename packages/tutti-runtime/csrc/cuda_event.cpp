// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/detail/cuda_event.hpp"

#include "tutti/runtime/error.hpp"

namespace tutti::runtime::detail {
namespace {

/// While any thread of the process captures a stream in the default mode, a query by another thread would end
/// that capture with an error. The relaxed mode is this thread's own promise not to disturb.
shim::CuResult query_beside_captures(const shim::Cuda& driver, shim::CuEvent event) noexcept {
  int mode = shim::kCuCaptureRelaxed;
  driver.exchange_capture_mode(&mode);
  const shim::CuResult result = driver.event_query(event);
  driver.exchange_capture_mode(&mode);
  return result;
}

}  // namespace

CudaEventDependency::CudaEventDependency(std::uint64_t event, std::shared_ptr<void> owner)
    : event_(reinterpret_cast<shim::CuEvent>(event)), owner_(std::move(owner)) {
  const shim::CuResult result = query_beside_captures(shim::cuda(), event_);
  if (result != shim::kCuSuccess && result != shim::kCuNotReady) {
    throw SystemError(shim::to_errno(result),
                      "after=" + std::to_string(event) + ": " + shim::describe("cuEventQuery", result));
  }
}

int CudaEventDependency::query() noexcept {
  return shim::to_errno(query_beside_captures(shim::cuda(), event_));
}

}  // namespace tutti::runtime::detail
