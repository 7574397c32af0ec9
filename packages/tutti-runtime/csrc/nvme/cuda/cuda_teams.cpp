// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernel_image.hpp"
#include "tutti/runtime/detail/cuda_memory.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/core/team.hpp"
#include "tutti/runtime/nvme/team_host.hpp"
#include "tutti/runtime/shim/cuda_launch.hpp"

namespace tutti::runtime::nvme {
namespace {

constexpr std::uint64_t kChunk = std::uint64_t{1} << 20;
constexpr std::uint64_t kLine = 128;
constexpr std::uint32_t kMostWarps = 8;  // of a block; the kernel is compiled for them

/// Host memory that the device sees under the same address.
class PinnedChunk {
 public:
  PinnedChunk(std::uint64_t size, int device) : size_(size) {
    void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      throw SystemError(errno, "cannot have " + std::to_string(size) + " bytes for a GPU's teams");
    }
    address_ = static_cast<std::byte*>(memory);
    try {
      pin_ = std::make_unique<detail::HostPin>(address_, size, device);
      if (detail::device_pointer(address_, device) != reinterpret_cast<std::uint64_t>(address_)) {
        throw SystemError(ENOTSUP, "CUDA device " + std::to_string(device) +
                                       " sees pinned memory under other addresses than the host");
      }
    } catch (...) {
      pin_.reset();
      ::munmap(memory, size);
      throw;
    }
  }
  ~PinnedChunk() {
    pin_.reset();
    ::munmap(address_, size_);
  }
  PinnedChunk(const PinnedChunk&) = delete;
  PinnedChunk& operator=(const PinnedChunk&) = delete;

  [[nodiscard]] std::byte* address() const noexcept { return address_; }

 private:
  std::byte* address_ = nullptr;
  std::uint64_t size_;
  std::unique_ptr<detail::HostPin> pin_;
};

/// Gives out pieces of the last chunk.
struct Bump {
  std::byte* next = nullptr;
  std::uint64_t left = 0;

  [[nodiscard]] std::byte* take(std::uint64_t size) noexcept {
    if (size > left) {
      return nullptr;
    }
    left -= size;
    return std::exchange(next, next + size);
  }
};

class CudaTeams final : public TeamHost {
 public:
  CudaTeams(int device, std::uint32_t blocks)
      : device_(device),
        blocks_(blocks),
        driver_(shim::cuda_launch()),
        work_(device, shim::kKernelPriority),
        copies_(device, shim::kTablePriority),
        answers_(device, shim::kAnswerPriority),
        staging_(kChunk, device) {
    const shim::ScopedContext current(work_.context());
    shim::check("cuModuleLoadData", driver_.module_load_data(&module_, kernel_image()));
    shim::check("cuModuleGetFunction", driver_.module_get_function(&kernel_, module_, "tutti_nvme_serve"));
    shim::check("cuModuleGetFunction", driver_.module_get_function(&answer_, module_, "tutti_nvme_answer"));
    warm_up();
  }
  ~CudaTeams() override {
    if (shim::cuda().context_push(work_.context()) != shim::kCuSuccess) {
      return;
    }
    static_cast<void>(work_.wait());
    for (const shim::CuDevicePtr each : device_chunks_) {
      driver_.mem_free(each);
    }
    driver_.module_unload(module_);
    shim::CuContext mine = nullptr;
    shim::cuda().context_pop(&mine);
  }

  MemoryKind queue_memory() const noexcept override { return MemoryKind::kPinnedHost; }

  std::byte* shared(std::uint64_t size) override {
    size = (size + kLine - 1) / kLine * kLine;
    if (std::byte* const place = pinned_.take(size)) {
      return place;
    }
    const std::uint64_t chunk = (std::max(size, kChunk) + 4095) & ~std::uint64_t{4095};
    pinned_chunks_.push_back(std::make_unique<PinnedChunk>(chunk, device_));
    pinned_ = {pinned_chunks_.back()->address(), chunk};
    return pinned_.take(size);
  }

  std::byte* local(std::uint64_t size) override {
    size = (size + kLine - 1) / kLine * kLine;
    if (std::byte* const place = near_.take(size)) {
      return place;
    }
    const shim::ScopedContext current(work_.context());
    const std::uint64_t chunk = std::max(size, kChunk);
    shim::CuDevicePtr memory = 0;
    shim::check("cuMemAlloc", driver_.mem_alloc(&memory, chunk));
    device_chunks_.push_back(memory);
    shim::check("cuMemsetD8Async", driver_.memset_d8(memory, 0, chunk, copies_.get()));
    finish();
    near_ = {reinterpret_cast<std::byte*>(memory), chunk};
    return near_.take(size);
  }

  void upload(std::byte* local, const void* from, std::uint64_t size) override {
    const shim::ScopedContext current(work_.context());
    for (std::uint64_t done = 0; done < size; done += std::min(size - done, kChunk)) {
      const std::uint64_t part = std::min(size - done, kChunk);
      std::memcpy(staging_.address(), static_cast<const std::byte*>(from) + done, part);
      require_good(copies_.copy_to_device(local + done, staging_.address(), part));
      finish();
    }
  }

  void download(void* to, const std::byte* local, std::uint64_t size) override {
    const shim::ScopedContext current(work_.context());
    for (std::uint64_t done = 0; done < size; done += std::min(size - done, kChunk)) {
      const std::uint64_t part = std::min(size - done, kChunk);
      require_good(copies_.copy_to_host(staging_.address(), local + done, part));
      finish();
      std::memcpy(static_cast<std::byte*>(to) + done, staging_.address(), part);
    }
  }

  void start(const LayerRing& ring, IssueLane* lanes, std::uint32_t count, std::uint64_t until) override {
    const shim::ScopedContext current(work_.context());
    const std::uint32_t blocks = std::min(std::max(blocks_, (count + kMostWarps - 1) / kMostWarps), count);
    const std::uint32_t warps = (count + blocks - 1) / blocks;
    launch(ring, lanes, count, until, blocks, warps * kTeamLanes);
  }

  void start_answering(const AnswerLane* lanes, std::uint32_t count, const std::uint32_t* stop) override {
    const shim::ScopedContext current(work_.context());
    launch_answers(lanes, count, stop, count);
  }

  void join() override {
    const shim::ScopedContext current(work_.context());
    require_good(answers_.wait());
    require_good(work_.wait());
  }

  int check() noexcept override {
    if (shim::cuda().context_push(work_.context()) != shim::kCuSuccess) {
      return EIO;
    }
    const shim::CuResult result = driver_.stream_query(work_.get());
    shim::CuContext mine = nullptr;
    shim::cuda().context_pop(&mine);
    return result == shim::kCuNotReady ? 0 : shim::to_errno(result);
  }

 private:
  /// A driver loads kernels, and makes what copies need, when they are first used, and may wait for the
  /// device to be idle then. So they are used once while it is: later a drive's answer may depend on them.
  void warm_up() {
    launch({}, nullptr, 0, 0, 1, kTeamLanes);
    launch_answers(nullptr, 0, nullptr, 1);
    std::byte line[kLine]{};
    std::byte* const place = local(kLine);
    upload(place, line, kLine);
    download(line, place, kLine);
    join();
  }

  void launch(LayerRing ring, IssueLane* lanes, std::uint32_t count, std::uint64_t until,
              std::uint32_t blocks, std::uint32_t threads) {
    void* parameters[] = {&ring, static_cast<void*>(&lanes), &count, &until};
    shim::check("cuLaunchKernel", driver_.launch_kernel(kernel_, blocks, 1, 1, threads, 1, 1, 0, work_.get(),
                                                        parameters, nullptr));
  }

  void launch_answers(const AnswerLane* lanes, std::uint32_t count, const std::uint32_t* stop,
                      std::uint32_t blocks) {
    void* parameters[] = {static_cast<void*>(&lanes), &count, static_cast<void*>(&stop)};
    shim::check("cuLaunchKernel", driver_.launch_kernel(answer_, blocks, 1, 1, kTeamLanes, 1, 1, 0,
                                                        answers_.get(), parameters, nullptr));
  }

  void finish() const { require_good(copies_.wait()); }

  static void require_good(int error) {
    if (error != 0) {
      throw SystemError(error, "a kernel or a copy failed on the teams' device");
    }
  }

  const int device_;
  const std::uint32_t blocks_;
  const shim::CudaLaunch& driver_;
  shim::WorkStream work_;
  shim::WorkStream copies_;  ///< does not wait for teams that stay
  shim::WorkStream answers_;
  PinnedChunk staging_;  ///< for what is copied to and from local()
  shim::CuModule module_ = nullptr;
  shim::CuFunction kernel_ = nullptr;
  shim::CuFunction answer_ = nullptr;
  std::vector<std::unique_ptr<PinnedChunk>> pinned_chunks_;
  std::vector<shim::CuDevicePtr> device_chunks_;
  Bump pinned_;
  Bump near_;
};

}  // namespace

std::string missing_kernel() {
  return kernel_image() != nullptr
             ? ""
             : "this library was built without a CUDA compiler, and so without the kernel";
}

std::unique_ptr<TeamHost> make_cuda_teams(int device, std::uint32_t blocks) {
  if (blocks < 1 || blocks > 8) {
    throw InvalidArgument("blocks=" + std::to_string(blocks) +
                          " must be 1 to 8: each holds a multiprocessor");
  }
  if (kernel_image() == nullptr) {
    throw SystemError(ENOTSUP, missing_kernel());
  }
  return std::make_unique<CudaTeams>(device, blocks);
}

}  // namespace tutti::runtime::nvme
