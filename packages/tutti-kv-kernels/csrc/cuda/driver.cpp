// SPDX-License-Identifier: Apache-2.0
#include "driver.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <sstream>
#include <stdexcept>

#include "../message.h"

namespace tutti::kv {
namespace {

// torch's C function. It is in libtorch_cuda.so, which CPU builds of torch lack: a link to it would keep this
// library from loading there.
using GetStream = std::int32_t (*)(std::int32_t device, void** stream);

GetStream find_get_stream() {
  void* torch_cuda = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
  if (torch_cuda == nullptr) {
    return nullptr;
  }
  return reinterpret_cast<GetStream>(dlsym(torch_cuda, "aoti_torch_get_current_cuda_stream"));
}

}  // namespace

void require_cuda(cudaError_t code, const char* what) {
  if (code == cudaSuccess) {
    return;
  }
  std::ostringstream text;
  text << "tutti_kv_kernels: " << what << " failed: " << cudaGetErrorName(code) << " ("
       << cudaGetErrorString(code) << ")";
  throw std::runtime_error(text.str());
}

cudaStream_t current_stream(std::int32_t device) {
  static const GetStream get_stream = find_get_stream();
  void* stream = nullptr;
  if (get_stream == nullptr || get_stream(device, &stream) != 0) {
    throw std::runtime_error(
        "tutti_kv_kernels: this torch gives no current CUDA stream; install a CUDA build");
  }
  return static_cast<cudaStream_t>(stream);
}

std::byte* device_address(const torch::stable::Tensor& tensor, const char* name, std::int32_t device) {
  if (tensor.is_cuda()) {
    if (tensor.get_device_index() != device) {
      refuse(name, " must be on CUDA device ", device, ", got one on device ", tensor.get_device_index());
    }
    return static_cast<std::byte*>(tensor.data_ptr());
  }
  cudaPointerAttributes attributes{};
  if (tensor.is_cpu() && tensor.numel() == 0) {
    return nullptr;
  }
  if (!tensor.is_cpu() || cudaPointerGetAttributes(&attributes, tensor.data_ptr()) != cudaSuccess ||
      attributes.type != cudaMemoryTypeHost || attributes.devicePointer == nullptr) {
    refuse(name, " must be on CUDA device ", device, " or in pinned host memory, got ",
           tensor.is_cpu() ? "pageable host memory" : "another device's tensor");
  }
  return static_cast<std::byte*>(attributes.devicePointer);
}

DeviceScope::DeviceScope(std::int32_t device) {
  require_cuda(cudaGetDevice(&former_), "finding the current device");
  if (former_ != device) {
    require_cuda(cudaSetDevice(device), "choosing the device");
    changed_ = true;
  }
}

DeviceScope::~DeviceScope() {
  if (changed_) {
    static_cast<void>(cudaSetDevice(former_));
  }
}

std::int32_t multiprocessors(std::int32_t device) {
  constexpr std::size_t kRemembered = 64;
  static std::array<std::atomic<std::int32_t>, kRemembered> known{};
  const auto index = static_cast<std::size_t>(device);
  std::int32_t count = index < kRemembered ? known[index].load(std::memory_order_relaxed) : 0;
  if (count == 0) {
    require_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
                 "counting multiprocessors");
    if (index < kRemembered) {
      known[index].store(count, std::memory_order_relaxed);
    }
  }
  return count;
}

}  // namespace tutti::kv
