// SPDX-License-Identifier: Apache-2.0
// What the driver's functions are called with is what its own header says, where there is one.
#if __has_include(<cuda.h>)

#include <cuda.h>

#include <cstdio>
#include <type_traits>

#include "tutti/runtime/shim/cuda.hpp"
#include "tutti/runtime/shim/cuda_launch.hpp"

namespace {

using namespace tutti::runtime::shim;

template <typename T>
constexpr int kKind = std::is_pointer_v<T>                           ? 1
                      : (std::is_integral_v<T> || std::is_enum_v<T>) ? 2
                                                                     : 3;

template <typename Ours, typename Theirs>
struct Alike : std::false_type {};

template <typename R, typename... A, typename S, typename... B>
struct Alike<R (*)(A...), S (*)(B...)> {
  static constexpr bool get() {
    if constexpr (sizeof...(A) != sizeof...(B)) {
      return false;
    } else {
      return sizeof(R) == sizeof(S) && ((sizeof(A) == sizeof(B) && kKind<A> == kKind<B>) && ...);
    }
  }
};

#define TUTTI_ALIKE(member, function) \
  static_assert(Alike<decltype(member), decltype(&(function))>::get(), #member " is not like " #function)

TUTTI_ALIKE(Cuda::init, cuInit);
TUTTI_ALIKE(Cuda::get_error_name, cuGetErrorName);
TUTTI_ALIKE(Cuda::device_get, cuDeviceGet);
TUTTI_ALIKE(Cuda::device_get_count, cuDeviceGetCount);
TUTTI_ALIKE(Cuda::device_get_attribute, cuDeviceGetAttribute);
TUTTI_ALIKE(Cuda::device_get_pci_bus_id, cuDeviceGetPCIBusId);
TUTTI_ALIKE(Cuda::primary_context_retain, cuDevicePrimaryCtxRetain);
TUTTI_ALIKE(Cuda::primary_context_release, cuDevicePrimaryCtxRelease_v2);
TUTTI_ALIKE(Cuda::context_push, cuCtxPushCurrent_v2);
TUTTI_ALIKE(Cuda::context_pop, cuCtxPopCurrent_v2);
TUTTI_ALIKE(Cuda::context_get_current, cuCtxGetCurrent);
TUTTI_ALIKE(Cuda::mem_host_register, cuMemHostRegister_v2);
TUTTI_ALIKE(Cuda::mem_host_unregister, cuMemHostUnregister);
TUTTI_ALIKE(Cuda::mem_host_get_device_pointer, cuMemHostGetDevicePointer_v2);
TUTTI_ALIKE(Cuda::pointer_get_attribute, cuPointerGetAttribute);
TUTTI_ALIKE(Cuda::event_create, cuEventCreate);
TUTTI_ALIKE(Cuda::event_record, cuEventRecord);
TUTTI_ALIKE(Cuda::event_query, cuEventQuery);
TUTTI_ALIKE(Cuda::event_destroy, cuEventDestroy_v2);
TUTTI_ALIKE(Cuda::stream_is_capturing, cuStreamIsCapturing);
TUTTI_ALIKE(Cuda::stream_get_context, cuStreamGetCtx);
TUTTI_ALIKE(Cuda::stream_wait_value64, cuStreamWaitValue64_v2);
TUTTI_ALIKE(Cuda::stream_write_value64, cuStreamWriteValue64_v2);
TUTTI_ALIKE(Cuda::launch_host_function, cuLaunchHostFunc);
TUTTI_ALIKE(Cuda::exchange_capture_mode, cuThreadExchangeStreamCaptureMode);

TUTTI_ALIKE(CudaLaunch::module_load_data, cuModuleLoadData);
TUTTI_ALIKE(CudaLaunch::module_unload, cuModuleUnload);
TUTTI_ALIKE(CudaLaunch::module_get_function, cuModuleGetFunction);
TUTTI_ALIKE(CudaLaunch::launch_kernel, cuLaunchKernel);
TUTTI_ALIKE(CudaLaunch::mem_alloc, cuMemAlloc_v2);
TUTTI_ALIKE(CudaLaunch::mem_free, cuMemFree_v2);
TUTTI_ALIKE(CudaLaunch::memset_d8, cuMemsetD8Async);
TUTTI_ALIKE(CudaLaunch::memcpy_to_device, cuMemcpyHtoDAsync_v2);
TUTTI_ALIKE(CudaLaunch::memcpy_to_host, cuMemcpyDtoHAsync_v2);
TUTTI_ALIKE(CudaLaunch::stream_create, cuStreamCreateWithPriority);
TUTTI_ALIKE(CudaLaunch::stream_query, cuStreamQuery);
TUTTI_ALIKE(CudaLaunch::stream_destroy, cuStreamDestroy_v2);

static_assert(kCuNotReady == CUDA_ERROR_NOT_READY);
static_assert(kCuAttributeMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(kCuAttributeDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(kCuMemoryTypeHost == CU_MEMORYTYPE_HOST);
static_assert(kCuMemoryTypeDevice == CU_MEMORYTYPE_DEVICE);
static_assert(kCuHostRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(kCuHostRegisterDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(kCuStreamWaitGeq == CU_STREAM_WAIT_VALUE_GEQ);
static_assert(kCuCaptureRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(kCuEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kCuStreamNonBlocking == CU_STREAM_NON_BLOCKING);

}  // namespace

int main() {
  std::printf("compared with cuda.h of CUDA %d\n", CUDA_VERSION);
  return 0;
}

#else

#include <cstdio>

int main() {
  std::puts("there is no cuda.h to compare with");
  return 0;
}

#endif
