// SPDX-License-Identifier: Apache-2.0
// The teams of layers as warps: one kernel for any number of drives, queues and layers.
#include "tutti/runtime/nvme/core/answer.hpp"
#include "tutti/runtime/nvme/core/issue.hpp"

using namespace tutti::runtime::nvme;

/// Warp w of block b serves lane b * (warps of a block) + w.
extern "C" __global__ __launch_bounds__(256, 1) void tutti_nvme_serve(LayerRing ring, IssueLane* lanes,
                                                                      std::uint32_t count,
                                                                      std::uint64_t until) {
  const std::uint32_t warps = blockDim.x / kTeamLanes;
  const std::uint32_t which = blockIdx.x * warps + threadIdx.x / kTeamLanes;
  if (which < count) {
    WarpTeam<LaneState> team;
    serve(team, ring, lanes + which, until);
  }
}

/// Block b plays the drive on lane b.
extern "C" __global__ __launch_bounds__(32) void tutti_nvme_answer(const AnswerLane* lanes,
                                                                   std::uint32_t count,
                                                                   const std::uint32_t* stop) {
  if (blockIdx.x < count) {
    WarpTeam<LaneState> team;
    answer(team, lanes[blockIdx.x], stop);
  }
}
