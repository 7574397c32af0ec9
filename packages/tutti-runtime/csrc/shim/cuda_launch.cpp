// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/shim/cuda_launch.hpp"

#include <thread>

#include "tutti/runtime/shim/library.hpp"

namespace tutti::runtime::shim {
namespace {

CudaLaunch load() {
  static_cast<void>(cuda());  // initialises the driver
  const Library library("libcuda.so.1");
  CudaLaunch table{};
  library.require(table.module_load_data, "cuModuleLoadData");
  library.require(table.module_unload, "cuModuleUnload");
  library.require(table.module_get_function, "cuModuleGetFunction");
  library.require(table.launch_kernel, "cuLaunchKernel");
  library.require(table.mem_alloc, "cuMemAlloc_v2");
  library.require(table.mem_free, "cuMemFree_v2");
  library.require(table.memset_d8, "cuMemsetD8Async");
  library.require(table.memcpy_to_device, "cuMemcpyHtoDAsync_v2");
  library.require(table.memcpy_to_host, "cuMemcpyDtoHAsync_v2");
  library.require(table.stream_create, "cuStreamCreateWithPriority");
  library.require(table.stream_query, "cuStreamQuery");
  library.require(table.stream_destroy, "cuStreamDestroy_v2");
  return table;
}

}  // namespace

const CudaLaunch& cuda_launch() {
  static const CudaLaunch table = load();
  return table;
}

WorkStream::WorkStream(int device, int priority) : driver_(cuda_launch()), context_(device) {
  const ScopedContext current(context_.get());
  check("cuStreamCreateWithPriority", driver_.stream_create(&stream_, kCuStreamNonBlocking, priority));
}

WorkStream::~WorkStream() {
  if (cuda().context_push(context_.get()) == kCuSuccess) {
    driver_.stream_destroy(stream_);
    CuContext mine = nullptr;
    cuda().context_pop(&mine);
  }
}

int WorkStream::copy_to_device(std::byte* to, const void* from, std::size_t size) const noexcept {
  return to_errno(driver_.memcpy_to_device(reinterpret_cast<CuDevicePtr>(to), from, size, stream_));
}
int WorkStream::copy_to_host(void* to, const std::byte* from, std::size_t size) const noexcept {
  return to_errno(driver_.memcpy_to_host(to, reinterpret_cast<CuDevicePtr>(from), size, stream_));
}
int WorkStream::wait() const noexcept {
  CuResult result = driver_.stream_query(stream_);
  while (result == kCuNotReady) {
    std::this_thread::yield();
    result = driver_.stream_query(stream_);
  }
  return to_errno(result);
}

}  // namespace tutti::runtime::shim
