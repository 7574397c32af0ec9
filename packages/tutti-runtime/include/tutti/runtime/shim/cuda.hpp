// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver API that this library calls. Types, numbers and symbol versions follow the CUDA
// Driver API reference; cuda.h is not needed to build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tutti::runtime::shim {

using CuResult = int;
using CuDevice = int;
using CuDevicePtr = std::uint64_t;
using CuContext = struct CuContextTag*;
using CuStream = struct CuStreamTag*;
using CuEvent = struct CuEventTag*;

inline constexpr CuResult kCuSuccess = 0;
inline constexpr CuResult kCuNotReady = 600;

inline constexpr int kCuAttributeMemoryType = 2;  ///< of cuPointerGetAttribute
inline constexpr int kCuAttributeDeviceOrdinal = 9;
inline constexpr unsigned kCuMemoryTypeHost = 1;
inline constexpr unsigned kCuMemoryTypeDevice = 2;
inline constexpr unsigned kCuHostRegisterPortable = 1;
inline constexpr unsigned kCuHostRegisterDeviceMap = 2;
inline constexpr unsigned kCuStreamWaitGeq = 0;
inline constexpr int kCuCaptureRelaxed = 2;
inline constexpr unsigned kCuEventDisableTiming = 2;

/// Functions of libcuda.so.1, named without their prefix.
struct Cuda {
  CuResult (*init)(unsigned flags);
  CuResult (*get_error_name)(CuResult error, const char** name);
  CuResult (*device_get)(CuDevice* device, int ordinal);
  CuResult (*device_get_count)(int* count);
  CuResult (*device_get_attribute)(int* value, int attribute, CuDevice device);
  CuResult (*device_get_pci_bus_id)(char* text, int size, CuDevice device);
  CuResult (*primary_context_retain)(CuContext* context, CuDevice device);
  CuResult (*primary_context_release)(CuDevice device);
  CuResult (*context_push)(CuContext context);
  CuResult (*context_pop)(CuContext* context);
  CuResult (*context_get_current)(CuContext* context);
  CuResult (*mem_host_register)(void* address, std::size_t size, unsigned flags);
  CuResult (*mem_host_unregister)(void* address);
  CuResult (*mem_host_get_device_pointer)(CuDevicePtr* pointer, void* address, unsigned flags);
  CuResult (*pointer_get_attribute)(void* value, int attribute, CuDevicePtr pointer);
  CuResult (*event_create)(CuEvent* event, unsigned flags);
  CuResult (*event_record)(CuEvent event, CuStream stream);
  CuResult (*event_query)(CuEvent event);
  CuResult (*event_destroy)(CuEvent event);
  CuResult (*stream_is_capturing)(CuStream stream, int* status);
  CuResult (*stream_get_context)(CuStream stream, CuContext* context);
  CuResult (*stream_wait_value64)(CuStream stream, CuDevicePtr address, std::uint64_t value, unsigned flags);
  CuResult (*stream_write_value64)(CuStream stream, CuDevicePtr address, std::uint64_t value, unsigned flags);
  CuResult (*launch_host_function)(CuStream stream, void (*function)(void*), void* argument);
  CuResult (*exchange_capture_mode)(int* mode);
};

/// The driver, loaded and initialised by the first call; no context is made.
/// @throws SystemError: ENOENT without libcuda.so.1, ENOSYS for a driver that is too old, ENODEV and others
/// when cuInit refuses. A later call tries again.
[[nodiscard]] const Cuda& cuda();

/// The errno that stands for a CUDA result in item statuses and errors; 0 for success, EAGAIN for "not
/// ready".
[[nodiscard]] int to_errno(CuResult result) noexcept;

/// "cuEventQuery: CUDA_ERROR_INVALID_HANDLE (400)"
[[nodiscard]] std::string describe(const char* call, CuResult result);

/// @throws SystemError with to_errno() and describe() unless the call succeeded.
void check(const char* call, CuResult result);

/// @throws InvalidArgument for a device that this process does not see; SystemError.
[[nodiscard]] CuDevice find_device(int ordinal);

/// Keeps a device's primary context, the one that the CUDA runtime and frameworks use.
class PrimaryContext {
 public:
  /// @throws InvalidArgument, SystemError
  explicit PrimaryContext(int device);
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  [[nodiscard]] CuContext get() const noexcept { return context_; }

 private:
  const Cuda& driver_;
  CuDevice device_ = 0;
  CuContext context_ = nullptr;
};

/// Makes a context current for a scope; the calling thread's own is back afterwards.
class ScopedContext {
 public:
  /// @throws SystemError
  explicit ScopedContext(CuContext context);
  ~ScopedContext();
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

 private:
  const Cuda& driver_;
};

}  // namespace tutti::runtime::shim
