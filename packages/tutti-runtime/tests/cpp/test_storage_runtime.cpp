// SPDX-License-Identifier: Apache-2.0
// The runtime over a data path that finishes operations when, in what order and with what result the test
// says.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <thread>
#include <vector>

#include "check.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/storage_runtime.hpp"

using namespace tutti::runtime;

namespace {

constexpr std::uint64_t kSize = 1 << 20;

class ManualPath final : public DataPath {
 public:
  void start(CompletionSink& sink) override { sink_ = &sink; }
  std::unique_ptr<Target> open(const TargetUri& uri, bool writable) override {
    return std::make_unique<Target>(uri.size, writable);
  }
  void submit(std::span<const IoOp> ops) override {
    if (refuse) {
      throw std::bad_alloc();
    }
    held.insert(held.end(), ops.begin(), ops.end());
  }
  void shutdown() noexcept override { CHECK(held.empty()); }
  DataPathCaps caps() const override { return {"manual", "none", {}, {}, 0, {}}; }

  void finish(std::size_t index, std::int32_t status, std::uint64_t bytes) {
    IoOp op = held[index];
    held.erase(held.begin() + static_cast<std::ptrdiff_t>(index));
    op.status = status;
    op.done = bytes;
    sink_->complete({&op, 1});
  }

  std::vector<IoOp> held;
  bool refuse = false;

 private:
  CompletionSink* sink_ = nullptr;
};

struct World {
  explicit World(std::uint32_t max_in_flight = 64) {
    auto owned = std::make_unique<ManualPath>();
    path = owned.get();
    runtime = std::make_unique<StorageRuntime>(
        std::move(owned), StorageRuntime::Options{max_in_flight, "test", 1 << 20, nullptr});
    page =
        ::mmap(nullptr, kSize + kMemoryAlignment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    const auto address = reinterpret_cast<std::uint64_t>(page);
    memory = runtime->register_memory((address + kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment,
                                      kSize);
    target = runtime->open("mem://t?size=1048576", true);
  }
  ~World() {
    runtime.reset();
    ::munmap(page, kSize + kMemoryAlignment);
  }

  std::optional<std::uint64_t> submit(std::size_t count, std::vector<std::int32_t>* errors = nullptr) {
    std::vector<IoRequest> requests;
    for (std::size_t i = 0; i < count; ++i) {
      requests.push_back({1, 0, memory, i * kIoAlignment, target, i * kIoAlignment, kIoAlignment});
    }
    std::vector<std::int32_t> own(count, -1);
    const auto handle = runtime->submit(requests, own);
    if (errors != nullptr) {
      *errors = own;
    }
    return handle;
  }

  ManualPath* path;
  std::unique_ptr<StorageRuntime> runtime;
  void* page;
  std::uint64_t memory = 0;
  std::uint64_t target = 0;
};

void results_keep_the_order_of_submission() {
  World w;
  const auto handle = w.submit(5);
  for (const std::size_t index : {4, 0, 2, 0, 0}) {
    CHECK(!w.runtime->poll(*handle));
    CHECK(!w.runtime->wait(*handle, Duration(0)));
    const auto item = static_cast<std::int32_t>(w.path->held[index].item);
    w.path->finish(index, item == 3 ? ENOSPC : 0, static_cast<std::uint64_t>(item));
  }
  CHECK(w.runtime->poll(*handle));
  const auto done = w.runtime->wait(*handle, Duration(0));
  CHECK((done->status == std::vector<std::int32_t>{0, 0, 0, ENOSPC, 0}));
  CHECK((done->bytes == std::vector<std::uint64_t>{0, 1, 2, 3, 4}));
  CHECK_THROWS(InvalidHandle, w.runtime->wait(*handle, Duration(0)));
  CHECK(w.runtime->stats().failed == 1);
}

void room_is_given_back_item_by_item() {
  for (std::uint32_t k = 1; k <= 8; ++k) {
    World w(k);
    std::vector<std::int32_t> errors;
    const auto first = w.submit(8, &errors);
    CHECK(std::count(errors.begin(), errors.end(), 0) == k);
    CHECK(std::all_of(errors.begin() + k, errors.end(), [](int e) { return e == EAGAIN; }));
    CHECK(!w.submit(1));
    w.path->finish(k - 1, 0, kIoAlignment);
    const auto second = w.submit(2, &errors);
    CHECK((second && errors == std::vector<std::int32_t>{0, EAGAIN}));
    while (!w.path->held.empty()) {
      w.path->finish(0, 0, kIoAlignment);
    }
    CHECK(w.runtime->wait(*first, Duration(0))->status.size() == k);
    CHECK(w.runtime->wait(*second, Duration(0))->status.size() == 1);
    const Stats stats = w.runtime->stats();
    CHECK(stats.submitted == stats.accepted + stats.rejected && stats.accepted == stats.completed);
  }
}

void busy_and_abandoned() {
  World w;
  const auto handle = w.submit(2);
  CHECK_THROWS(Busy, w.runtime->close(w.target));
  CHECK_THROWS(Busy, w.runtime->unregister_memory(w.memory));
  w.runtime->abandon(*handle);
  CHECK_THROWS(InvalidHandle, w.runtime->poll(*handle));
  w.path->finish(0, 0, 0);
  CHECK_THROWS(Busy, w.runtime->close(w.target));
  w.path->finish(0, 0, 0);
  w.runtime->close(w.target);
  w.runtime->unregister_memory(w.memory);
  CHECK_THROWS(InvalidHandle, w.runtime->close(w.target));
  CHECK_THROWS(InvalidHandle, w.runtime->unregister_memory(w.memory));
}

void shutdown_drains() {
  World w;
  const auto handle = w.submit(1);
  CHECK(!w.runtime->shutdown(Duration(0)));
  CHECK(!w.runtime->stopped());
  CHECK_THROWS(Closed, w.submit(1));
  CHECK_THROWS(Closed, w.runtime->wait(*handle, Duration(0)));
  std::thread late([&] { w.path->finish(0, 0, 0); });
  CHECK(w.runtime->shutdown(Duration(30)));
  late.join();
  CHECK(w.runtime->stopped());
  CHECK(w.runtime->shutdown(Duration(0)));
}

void no_memory_in_the_data_path_fails_the_items_and_leaks_nothing() {
  World w;
  w.path->refuse = true;
  const auto handle = w.submit(3);
  CHECK((w.runtime->wait(*handle, Duration(0))->status == std::vector<std::int32_t>(3, ENOMEM)));
  w.runtime->close(w.target);
}

void a_tick_may_throw() {
  World w;
  const auto handle = w.submit(1);
  CHECK_THROWS(int, w.runtime->wait(*handle, std::nullopt, [] { throw 1; }));
  w.path->finish(0, 0, 7);
  CHECK(w.runtime->wait(*handle, std::nullopt)->bytes[0] == 7);
}

}  // namespace

int main() {
  results_keep_the_order_of_submission();
  room_is_given_back_item_by_item();
  busy_and_abandoned();
  shutdown_drains();
  no_memory_in_the_data_path_fails_the_items_and_leaks_nothing();
  a_tick_may_throw();
}
