// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <torch/csrc/stable/tensor.h>

#include <cstddef>
#include <cstdint>

namespace tutti::kv {

// @throws std::runtime_error with the name and text of the error, when `code` is one.
void require_cuda(cudaError_t code, const char* what);

// The stream that torch works on now, on `device`. @throws std::runtime_error where torch has no CUDA.
[[nodiscard]] cudaStream_t current_stream(std::int32_t device);

// Address under which `device` reaches the tensor's bytes: of memory on it, or of pinned host memory.
// @throws std::invalid_argument naming the argument, for anything else.
[[nodiscard]] std::byte* device_address(const torch::stable::Tensor& tensor, const char* name,
                                        std::int32_t device);

// Makes `device` the thread's current one for CUDA's runtime, and gives the former one back.
class DeviceScope {
 public:
  explicit DeviceScope(std::int32_t device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  std::int32_t former_ = 0;
  bool changed_ = false;
};

[[nodiscard]] std::int32_t multiprocessors(std::int32_t device);

}  // namespace tutti::kv
