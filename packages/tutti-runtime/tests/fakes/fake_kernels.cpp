// SPDX-License-Identifier: Apache-2.0
// The driver of fake_cuda.cpp with the kernels of csrc/nvme/cuda/issue_kernel.cu: a thread plays a warp.
#include "fake_cuda.cpp"

#include "tutti/runtime/nvme/backoff.hpp"
#include "tutti/runtime/nvme/core/answer.hpp"
#include "tutti/runtime/nvme/core/issue.hpp"

namespace {

using namespace tutti::runtime::nvme;

class Warp {
 public:
  static std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                      std::chrono::nanoseconds(1));
  }
  void pause(std::uint32_t round) {
    if (round == 0) {
      backoff_.reset();
    }
    backoff_.pause();
  }

 private:
  Backoff backoff_;
};

template <typename T>
T parameter(void** parameters, int number) {
  return *static_cast<T*>(parameters[number]);
}

/// Every warp of the grid, at the same time.
template <typename F>
void run_warps(unsigned count, F warp) {
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < count; ++i) {
    threads.emplace_back([warp, i] {
      Warp host;
      LoopTeam<LaneState, Warp> team(host);
      warp(team, i);
    });
  }
  for (std::thread& each : threads) {
    each.join();
  }
}

/// Whether a GPU can: memory of its own, or pinned.
bool reaches(const void* address, std::uint64_t size) {
  const std::lock_guard lock(the_mutex);
  const auto first = reinterpret_cast<std::uint64_t>(address);
  const auto* const range = find(first);
  return range != nullptr && first + size <= range->first + range->second.size;
}

bool reaches(const IssueLane& lane) {
  return reaches(&lane, sizeof lane) && reaches(lane.sq.entries, lane.sq.depth * sizeof(Command)) &&
         reaches(lane.cq.entries, lane.cq.depth * sizeof(Completion)) &&
         reaches(lane.sq_doorbell, sizeof(std::uint32_t)) && reaches(lane.cq_doorbell, sizeof(std::uint32_t));
}

constexpr int kNotFound = 500;
constexpr int kIllegalAddress = 700;
constexpr const char* kServe = "tutti_nvme_serve";
constexpr const char* kAnswer = "tutti_nvme_answer";

/// With copies of its parameters.
std::function<void()> make_kernel(const void* function, unsigned blocks, unsigned threads,
                                  void** parameters) {
  const auto warps = blocks * (threads / kTeamLanes);
  if (function == kServe) {
    const auto ring = parameter<LayerRing>(parameters, 0);
    auto* const lanes = parameter<IssueLane*>(parameters, 1);
    const auto count = std::min(parameter<std::uint32_t>(parameters, 2), warps);
    const auto until = parameter<std::uint64_t>(parameters, 3);
    return ([=] { run_warps(count, [=](auto& team, unsigned i) { serve(team, ring, lanes + i, until); }); });
  }
  const auto* const lanes = parameter<const AnswerLane*>(parameters, 0);
  const auto count = std::min(parameter<std::uint32_t>(parameters, 1), warps);
  const auto* const stop = parameter<const std::uint32_t*>(parameters, 2);
  return ([=] { run_warps(count, [=](auto& team, unsigned i) { answer(team, lanes[i], stop); }); });
}

}  // namespace

extern "C" {

int cuMemsetD8Async(std::uint64_t pointer, unsigned char value, std::size_t size, Stream* stream) {
  first_use(stream, "memset");
  return enqueue(stream, [=] { std::memset(reinterpret_cast<void*>(pointer), value, size); });
}
int cuModuleLoadData(void** module, const void* image) {
  waiting_call("cuModuleLoadData");
  *module = const_cast<void*>(image);
  return image != nullptr ? 0 : kInvalidValue;
}
int cuModuleUnload(void*) {
  waiting_call("cuModuleUnload");
  return 0;
}
int cuModuleGetFunction(void** function, void*, const char* name) {
  for (const char* known : {kServe, kAnswer}) {
    if (std::string(known) == name) {
      *function = const_cast<char*>(known);
      return 0;
    }
  }
  return kNotFound;
}
int cuLaunchKernel(void* function, unsigned grid_x, unsigned, unsigned, unsigned block_x, unsigned, unsigned,
                   unsigned, Stream* stream, void** parameters, void**) {
  first_use(stream, static_cast<const char*>(function));
  pass();
  if (function == kServe) {
    const auto* const lanes = parameter<IssueLane*>(parameters, 1);
    const auto count = parameter<std::uint32_t>(parameters, 2);
    if (!std::all_of(lanes, lanes + count, [](const IssueLane& lane) { return reaches(lane); })) {
      return kIllegalAddress;
    }
  }
  const std::function<void()> kernel = make_kernel(function, grid_x, block_x, parameters);
  const int priority = stream->priority;
  {
    const std::lock_guard lock(kernels_mutex);
    kernels.insert(priority);
  }
  return enqueue(stream, [kernel, priority] {
    kernel();
    const std::lock_guard lock(kernels_mutex);
    kernels.erase(kernels.find(priority));
    kernels_left.notify_all();
  });
}
}
