// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/shim/cuda.hpp"

#include <atomic>
#include <cerrno>
#include <mutex>
#include <string>

#include "tutti/runtime/error.hpp"
#include "tutti/runtime/shim/library.hpp"

namespace tutti::runtime::shim {
namespace {

// Symbols with a version carry it in their names; cuda.h hides that behind macros.
Cuda load() {
  const Library library("libcuda.so.1");
  Cuda table{};
  library.require(table.init, "cuInit");
  library.require(table.get_error_name, "cuGetErrorName");
  library.require(table.device_get, "cuDeviceGet");
  library.require(table.device_get_count, "cuDeviceGetCount");
  library.require(table.device_get_attribute, "cuDeviceGetAttribute");
  library.require(table.device_get_pci_bus_id, "cuDeviceGetPCIBusId");
  library.require(table.primary_context_retain, "cuDevicePrimaryCtxRetain");
  library.require(table.primary_context_release, "cuDevicePrimaryCtxRelease_v2");
  library.require(table.context_push, "cuCtxPushCurrent_v2");
  library.require(table.context_pop, "cuCtxPopCurrent_v2");
  library.require(table.context_get_current, "cuCtxGetCurrent");
  library.require(table.mem_host_register, "cuMemHostRegister_v2");
  library.require(table.mem_host_unregister, "cuMemHostUnregister");
  library.require(table.mem_host_get_device_pointer, "cuMemHostGetDevicePointer_v2");
  library.require(table.pointer_get_attribute, "cuPointerGetAttribute");
  library.require(table.event_create, "cuEventCreate");
  library.require(table.event_record, "cuEventRecord");
  library.require(table.event_query, "cuEventQuery");
  library.require(table.event_destroy, "cuEventDestroy_v2");
  library.require(table.stream_is_capturing, "cuStreamIsCapturing");
  library.require(table.stream_get_context, "cuStreamGetCtx");
  library.require(table.stream_wait_value64, "cuStreamWaitValue64_v2");
  library.require(table.stream_write_value64, "cuStreamWriteValue64_v2");
  library.require(table.launch_host_function, "cuLaunchHostFunc");
  library.require(table.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
  return table;
}

std::string describe_with(const Cuda& table, const char* call, CuResult result) {
  const char* name = nullptr;
  if (table.get_error_name(result, &name) != kCuSuccess || name == nullptr) {
    name = "unknown CUDA error";
  }
  return std::string(call) + ": " + name + " (" + std::to_string(result) + ")";
}

// Set once, after cuInit has succeeded, and never freed: threads of the driver may outlive every object here.
std::atomic<const Cuda*> the_driver{nullptr};

}  // namespace

const Cuda& cuda() {
  if (const Cuda* const ready = the_driver.load(std::memory_order_acquire)) {
    return *ready;
  }
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (the_driver.load(std::memory_order_relaxed) == nullptr) {
    const Cuda table = load();
    if (const CuResult result = table.init(0); result != kCuSuccess) {
      throw SystemError(to_errno(result), describe_with(table, "cuInit", result) +
                                              "; is there a GPU, and does the driver fit libcuda.so.1?");
    }
    the_driver.store(new Cuda(table), std::memory_order_release);
  }
  return *the_driver.load(std::memory_order_relaxed);
}

int to_errno(CuResult result) noexcept {
  switch (result) {  // numbers: enum CUresult of the CUDA Driver API
    case kCuSuccess:
      return 0;
    case 1:    // INVALID_VALUE
    case 101:  // INVALID_DEVICE
    case 201:  // INVALID_CONTEXT
      return EINVAL;
    case 2:  // OUT_OF_MEMORY
      return ENOMEM;
    case 3:    // NOT_INITIALIZED
    case 4:    // DEINITIALIZED
    case 100:  // NO_DEVICE
      return ENODEV;
    case 400:  // INVALID_HANDLE
      return EBADF;
    case kCuNotReady:
      return EAGAIN;
    case 712:  // HOST_MEMORY_ALREADY_REGISTERED
      return EEXIST;
    case 801:  // NOT_SUPPORTED
      return ENOTSUP;
    default:
      return EIO;
  }
}

std::string describe(const char* call, CuResult result) { return describe_with(cuda(), call, result); }

void check(const char* call, CuResult result) {
  if (result != kCuSuccess) {
    throw SystemError(to_errno(result), describe(call, result));
  }
}

CuDevice find_device(int ordinal) {
  const Cuda& driver = cuda();
  int count = 0;
  check("cuDeviceGetCount", driver.device_get_count(&count));
  if (ordinal < 0 || ordinal >= count) {
    throw InvalidArgument("device=" + std::to_string(ordinal) + " must be between 0 and " +
                          std::to_string(count - 1) + ", the CUDA devices that this process sees");
  }
  CuDevice device = 0;
  check("cuDeviceGet", driver.device_get(&device, ordinal));
  return device;
}

PrimaryContext::PrimaryContext(int device) : driver_(cuda()), device_(find_device(device)) {
  check("cuDevicePrimaryCtxRetain", driver_.primary_context_retain(&context_, device_));
}

PrimaryContext::~PrimaryContext() { driver_.primary_context_release(device_); }

ScopedContext::ScopedContext(CuContext context) : driver_(cuda()) {
  check("cuCtxPushCurrent", driver_.context_push(context));
}

ScopedContext::~ScopedContext() {
  CuContext mine = nullptr;
  driver_.context_pop(&mine);
}

}  // namespace tutti::runtime::shim
