// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tutti/runtime/data_path.hpp"
#include "tutti/runtime/nvme/core/answer.hpp"
#include "tutti/runtime/nvme/core/layer.hpp"

namespace tutti::runtime::nvme {

/// Where the teams that submit run, and the memory that they and the host work on. Not thread-safe.
class TeamHost {
 public:
  TeamHost() = default;
  virtual ~TeamHost() = default;
  TeamHost(const TeamHost&) = delete;
  TeamHost& operator=(const TeamHost&) = delete;

  /// What queues must lie in.
  [[nodiscard]] virtual MemoryKind queue_memory() const noexcept = 0;
  /// Memory under one address for both, zeroed, good as long as this object. @throws SystemError
  [[nodiscard]] virtual std::byte* shared(std::uint64_t size) = 0;
  /// Memory near the teams, zeroed; only upload() may touch it from the host. @throws SystemError
  [[nodiscard]] virtual std::byte* local(std::uint64_t size) = 0;
  virtual void upload(std::byte* local, const void* from, std::uint64_t size) = 0;
  /// Bytes of local memory, for tests of what is only there. @throws SystemError
  virtual void download(void* to, const std::byte* local, std::uint64_t size) = 0;

  /// Starts a team on every lane, for the layers up to number `until`, behind those that were started before.
  /// Does not wait for them. `ring` and `lanes` stay the same. @throws SystemError
  virtual void start(const LayerRing& ring, IssueLane* lanes, std::uint32_t count, std::uint64_t until) = 0;
  /// Starts a team on every drive's side of a queue; it ends with `stop`.
  virtual void start_answering(const AnswerLane* lanes, std::uint32_t count, const std::uint32_t* stop) = 0;
  /// Waits until all teams have left. @throws SystemError when the device failed.
  virtual void join() = 0;
  /// 0, or the errno that stands for a failure of the device, after which no layer ends any more.
  [[nodiscard]] virtual int check() noexcept { return 0; }
};

/// A thread for each lane. For tests, and where there is no GPU.
[[nodiscard]] std::unique_ptr<TeamHost> make_cpu_teams();

/// A warp for each lane, on at most `blocks` thread blocks (1 to 8) of one kernel.
/// @throws InvalidArgument for a setting outside its range; SystemError: ENOTSUP when this library was built
/// without the kernel or the device cannot use pinned memory under the host's addresses, and what the driver
/// says.
[[nodiscard]] std::unique_ptr<TeamHost> make_cuda_teams(int device, std::uint32_t blocks);

/// Why make_cuda_teams() cannot work in this build; empty when the kernel is in it.
[[nodiscard]] std::string missing_kernel();

}  // namespace tutti::runtime::nvme
