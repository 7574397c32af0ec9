// SPDX-License-Identifier: Apache-2.0
// Parts of striped operations completing in any order and on many threads; and opening side by side.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "tutti/runtime/detail/paths.hpp"
#include "tutti/runtime/detail/stripe.hpp"
#include "tutti/runtime/open_batch.hpp"
#include "tutti/runtime/storage_runtime.hpp"

using namespace tutti::runtime;
using namespace tutti::runtime::detail;

namespace {

constexpr std::uint64_t kPage = 4096;

class Shard final : public Target {
 public:
  Shard(std::string path, std::uint64_t number)
      : Target(1 << 20, true), path_(std::move(path)), number_(number) {}
  [[nodiscard]] TargetInfo info() const override {
    TargetInfo info = Target::info();
    info.path = path_;
    info.inode = number_;
    return info;
  }

 private:
  std::string path_;
  std::uint64_t number_;
};

/// Keeps what is submitted until the test completes it.
class HeldPath final : public DataPath {
 public:
  void start(CompletionSink& sink) override { sink_ = &sink; }
  std::unique_ptr<Target> open(const TargetUri& uri, bool /*writable*/) override {
    if (slow) {
      meet();
    }
    return std::make_unique<Shard>(uri.path, opened.fetch_add(1));
  }
  void submit(std::span<const IoOp> ops) override {
    std::lock_guard lock(mutex);
    held.insert(held.end(), ops.begin(), ops.end());
  }
  void withdraw(const OpFilter& filter, std::int32_t status) noexcept override {
    for (const IoOp& op : std::vector<IoOp>(held)) {
      if (filter(op)) {
        finish(op, status, 0);
      }
    }
  }
  void shutdown() noexcept override {}
  [[nodiscard]] DataPathCaps caps() const override { return {}; }

  void finish(IoOp op, std::int32_t status, std::uint64_t done) {
    op.status = status;
    op.done = done;
    sink_->complete({&op, 1});
  }

  /// Waits until four openers are here at once, but for ever not.
  void meet() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(opened < 8 ? 1 : 10000);
    here.fetch_add(1);
    while (here.load() < 4 && !together && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
    together = together || here.load() >= 4;
    here.fetch_sub(1);
  }

  std::mutex mutex;
  std::vector<IoOp> held;
  std::atomic<std::uint64_t> opened{0};
  bool slow = false;
  std::atomic<int> here{0};
  std::atomic<bool> together{false};

 private:
  CompletionSink* sink_ = nullptr;
};

class Sink final : public CompletionSink {
 public:
  void complete(std::span<const IoOp> ops) noexcept override {
    std::lock_guard lock(mutex);
    finished.insert(finished.end(), ops.begin(), ops.end());
  }
  std::mutex mutex;
  std::vector<IoOp> finished;
};

/// A striped path on shards that do nothing by themselves.
struct Fixture {
  explicit Fixture(const std::string& uri) {
    auto next = std::make_unique<HeldPath>();
    held = next.get();
    path = make_striped_path(std::move(next), {});
    path->start(sink);
    target = path->open(parse_target_uri(uri), true);
    memory.address = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 30);
  }

  IoOp op(Direction direction, std::uint64_t offset, std::uint64_t length, std::uint32_t item = 0) {
    IoOp made;
    made.direction = direction;
    made.target = target.get();
    made.memory = direction == Direction::kFlush ? nullptr : &memory;
    made.address = direction == Direction::kFlush ? nullptr : memory.address + item * length;
    made.target_offset = offset;
    made.length = length;
    made.batch = this;
    made.item = item;
    return made;
  }

  HeldPath* held = nullptr;
  Sink sink;
  std::unique_ptr<DataPath> path;
  std::unique_ptr<Target> target;
  Memory memory;
};

constexpr const char* kThree = "striped://x?roots=/a,/b,/c&unit=4096";

void the_earliest_failure_counts() {
  for (const bool backwards : {false, true}) {
    Fixture f(kThree);
    const IoOp op = f.op(Direction::kRead, kPage, 5 * kPage);
    f.path->submit({&op, 1});
    CHECK(f.held->held.size() == 5);
    std::vector<std::size_t> order{0, 1, 2, 3, 4};
    if (backwards) {
      std::reverse(order.begin(), order.end());
    }
    for (const std::size_t i : order) {
      CHECK(f.sink.finished.empty());
      const std::int32_t status = i == 2 ? EIO : i == 4 ? ENODEV : 0;
      f.held->finish(f.held->held[i], status, i == 2 ? 512 : status != 0 ? 0 : kPage);
    }
    CHECK(f.sink.finished.size() == 1);
    const IoOp& done = f.sink.finished[0];
    CHECK(done.status == EIO && done.done == 2 * kPage + 512);
    CHECK(done.target == f.target.get() && done.batch == &f && !done.part);
  }
}

void a_flush_reaches_every_shard() {
  Fixture f(kThree);
  const IoOp op = f.op(Direction::kFlush, 0, 0);
  f.path->submit({&op, 1});
  CHECK(f.held->held.size() == 3);
  f.held->finish(f.held->held[1], EIO, 0);
  f.held->finish(f.held->held[0], 0, 0);
  CHECK(f.sink.finished.empty());
  f.held->finish(f.held->held[2], 0, 0);
  CHECK(f.sink.finished.size() == 1 && f.sink.finished[0].status == EIO && f.sink.finished[0].done == 0);
}

void what_is_withdrawn_is_the_whole_operation() {
  Fixture f(kThree);
  const std::vector<IoOp> ops{f.op(Direction::kWrite, 0, 3 * kPage, 7),
                              f.op(Direction::kWrite, 0, 3 * kPage, 8)};
  f.path->submit(ops);
  f.path->withdraw([&](const IoOp& asked) { return asked.batch == &f && asked.item == 8 && !asked.part; },
                   ECANCELED);
  CHECK(f.sink.finished.size() == 1);
  CHECK(f.sink.finished[0].item == 8 && f.sink.finished[0].status == ECANCELED);
  for (std::size_t part = 0; part < 3; ++part) {
    f.held->finish(f.held->held[part], 0, kPage);
  }
  CHECK(f.sink.finished.size() == 2);
  CHECK(f.sink.finished[1].item == 7 && f.sink.finished[1].status == 0);
}

void parts_complete_on_many_threads() {
  Fixture f("striped://x?roots=/a,/b,/c,/d&unit=4096");
  constexpr std::uint32_t count = 64;
  std::vector<IoOp> ops;
  for (std::uint32_t i = 0; i < count; ++i) {
    ops.push_back(f.op(Direction::kWrite, (i % 8) * kPage, 8 * kPage, i));
  }
  f.path->submit(ops);
  CHECK(f.held->held.size() == 8 * count);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&f, t] {
      for (std::size_t i = t; i < f.held->held.size(); i += 4) {
        const IoOp& part = f.held->held[i];
        const bool bad = i % 8 == 3 && (i / 8) % 2 == 1;
        f.held->finish(part, bad ? EIO : 0, bad ? 0 : part.length);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(f.sink.finished.size() == count);
  for (const IoOp& op : f.sink.finished) {
    CHECK(op.status == (op.item % 2 == 1 ? EIO : 0));
    CHECK(op.done == (op.item % 2 == 1 ? 3 * kPage : 8 * kPage));
  }
}

void sizes_near_the_end_of_the_numbers() {
  const std::vector<std::uint64_t> huge(64, INT64_MAX);
  CHECK(striped_size({kPage, 64, 5}, huge) == INT64_MAX);
  CHECK(striped_size({kPage, 1, 0}, {huge.data(), 1}) == INT64_MAX);
  const std::vector<std::uint64_t> uneven{kPage, INT64_MAX, 2 * kPage};
  CHECK(striped_size({kPage, 3, 0}, uneven) == 3 * kPage);
  CHECK(striped_size({kPage, 3, 1}, uneven) == 5 * kPage);
}

void slow_files_are_opened_side_by_side() {
  auto path = std::make_unique<HeldPath>();
  HeldPath* const held = path.get();
  held->slow = true;
  StorageRuntime runtime(std::move(path), {});
  std::vector<std::string> uris;
  for (int i = 0; i < 64; ++i) {
    uris.push_back(i == 40 ? "bad" : "file:///f" + std::to_string(i));
  }
  const auto outcomes = open_batch(runtime, uris, true);
  CHECK(held->together);
  for (std::size_t i = 0; i < uris.size(); ++i) {
    CHECK((outcomes[i].error != nullptr) == (i == 40));
    CHECK(i == 40 || runtime.query(outcomes[i].target).uri == uris[i]);
  }
}

}  // namespace

int main() {
  the_earliest_failure_counts();
  a_flush_reaches_every_shard();
  what_is_withdrawn_is_the_whole_operation();
  parts_complete_on_many_threads();
  sizes_near_the_end_of_the_numbers();
  slow_files_are_opened_side_by_side();
}
