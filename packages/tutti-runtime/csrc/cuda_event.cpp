// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/detail/cuda_event.hpp"

#include "tutti/runtime/error.hpp"

namespace tutti::runtime::detail {

shim::CuResult query_beside_captures(shim::CuEvent event) noexcept {
  const shim::Cuda& driver = shim::cuda();
  int mode = shim::kCuCaptureRelaxed;  // this thread's own promise not to disturb
  driver.exchange_capture_mode(&mode);
  const shim::CuResult result = driver.event_query(event);
  driver.exchange_capture_mode(&mode);
  return result;
}

CudaEventDependency::CudaEventDependency(std::uint64_t event, std::shared_ptr<void> owner)
    : event_(reinterpret_cast<shim::CuEvent>(event)), owner_(std::move(owner)) {
  const shim::CuResult result = query_beside_captures(event_);
  if (result != shim::kCuSuccess && result != shim::kCuNotReady) {
    throw SystemError(shim::to_errno(result),
                      "after=" + std::to_string(event) + ": " + shim::describe("cuEventQuery", result));
  }
}

int CudaEventDependency::query() noexcept { return shim::to_errno(query_beside_captures(event_)); }

}  // namespace tutti::runtime::detail
