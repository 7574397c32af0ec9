// SPDX-License-Identifier: Apache-2.0
// What one system call's result means for an operation, case by case.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "check.hpp"
#include "tutti/runtime/detail/file_op.hpp"

using namespace tutti::runtime;
using namespace tutti::runtime::detail;

namespace {

int temporary_file() {
  char name[] = "/tmp/tutti-file-op-XXXXXX";
  const int fd = ::mkstemp(name);
  CHECK(fd >= 0);
  ::unlink(name);
  return fd;
}

IoOp read_of(FileTarget& file, std::uint64_t length) {
  IoOp op;
  op.target = &file;
  op.length = length;
  return op;
}

void partial_results_continue() {
  FileOpener opener(DirectPolicy::kAuto);
  FileTarget file(temporary_file(), "x", 16384, true, false, true);
  IoOp op = read_of(file, 12288);
  CHECK(advance(op, 4096, opener) == Step::kAgain);
  CHECK(op.done == 4096);
  CHECK(advance(op, 8192, opener) == Step::kDone);
  CHECK(op.status == 0 && op.done == 12288);
}

void nothing_more_is_a_short_transfer() {
  FileOpener opener(DirectPolicy::kAuto);
  FileTarget file(temporary_file(), "x", 16384, true, false, true);
  IoOp op = read_of(file, 8192);
  CHECK(advance(op, 4096, opener) == Step::kAgain);
  CHECK(advance(op, 0, opener) == Step::kDone);
  CHECK(op.status == EIO && op.done == 4096);
}

void interruptions_are_bounded_and_forgotten_on_progress() {
  FileOpener opener(DirectPolicy::kAuto);
  FileTarget file(temporary_file(), "x", 1 << 20, true, false, true);
  IoOp op = read_of(file, 8192);
  for (int i = 0; i < 900; ++i) {
    CHECK(advance(op, i % 2 == 0 ? -EINTR : -EAGAIN, opener) == Step::kAgain);
  }
  CHECK(advance(op, 4096, opener) == Step::kAgain);
  CHECK(op.attempts == 0);
  int asked = 0;
  while (advance(op, -EAGAIN, opener) == Step::kAgain) {
    ++asked;
  }
  CHECK(asked > 10 && asked < 100000);
  CHECK(op.status == EAGAIN && op.done == 4096);
}

void einval_drops_o_direct_once() {
  FileOpener opener(DirectPolicy::kAuto);
  const int fd = temporary_file();
  const bool has_direct = ::fcntl(fd, F_SETFL, O_DIRECT) == 0;
  FileTarget file(fd, "x", 16384, true, true, true);
  IoOp first = read_of(file, 8192);
  IoOp second = read_of(file, 4096);  // was under way with O_DIRECT as well
  CHECK(advance(first, 4096, opener) == Step::kAgain);
  CHECK(advance(first, -EINVAL, opener) == Step::kAgain);
  CHECK(!file.direct());
  CHECK(!has_direct || (::fcntl(fd, F_GETFL) & O_DIRECT) == 0);
  CHECK(advance(second, -EINVAL, opener) == Step::kAgain);
  CHECK(opener.fallbacks() == 1);
  CHECK(first.done == 4096);  // what was moved stays moved
  CHECK(advance(first, -EINVAL, opener) == Step::kDone);
  CHECK(first.status == EINVAL);
  CHECK(advance(second, 4096, opener) == Step::kDone);
  CHECK(second.status == 0);
}

void policy_on_keeps_einval() {
  FileOpener opener(DirectPolicy::kOn);
  FileTarget file(temporary_file(), "x", 16384, true, true, false);
  IoOp op = read_of(file, 4096);
  CHECK(advance(op, -EINVAL, opener) == Step::kDone);
  CHECK(op.status == EINVAL && file.direct() && opener.fallbacks() == 0);
}

void errors_and_flushes() {
  FileOpener opener(DirectPolicy::kAuto);
  FileTarget file(temporary_file(), "x", 16384, true, false, true);
  IoOp op = read_of(file, 4096);
  CHECK(advance(op, -EIO, opener) == Step::kDone && op.status == EIO);
  IoOp flush = read_of(file, 0);
  flush.direction = Direction::kFlush;
  CHECK(advance(flush, 0, opener) == Step::kDone && flush.status == 0);
  CHECK(advance(flush, -EINVAL, opener) == Step::kDone && flush.status == EINVAL);
}

}  // namespace

int main() {
  partial_results_continue();
  nothing_more_is_a_short_transfer();
  interruptions_are_bounded_and_forgotten_on_progress();
  einval_drops_o_direct_once();
  policy_on_keeps_einval();
  errors_and_flushes();
}
