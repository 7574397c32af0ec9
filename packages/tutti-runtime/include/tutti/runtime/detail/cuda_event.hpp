// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "tutti/runtime/ordering.hpp"
#include "tutti/runtime/shim/cuda.hpp"

namespace tutti::runtime::detail {

/// cuEventQuery from a thread of this library. While any thread of the process captures a stream in the
/// default mode, a query by another thread would end that capture with an error.
[[nodiscard]] shim::CuResult query_beside_captures(shim::CuEvent event) noexcept;

/// Ready when the work that a CUDA event captured has finished. Neither makes a context current nor changes
/// the caller's: an event knows its own.
class CudaEventDependency final : public Dependency {
 public:
  /// `event`: a CUevent or cudaEvent_t as a number; it must stay alive until the batch has begun, which
  /// `owner`, if it owns the event, sees to. An event that was never recorded is ready.
  /// @throws SystemError when there is no CUDA or the event is none.
  CudaEventDependency(std::uint64_t event, std::shared_ptr<void> owner);

  int query() noexcept override;

 private:
  shim::CuEvent event_;
  std::shared_ptr<void> owner_;
};

}  // namespace tutti::runtime::detail
