// SPDX-License-Identifier: Apache-2.0
// Many threads on every data path at once: meant for the sanitizers.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "tutti/runtime/config.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/storage_runtime.hpp"

using namespace tutti::runtime;

namespace {

constexpr std::uint64_t kBlock = 16384;
constexpr std::uint64_t kBlocks = 16;
constexpr int kThreads = 4;
constexpr int kRounds = 60;

std::byte* aligned_memory(std::uint64_t size) {
  void* page = std::aligned_alloc(kMemoryAlignment, size);
  CHECK(page != nullptr);
  std::memset(page, 0, size);
  return static_cast<std::byte*>(page);
}

std::vector<IoRequest> requests(Direction direction, std::uint64_t memory, std::uint64_t target) {
  std::vector<IoRequest> batch;
  for (std::uint64_t i = 0; i < kBlocks; ++i) {
    const std::uint64_t place = (i * 7 % kBlocks) * kBlock;
    batch.push_back({static_cast<std::uint32_t>(direction), 0, memory, i * kBlock, target, place, kBlock});
  }
  return batch;
}

// Resubmits what found no room, as a caller must.
void run(StorageRuntime& runtime, std::vector<IoRequest> batch) {
  while (!batch.empty()) {
    std::vector<std::int32_t> errors(batch.size());
    const auto handle = runtime.submit(batch, errors);
    std::vector<IoRequest> left;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      CHECK(errors[i] == 0 || errors[i] == EAGAIN);
      if (errors[i] != 0) {
        left.push_back(batch[i]);
      }
    }
    if (handle) {
      const auto done = runtime.wait(*handle, Duration(60));
      CHECK(done);
      for (const int status : done->status) {
        CHECK(status == 0);
      }
    } else {
      std::this_thread::yield();
    }
    batch = std::move(left);
  }
}

void work(StorageRuntime& runtime, const std::string& uri, int number) {
  const std::uint64_t size = kBlock * kBlocks;
  std::byte* const address = aligned_memory(size);
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t memory = runtime.register_memory(reinterpret_cast<std::uint64_t>(address), size);
    const std::uint64_t target = runtime.open(uri, true);
    std::memset(address, number * kRounds + round, size);
    run(runtime, requests(Direction::kWrite, memory, target));
    std::memset(address, 0, size);
    run(runtime, requests(Direction::kRead, memory, target));
    for (std::uint64_t i = 0; i < size; ++i) {
      CHECK(address[i] == static_cast<std::byte>(number * kRounds + round));
    }
    static_cast<void>(runtime.stats());
    runtime.close(target);
    runtime.unregister_memory(memory);
  }
  std::free(address);
}

void stress(StorageRuntime& runtime, const std::vector<std::string>& uris) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&runtime, &uris, i] { work(runtime, uris[static_cast<std::size_t>(i)], i); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const Stats stats = runtime.stats();
  CHECK(stats.accepted == stats.completed && stats.failed == 0);
  CHECK(stats.completed == std::uint64_t{2} * kThreads * kRounds * kBlocks);
  CHECK(runtime.shutdown(Duration(30)));
}

}  // namespace

int main() {
  std::vector<std::string> files;
  std::vector<std::string> objects;
  for (int i = 0; i < kThreads; ++i) {
    char name[] = "/tmp/tutti-stress-XXXXXX";
    const int fd = ::mkstemp(name);
    CHECK(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(kBlock * kBlocks)) == 0);
    ::close(fd);
    files.push_back(std::string("file://") + name);
    objects.push_back("mem://t" + std::to_string(i) + "?size=" + std::to_string(kBlock * kBlocks));
  }
  stress(*make_memory_runtime(24), objects);
  for (const DataPathChoice path : {DataPathChoice::kPosix, DataPathChoice::kUring}) {
    for (const DirectPolicy direct : {DirectPolicy::kAuto, DirectPolicy::kOff}) {
      FileConfig config;
      config.data_path = path;
      config.direct = direct;
      config.queue_depth = 8;
      config.max_in_flight = 24;
      try {
        stress(*make_file_runtime(config), files);
      } catch (const SystemError& error) {
        CHECK(path == DataPathChoice::kUring);
        std::fprintf(stderr, "skipped io_uring: %s\n", error.what());
      }
    }
  }
  for (const std::string& file : files) {
    ::unlink(file.c_str() + 7);
  }
}
