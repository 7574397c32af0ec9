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
  CuResult (*stream_destroy)(CuStream stream);
};

/// @throws what cuda() throws; SystemError ENOSYS for a driver that lacks one of them.
[[nodiscard]] const CudaLaunch& cuda_launch();

// Priorities of streams; below 0 goes before others, cut to what the device has. A kernel that stays and what
// it waits for have different ones: work of one priority may share a queue of the device, and wait there.
inline constexpr int kKernelPriority = -100;
inline constexpr int kAnswerPriority = -1;
inline constexpr int kTablePriority = 0;

/// A stream of a device's primary context that does not wait for the default one, with what is copied on it.
/// For one thread at a time.
class WorkStream {
 public:
  /// @throws InvalidArgument, SystemError
  WorkStream(int device, int priority);
  ~WorkStream();
  WorkStream(const WorkStream&) = delete;
  WorkStream& operator=(const WorkStream&) = delete;

  [[nodiscard]] CuContext context() const noexcept { return context_.get(); }
  [[nodiscard]] CuStream get() const noexcept { return stream_; }

  // Calls for a scope with the context current. Host memory is pinned: with other memory the driver may wait
  // for all that runs on the device. @returns 0 or an errno.
  [[nodiscard]] int copy_to_device(std::byte* to, const void* from, std::size_t size) const noexcept;
  [[nodiscard]] int copy_to_host(void* to, const std::byte* from, std::size_t size) const noexcept;
  /// Asks until all is done, and so holds nothing of the driver's meanwhile.
  [[nodiscard]] int wait() const noexcept;

 private:
  const CudaLaunch& driver_;
  PrimaryContext context_;
  CuStream stream_ = nullptr;
};

}  // namespace tutti::runtime::shim
