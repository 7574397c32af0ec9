// SPDX-License-Identifier: Apache-2.0
// Threads for each drive, where the system has none left for a while.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "check.hpp"
#include "tutti/runtime/config.hpp"
#include "tutti/runtime/detail/file_target.hpp"
#include "tutti/runtime/detail/paths.hpp"

using namespace tutti::runtime;
using namespace tutti::runtime::detail;

namespace {

constexpr std::uint64_t kPage = 4096;

class Sink final : public CompletionSink {
 public:
  void complete(std::span<const IoOp> ops) noexcept override {
    std::lock_guard lock(mutex_);
    for (const IoOp& op : ops) {
      CHECK(op.status == 0 && op.done == kPage);
    }
    count_ += ops.size();
    changed_.notify_all();
  }
  void wait(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return count_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t count_ = 0;
};

struct Fixture {
  Fixture() {
    std::string name = "/tmp/tutti-posix-XXXXXX";
    const int fd = ::mkstemp(name.data());
    CHECK(fd >= 0 && ::unlink(name.c_str()) == 0 && ::ftruncate(fd, kPage) == 0);
    for (std::uint64_t root = 0; root < 24; ++root) {
      targets.push_back(std::make_unique<FileTarget>(::dup(fd), name, kPage, true, false, true));
      targets.back()->set_root(root);
    }
    ::close(fd);
    path = make_posix_path(DirectPolicy::kOff, 2);
    path->start(sink);
  }
  ~Fixture() { path->shutdown(); }

  void read(std::size_t root) {
    IoOp op;
    op.target = targets[root].get();
    op.address = page.data();
    op.length = kPage;
    path->submit({&op, 1});
    sink.wait(++asked);
  }

  Sink sink;
  std::array<std::byte, kPage> page{};
  std::vector<std::unique_ptr<FileTarget>> targets;
  std::unique_ptr<DataPath> path;
  std::size_t asked = 0;
};

/// No thread can be started meanwhile: there is no room for its stack.
class NoThreads {
 public:
  NoThreads() {
    CHECK(::getrlimit(RLIMIT_AS, &space_) == 0);
    rlimit none = space_;
    none.rlim_cur = 1;
    CHECK(::setrlimit(RLIMIT_AS, &none) == 0);
  }
  ~NoThreads() { ::setrlimit(RLIMIT_AS, &space_); }

 private:
  rlimit space_{};
};

[[maybe_unused]] void drives_without_threads_of_their_own_share() {
  Fixture f;
  f.read(0);
  {
    const NoThreads none;
    f.read(1);
    f.read(2);
    f.read(3);
  }
  for (std::size_t root = 0; root < f.targets.size(); ++root) {
    f.read(root);
  }
}

}  // namespace

int main() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::fputs("skipped: a sanitizer cannot do without new memory\n", stderr);
#else
  drives_without_threads_of_their_own_share();
#endif
}
