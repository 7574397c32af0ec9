// SPDX-License-Identifier: Apache-2.0
// What an operation is said to have moved where one data path failed and the one below it did, too.
#include <cerrno>
#include <cstdint>
#include <memory>
#include <vector>

#include "check.hpp"
#include "tutti/runtime/detail/paths.hpp"

using namespace tutti::runtime;
using namespace tutti::runtime::detail;

namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kLength = 8 * kPage;

/// Ends each operation in submit() as it is told; `done` counts from the operation's front.
class ToldPath final : public DataPath {
 public:
  ToldPath(std::int32_t status, std::uint64_t done) : status_(status), done_(done) {}
  void start(CompletionSink& sink) override { sink_ = &sink; }
  std::unique_ptr<Target> open(const TargetUri& /*uri*/, bool /*writable*/) override { return nullptr; }
  void submit(std::span<const IoOp> ops) override {
    std::vector<IoOp> ended(ops.begin(), ops.end());
    for (IoOp& op : ended) {
      CHECK(op.done == 0 && op.status == 0);
      // The last one of a call succeeds where all but it fail.
      const bool good = op.item == 3 || status_ == 0;
      op.status = good ? 0 : status_;
      op.done = good ? op.length : done_;
    }
    sink_->complete(ended);
  }
  void shutdown() noexcept override {}
  [[nodiscard]] DataPathCaps caps() const override { return {}; }

 private:
  std::int32_t status_;
  std::uint64_t done_;
  CompletionSink* sink_ = nullptr;
};

struct Ended final : CompletionSink {
  void complete(std::span<const IoOp> ops) noexcept override {
    seen.insert(seen.end(), ops.begin(), ops.end());
  }
  std::vector<IoOp> seen;
};

std::vector<IoOp> run(std::uint64_t upper_done, std::int32_t lower_status, std::uint64_t lower_done) {
  const auto path = make_stepping_path(
      std::make_unique<ToldPath>(EIO, upper_done),
      [&] { return std::make_unique<ToldPath>(lower_status, lower_done); }, 1000, nullptr);
  Ended ended;
  path->start(ended);
  std::vector<IoOp> ops(4);
  for (std::uint32_t item = 0; item < ops.size(); ++item) {
    ops[item].item = item;
    ops[item].length = kLength;
  }
  path->submit(ops);
  path->shutdown();
  CHECK(ended.seen.size() == ops.size());
  return ended.seen;
}

void check(std::uint64_t upper_done, std::int32_t lower_status, std::uint64_t lower_done,
           std::uint64_t moved) {
  bool seen[4] = {};
  for (const IoOp& op : run(upper_done, lower_status, lower_done)) {
    CHECK(!seen[op.item]);
    seen[op.item] = true;
    const bool good = op.item == 3 || lower_status == 0;
    CHECK(op.status == (good ? 0 : lower_status));
    CHECK(op.done == (good ? kLength : moved));
  }
}

}  // namespace

int main() {
  check(2 * kPage, ECANCELED, 0, 2 * kPage);
  check(2 * kPage, EIO, kPage, 2 * kPage);
  check(2 * kPage, EIO, 5 * kPage, 5 * kPage);
  check(0, ECANCELED, 0, 0);
  check(2 * kPage, 0, 0, kLength);
  return 0;
}
