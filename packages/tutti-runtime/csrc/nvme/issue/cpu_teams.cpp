// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
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

/// The thread of one lane, which serves the starts that it is given and sleeps between them.
class Worker {
 public:
  Worker(const LayerRing& ring, IssueLane* lane) : ring_(ring), lane_(lane) {
    thread_ = detail::start_io_thread("tutti-team", [this] { work(); });
  }
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void start(std::uint64_t until) {
    const std::lock_guard lock(mutex_);
    wanted_ = until;
    changed_.notify_all();
  }
  void wait_idle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return wanted_ == 0 && !busy_; });
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ending_ || wanted_ != 0; });
      if (wanted_ == 0) {
        return;
      }
      const std::uint64_t until = std::exchange(wanted_, 0);
      busy_ = true;
      lock.unlock();
      ThreadHost host;
      LoopTeam<LaneState, ThreadHost> team(host);
      serve(team, ring_, lane_, until);
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  const LayerRing& ring_;
  IssueLane* const lane_;
  std::mutex mutex_;          ///< guards the next three
  std::uint64_t wanted_ = 0;  ///< the latest start that was not begun, or 0
  bool busy_ = false;
  bool ending_ = false;
  std::condition_variable changed_;
  std::thread thread_;
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

  void start(const LayerRing& ring, IssueLane* lanes, std::uint32_t count, std::uint64_t until) override {
    for (std::uint32_t i = 0; i < count; ++i) {
      if (i == workers_.size()) {
        workers_.push_back(std::make_unique<Worker>(ring, lanes + i));
      }
      workers_[i]->start(until);
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
    for (const auto& each : workers_) {
      each->wait_idle();
    }
    for (std::thread& each : answering_) {
      each.join();
    }
    answering_.clear();
  }

 private:
  struct alignas(128) Line {
    std::byte bytes[128];
  };
  std::vector<std::unique_ptr<Line[]>> memory_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::thread> answering_;
};

}  // namespace

std::unique_ptr<TeamHost> make_cpu_teams() { return std::make_unique<CpuTeams>(); }

}  // namespace tutti::runtime::nvme
