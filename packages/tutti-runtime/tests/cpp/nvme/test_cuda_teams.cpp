// SPDX-License-Identifier: Apache-2.0
// Teams of a GPU and drives that copy to and from its memory, on a driver that waits wherever one may
// (tests/fakes): nothing that a drive's answer depends on may wait for the kernel that waits for the answer.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "layer_rig.hpp"
#include "nvme/cuda/kernel_image.hpp"
#include "nvme/descriptor.hpp"
#include "tutti/runtime/detail/cuda_memory.hpp"
#include "tutti/runtime/shim/cuda_launch.hpp"

// Instead of the library's, which has none without a CUDA compiler.
const void* tutti::runtime::nvme::kernel_image() noexcept { return "an image"; }

namespace {

using namespace layer_rig;

constexpr std::uint32_t kCount = 60;
constexpr std::uint64_t kLength = 64 * 1024;
constexpr std::uint64_t kBytes = kCount * kLength;

void* driver_library = nullptr;

/// What waited for a kernel since it was last asked.
std::string waited() {
  return reinterpret_cast<const char* (*)()>(::dlsym(driver_library, "fake_cuda_waited"))();
}

std::byte* device_memory() {
  const shim::PrimaryContext context(0);
  const shim::ScopedContext current(context.get());
  shim::CuDevicePtr memory = 0;
  CHECK(shim::cuda_launch().mem_alloc(&memory, kBytes) == 0);
  return reinterpret_cast<std::byte*>(memory);
}

void free_device_memory(std::byte* memory) {
  const shim::PrimaryContext context(0);
  const shim::ScopedContext current(context.get());
  CHECK(shim::cuda_launch().mem_free(reinterpret_cast<shim::CuDevicePtr>(memory)) == 0);
}

SoftSettings drive_with_device() {
  SoftSettings soft = one_namespace();
  soft.device = 0;
  return soft;
}

struct GpuRig {
  explicit GpuRig(const SoftSettings& soft, LayerEngineSettings settings = {}) {
    settings.queues = 3;
    std::vector<std::unique_ptr<Controller>> controllers;
    for (int i = 0; i < 2; ++i) {
      controls.push_back(std::make_shared<SoftControl>());
      SoftSettings own = soft;
      if (!own.namespaces.front().image.empty()) {
        own.namespaces.front().image += std::to_string(i);
      }
      controllers.push_back(
          std::make_unique<Controller>(make_soft_transport(own, controls.back()), options_for(settings)));
    }
    engine = std::make_unique<LayerEngine>(std::move(controllers), make_cuda_teams(0, 2), settings);
    const BlockExtent all{0, 0, soft.namespaces.front().bytes / soft.namespaces.front().lba_bytes};
    CHECK(engine->add_place(0, 1, {&all, 1}) == 0 && engine->add_place(1, 1, {&all, 1}) == 0);
  }

  std::uint32_t layer(IoOpcode opcode, std::uint32_t window) const {
    std::vector<LayerSlice> slices;
    slices.reserve(kCount);
    for (std::uint32_t i = 0; i < kCount; ++i) {
      slices.push_back({i % 2, 0, window, i / 2 * kLength, i * kLength, kLength});
    }
    return engine->add_layer(opcode, slices);
  }

  bool runs_well(std::uint32_t layer) const {
    CHECK(engine->wait(engine->submit(layer), Duration(60)));
    const auto statuses = engine->statuses(layer);
    return std::all_of(statuses.begin(), statuses.end(), [](std::int32_t each) { return each == 0; });
  }

  std::vector<std::shared_ptr<SoftControl>> controls;
  std::unique_ptr<LayerEngine> engine;
};

void bytes_go_from_device_memory_and_back(const SoftSettings& soft, double linger) {
  std::byte* const first = device_memory();
  std::byte* const second = device_memory();
  for (std::uint64_t i = 0; i < kBytes; ++i) {
    first[i] = static_cast<std::byte>(i * 7 + i / 4096);
  }
  LayerEngineSettings settings;
  settings.linger = Duration(linger);
  {
    const GpuRig rig(soft, settings);
    const std::uint32_t source = rig.engine->add_window(first, kBytes, MemoryKind::kDevice, 0);
    const std::uint32_t target = rig.engine->add_window(second, kBytes, MemoryKind::kDevice, 0);
    const std::uint32_t write = rig.layer(IoOpcode::kWrite, source);
    const std::uint32_t read = rig.layer(IoOpcode::kRead, target);
    waited();
    CHECK(rig.runs_well(write) && rig.runs_well(read) && rig.runs_well(read));
    const std::string late = waited();
    if (!late.empty()) {
      std::fprintf(stderr, "waited for a kernel: %s\n", late.c_str());
    }
    CHECK(late.empty());
    CHECK(std::memcmp(first, second, kBytes) == 0);
    for (const auto& control : rig.controls) {
      CHECK(control->violations().empty() && control->counters().longest_copy > 0);
    }
  }
  free_device_memory(first);
  free_device_memory(second);
}

void a_drive_with_an_image_copies_through_pinned_memory() {
  char folder[] = "/tmp/tutti-images-XXXXXX";
  CHECK(::mkdtemp(folder) != nullptr);
  SoftSettings soft = drive_with_device();
  soft.namespaces.front().image = std::string(folder) + "/drive";
  for (const char* number : {"0", "1"}) {
    const std::string path = soft.namespaces.front().image + number;
    const Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    CHECK(file.is_open() && ::ftruncate(file.get(), 4 * kMiB) == 0);
  }
  bytes_go_from_device_memory_and_back(soft, 0);
  std::filesystem::remove_all(folder);
}

/// Tables are copied for a layer to come while a kernel waits for a drive: that must not need the kernel's
/// end.
void a_layer_is_prepared_while_another_is_under_way() {
  SoftSettings soft = drive_with_device();
  LayerEngineSettings settings;
  const GpuRig rig(soft, settings);
  std::vector<std::byte> host(kBytes);
  const std::uint32_t window = rig.engine->add_window(host.data(), kBytes, MemoryKind::kHost, kAnyDevice);
  const std::uint32_t slow = rig.layer(IoOpcode::kRead, window);
  SoftRule rule;
  rule.fault = SoftFault::kLateCompletion;
  rule.delay = 0.3;
  rig.controls[0]->add(rule);
  waited();
  const std::uint64_t ticket = rig.engine->submit(slow);
  CHECK(rig.controls[0]->wait_faults(1, Duration(60)));
  const std::uint32_t other = rig.layer(IoOpcode::kRead, window);
  CHECK(waited().find("not pinned") == std::string::npos);
  CHECK(rig.engine->wait(ticket, Duration(60)) && rig.runs_well(other));
}

void what_waits_for_the_device_ends_beside_a_loaded_engine() {
  LayerEngineSettings settings;
  settings.linger = Duration(1.0);
  settings.stay = Duration(0.02);
  GpuRig rig(drive_with_device(), settings);
  std::vector<std::byte> host(kBytes);
  const std::uint32_t window = rig.engine->add_window(host.data(), kBytes, MemoryKind::kHost, kAnyDevice);
  const std::uint32_t layer = rig.layer(IoOpcode::kRead, window);
  std::atomic<bool> stopping{false};
  std::atomic<bool> started{false};
  std::thread busy([&] {
    while (!stopping) {
      CHECK(rig.runs_well(layer));
      started = true;
    }
  });
  while (!started) {
    std::this_thread::yield();
  }
  for (int i = 0; i < 5; ++i) {
    free_device_memory(device_memory());
    alignas(4096) static std::array<std::byte, 4096> page;
    const detail::HostPin pin(page.data(), page.size(), 0);
  }
  stopping = true;
  busy.join();
  CHECK(rig.runs_well(layer));
}

/// This test is worth what its driver notices.
void the_driver_notices() {
  const auto& driver = shim::cuda_launch();
  const GpuRig rig(drive_with_device());
  std::byte* const device = device_memory();
  std::vector<std::byte> host(kBytes);
  const std::uint32_t window = rig.engine->add_window(host.data(), kBytes, MemoryKind::kHost, kAnyDevice);
  const std::uint32_t layer = rig.layer(IoOpcode::kRead, window);
  const shim::WorkStream warm(0, shim::kKernelPriority);
  std::vector<std::byte> pinned(kPage);
  const detail::HostPin pin(pinned.data(), pinned.size(), 0);
  const shim::ScopedContext current(warm.context());
  CHECK(warm.copy_to_device(device, pinned.data(), kPage) == 0 && warm.wait() == 0);
  // The kernel stays until the drive goes on, and that does once something waits for the kernel.
  const auto notices = [&](const char* what, const auto& act) {
    waited();
    rig.controls[0]->stuck = true;
    const std::uint64_t ticket = rig.engine->submit(layer);
    std::atomic<bool> over{false};
    std::string seen;
    std::thread watching([&] {
      while (seen.find(what) == std::string::npos && !over) {
        seen += waited();
      }
      rig.controls[0]->heal();
    });
    act();
    over = true;
    watching.join();
    CHECK((seen + waited()).find(what) != std::string::npos);
    CHECK(rig.engine->wait(ticket, Duration(60)));
  };
  std::array<std::byte, 64> plain{};
  notices("not pinned", [&] { CHECK(warm.copy_to_device(device, plain.data(), plain.size()) == 0); });
  notices("of its priority",
          [&] { CHECK(warm.copy_to_device(device, host.data(), kPage) == 0 && warm.wait() == 0); });
  notices("first copy from the device", [&] { CHECK(warm.copy_to_host(pinned.data(), device, kPage) == 0); });
  notices("cuMemAlloc", [&] {
    shim::CuDevicePtr memory = 0;
    CHECK(driver.mem_alloc(&memory, kPage) == 0 && driver.mem_free(memory) == 0);
  });
  CHECK(warm.wait() == 0);
  free_device_memory(device);
}

}  // namespace

int main(int, char** arguments) {
  // Beside this program. A library that is loaded already serves whoever asks for its name.
  const std::string folder = std::string(arguments[0]).substr(0, std::string(arguments[0]).rfind('/') + 1);
  driver_library = ::dlopen((folder + "fake_driver/libcuda.so.1").c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (driver_library == nullptr) {
    std::fprintf(stderr, "%s\n", ::dlerror());
    return 1;
  }
  the_driver_notices();
  SoftSettings small = drive_with_device();
  small.mdts_bytes = 8192;
  small.namespaces.front().lba_bytes = 4096;
  SoftSettings scattered = drive_with_device();
  scattered.dma_granule = 65536;
  scattered.sgl = true;
  for (const double linger : {0.0, 0.002}) {
    bytes_go_from_device_memory_and_back(drive_with_device(), linger);
    bytes_go_from_device_memory_and_back(small, linger);
    bytes_go_from_device_memory_and_back(scattered, linger);
  }
  a_drive_with_an_image_copies_through_pinned_memory();
  a_layer_is_prepared_while_another_is_under_way();
  what_waits_for_the_device_ends_beside_a_loaded_engine();
  return 0;
}
