// SPDX-License-Identifier: Apache-2.0
// A team is 32 lanes that work in step: a warp of the GPU, or a loop on the CPU. Code for teams is written
// once, against these functions:
//
//   each(f)     f(lane, state) for every lane; what lanes wrote is visible to all afterwards
//   vote(f)     bit i is what f(i, state) says
//   sums(f, g)  adds f over the lanes: g(lane, state, sum of the lanes before); @returns the whole sum
//   pick(i, f)  f(i, state) of lane i, for all
//   lead(f)     f() once, for all
//   now_ns(), pause(round)
//
// `state` is the lane's own. Everything else in such code is the same for all lanes.
#pragma once

#include <cstdint>

#include "tutti/runtime/nvme/core/annotate.hpp"

namespace tutti::runtime::nvme {

inline constexpr std::uint32_t kTeamLanes = 32;

/// Lanes as a loop. `Host` has now_ns() and pause(round).
template <typename State, typename Host>
class LoopTeam {
 public:
  explicit LoopTeam(Host& host) : host_(host) {}

  template <typename F>
  void each(F f) {
    for (std::uint32_t lane = 0; lane < kTeamLanes; ++lane) {
      f(lane, states_[lane]);
    }
  }
  template <typename F>
  std::uint32_t vote(F f) {
    std::uint32_t mask = 0;
    for (std::uint32_t lane = 0; lane < kTeamLanes; ++lane) {
      mask |= f(lane, states_[lane]) ? 1U << lane : 0U;
    }
    return mask;
  }
  template <typename F, typename G>
  std::uint64_t sums(F f, G g) {
    std::uint64_t sum = 0;
    for (std::uint32_t lane = 0; lane < kTeamLanes; ++lane) {
      g(lane, states_[lane], sum);
      sum += f(lane, states_[lane]);
    }
    return sum;
  }
  template <typename F>
  std::uint64_t pick(std::uint32_t lane, F f) {
    return f(lane, states_[lane]);
  }
  template <typename F>
  std::uint64_t lead(F f) {
    return f();
  }
  std::uint64_t now_ns() { return host_.now_ns(); }
  void pause(std::uint32_t round) { host_.pause(round); }

 private:
  Host& host_;
  State states_[kTeamLanes]{};
};

#if defined(__CUDACC__)
/// Lanes of a warp. All of its threads call every function.
template <typename State>
class WarpTeam {
 public:
  template <typename F>
  __device__ void each(F f) {
    f(lane(), state_);
    __syncwarp();
  }
  template <typename F>
  __device__ std::uint32_t vote(F f) {
    return __ballot_sync(kAll, f(lane(), state_));
  }
  template <typename F, typename G>
  __device__ std::uint64_t sums(F f, G g) {
    const unsigned long long own = f(lane(), state_);
    unsigned long long sum = own;
    for (unsigned step = 1; step < kTeamLanes; step *= 2) {
      const unsigned long long below = __shfl_up_sync(kAll, sum, step);
      sum += lane() >= step ? below : 0;
    }
    g(lane(), state_, static_cast<std::uint64_t>(sum - own));
    return __shfl_sync(kAll, sum, kTeamLanes - 1);
  }
  template <typename F>
  __device__ std::uint64_t pick(std::uint32_t from, F f) {
    const unsigned long long value = lane() == from ? f(from, state_) : 0;
    return __shfl_sync(kAll, value, static_cast<int>(from));
  }
  template <typename F>
  __device__ std::uint64_t lead(F f) {
    const unsigned long long value = lane() == 0 ? f() : 0;
    __syncwarp();
    return __shfl_sync(kAll, value, 0);
  }
  __device__ std::uint64_t now_ns() {
    return lead([] {
      std::uint64_t now;
      asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)::"memory");
      return now;
    });
  }
  __device__ void pause(std::uint32_t round) { __nanosleep(round < 64 ? 0U : 500U); }

 private:
  static constexpr unsigned kAll = 0xffffffffU;
  __device__ static std::uint32_t lane() { return threadIdx.x % kTeamLanes; }
  State state_{};
};
#endif

}  // namespace tutti::runtime::nvme
