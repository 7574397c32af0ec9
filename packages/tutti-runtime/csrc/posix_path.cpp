// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cerrno>

#include "tutti/runtime/detail/file_op.hpp"
#include "tutti/runtime/detail/op_pool.hpp"
#include "tutti/runtime/detail/paths.hpp"

namespace tutti::runtime::detail {
namespace {

std::int64_t issue(const IoOp& op) noexcept {
  const int fd = file_of(op).fd();
  std::byte* address = op.address + op.done;
  const std::uint64_t left = op.length - op.done;
  const auto offset = static_cast<off_t>(file_offset(op));
  ssize_t result = 0;
  switch (op.direction) {
    case Direction::kRead:
      result = ::pread(fd, address, left, offset);
      break;
    case Direction::kWrite:
      result = ::pwrite(fd, address, left, offset);
      break;
    case Direction::kFlush:
      result = ::fdatasync(fd);
      break;
  }
  return result < 0 ? -static_cast<std::int64_t>(errno) : result;
}

class PosixPath final : public DataPath {
 public:
  PosixPath(FileSettings files, std::uint32_t threads)
      : opener_(std::move(files)), pool_("tutti-posix", threads, [this](IoOp& op) { run(op); }) {}

  void start(CompletionSink& sink) override { pool_.start(sink); }

  std::unique_ptr<Target> open(const TargetUri& uri, bool writable) override {
    return opener_.open(uri, writable);
  }

  void submit(std::span<const IoOp> ops) override { pool_.submit(ops); }
  void shutdown() noexcept override { pool_.shutdown(); }
  DataPathCaps caps() const override {
    return {"posix", opener_.policy_name(), {}, {}, opener_.max_open_files()};
  }
  std::uint64_t direct_fallbacks() const noexcept override { return opener_.fallbacks(); }

 private:
  void run(IoOp& op) noexcept {
    FileTarget& file = file_of(op);
    op.status = file.begin_use(op.direction, Patience::kWait);
    if (op.status != 0) {
      return;
    }
    while (advance(op, issue(op), opener_) == Step::kAgain) {
    }
    file.end_use(op.direction, op.status == 0);
  }

  FileOpener opener_;
  OpPool pool_;  // last: its threads use the opener
};

}  // namespace

std::unique_ptr<DataPath> make_posix_path(FileSettings files, std::uint32_t threads) {
  return std::make_unique<PosixPath>(std::move(files), threads);
}

}  // namespace tutti::runtime::detail
