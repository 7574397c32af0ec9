// SPDX-License-Identifier: Apache-2.0
// The further part of the CUDA driver API that kernels of this library's own need; apart from shim/cuda.hpp,
// so that a driver without it still serves all else.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/runtime/shim/cuda.hpp"

namespace tutti::runtime::shim {

using CuModule = struct CuModuleTag*;
using CuFunction = struct CuFunctionTag*;

inline constexpr unsigned kCuStreamNonBlocking = 1;  ///< does not wait for the default stream

/// Functions of libcuda.so.1, named without their prefix.
struct CudaLaunch {
  CuResult (*module_load_data)(CuModule* module, const void* image);
  CuResult (*module_unload)(CuModule module);
  CuResult (*module_get_function)(CuFunction* function, CuModule module, const char* name);
  CuResult (*launch_kernel)(CuFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                            CuStream stream, void** parameters, void** extra);
  CuResult (*mem_alloc)(CuDevicePtr* pointer, std::size_t size);
  CuResult (*mem_free)(CuDevicePtr pointer);
  CuResult (*memset_d8)(CuDevicePtr pointer, unsigned char value, std::size_t size, CuStream stream);
  CuResult (*memcpy_to_device)(CuDevicePtr to, const void* from, std::size_t size, CuStream stream);
  CuResult (*memcpy_to_host)(void* to, CuDevicePtr from, std::size_t size, CuStream stream);
  CuResult (*stream_create)(CuStream* stream, unsigned flags, int priority);
  CuResult (*stream_query)(CuStream stream);
  CuResult (*stream_synchronize)(CuStream stream);
  CuResult (*stream_destroy)(CuStream stream);
};

/// @throws what cuda() throws; SystemError ENOSYS for a driver that lacks one of them.
[[nodiscard]] const CudaLaunch& cuda_launch();

/// A stream of a device's primary context, with what is copied on it. For one thread at a time.
class WorkStream {
 public:
  /// `priority`: 0, or below for what runs before others; cut to what the device has.
  /// @throws InvalidArgument, SystemError
  explicit WorkStream(int device, int priority = 0);
  ~WorkStream();
  WorkStream(const WorkStream&) = delete;
  WorkStream& operator=(const WorkStream&) = delete;

  [[nodiscard]] CuContext context() const noexcept { return context_.get(); }
  [[nodiscard]] CuStream get() const noexcept { return stream_; }

  // Calls for a scope with the context current. @returns 0 or an errno.
  [[nodiscard]] int copy_to_device(std::byte* to, const void* from, std::size_t size) const noexcept;
  [[nodiscard]] int copy_to_host(void* to, const std::byte* from, std::size_t size) const noexcept;
  [[nodiscard]] int wait() const noexcept;

 private:
  const CudaLaunch& driver_;
  PrimaryContext context_;
  CuStream stream_ = nullptr;
};

}  // namespace tutti::runtime::shim
