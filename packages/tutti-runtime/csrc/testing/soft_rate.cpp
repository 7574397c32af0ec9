// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/testing/soft_rate.hpp"

#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/controller.hpp"
#include "tutti/runtime/nvme/soft.hpp"

namespace tutti::runtime::testing {
namespace {

constexpr std::uint64_t kNamespaceBytes = std::uint64_t{1} << 20;  // of caches' size, as the memory is
constexpr std::uint32_t kBlock = 512;

}  // namespace

Duration measure_soft_rate(std::uint64_t commands, std::uint32_t bytes, std::uint32_t depth,
                           std::uint32_t batch) {
  if (bytes == 0 || bytes % kBlock != 0 || bytes > 8192 || batch == 0) {
    throw InvalidArgument("bytes=" + std::to_string(bytes) + " must be a multiple of 512 up to 8192, batch=" +
                          std::to_string(batch) + " 1 or more");
  }
  nvme::SoftSettings settings;
  settings.namespaces.push_back({kNamespaceBytes, "", kBlock, 0});
  settings.max_entries = 65536;
  auto owned = nvme::make_soft_transport(settings, nullptr);
  nvme::SoftTransport& device = *owned;
  nvme::Controller controller(std::move(owned), {});
  const auto queue = controller.make_queue_pair(depth);
  const nvme::DmaMemory memory = device.allocate(8192, MemoryKind::kHost);
  const nvme::DataPointer data = nvme::prp_pointer(memory.iova(), bytes > 4096 ? memory.iova() + 4096 : 0);
  device.drive_by_hand();
  const std::uint64_t places = kNamespaceBytes / bytes;
  std::uint64_t sent = 0;
  std::uint64_t done = 0;
  std::uint64_t failed = 0;
  const TimePoint begin = Clock::now();
  while (done < commands) {
    for (std::uint32_t i = 0; i < batch && sent < commands && queue->has_room(); ++i, ++sent) {
      queue->submit(nvme::make_read(1, sent % places * (bytes / kBlock), bytes / kBlock, 0, data));
    }
    queue->ring();
    device.step();
    done += queue->poll([&failed](std::uint16_t, const nvme::Completion& entry) {
      failed += nvme::status_of(entry) != 0 ? 1 : 0;
    });
  }
  const Duration taken = Clock::now() - begin;
  // Disabled by hand: nobody else drives the controller any more.
  device.write32(nvme::kCc, 0);
  device.step();
  if (failed != 0) {
    throw SystemError(EIO, std::to_string(failed) + " commands failed");
  }
  return taken;
}

}  // namespace tutti::runtime::testing
