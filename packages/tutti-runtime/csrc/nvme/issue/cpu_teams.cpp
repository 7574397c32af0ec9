// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstring>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "tutti/runtime/detail/io_thread.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/nvme/backoff.hpp"
#include "tutti/runtime/nvme/core/issue.hpp"
#include "tutti/runtime/nvme/team_host.hpp"

namespace tutti::runtime::nvme {
namespace {

class ThreadHost {
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

class CpuTeams final : public TeamHost {
 public:
  CpuTeams() = default;
  ~CpuTeams() override { CpuTeams::join(); }

  MemoryKind queue_memory() const noexcept override { return MemoryKind::kHost; }
  std::byte* shared(std::uint64_t size) override {
    auto memory = std::make_unique<Line[]>((size + sizeof(Line) - 1) / sizeof(Line));
    auto* const address = reinterpret_cast<std::byte*>(memory.get());
    memory_.push_back(std::move(memory));
    return address;
  }
  std::byte* local(std::uint64_t size) override { return shared(size); }
  void upload(std::byte* local, const void* from, std::uint64_t size) override {
    std::memcpy(local, from, size);
  }
  void download(void* to, const std::byte* local, std::uint64_t size) override {
    std::memcpy(to, local, size);
  }

  void start(const LayerRing& ring, IssueLane* lanes, std::uint32_t count) override {
    end();  // one owner of a lane at a time
    for (std::uint32_t i = 0; i < count; ++i) {
      threads_.push_back(detail::start_io_thread("tutti-team", [&ring, lane = lanes + i] {
        ThreadHost host;
        LoopTeam<LaneState, ThreadHost> team(host);
        serve(team, ring, lane);
      }));
    }
  }
  void start_answering(const AnswerLane* lanes, std::uint32_t count, const std::uint32_t* stop) override {
    for (std::uint32_t i = 0; i < count; ++i) {
      answering_.push_back(detail::start_io_thread("tutti-answer", [lane = lanes[i], stop] {
        ThreadHost host;
        LoopTeam<LaneState, ThreadHost> team(host);
        answer(team, lane, stop);
      }));
    }
  }
  void join() override {
    end();
    for (std::thread& each : answering_) {
      each.join();
    }
    answering_.clear();
  }

 private:
  struct alignas(128) Line {
    std::byte bytes[128];
  };
  void end() noexcept {
    for (std::thread& each : threads_) {
      each.join();
    }
    threads_.clear();
  }

  std::vector<std::unique_ptr<Line[]>> memory_;
  std::vector<std::thread> threads_;
  std::vector<std::thread> answering_;
};

}  // namespace

std::unique_ptr<TeamHost> make_cpu_teams() { return std::make_unique<CpuTeams>(); }

}  // namespace tutti::runtime::nvme
