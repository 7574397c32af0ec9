// SPDX-License-Identifier: Apache-2.0
// The bound on descriptors, and who waits, gives up or goes over it.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <thread>
#include <vector>

#include "check.hpp"
#include "tutti/runtime/detail/fd_pool.hpp"

using namespace tutti::runtime::detail;

namespace {

/// A file whose reopening can be told to fail.
class TestFile final : public PooledFile {
 public:
  TestFile(FdPool& pool, bool may_close)
      : PooledFile(pool.open_new([] { return null_fd(); }), may_close), pool_(pool) {
    CHECK(fd() >= 0);
    pool_.add(*this);
  }
  ~TestFile() { pool_.remove(*this); }

  [[nodiscard]] int reopen() noexcept override {
    reopened.fetch_add(1);
    return error != 0 ? -error : null_fd();
  }

  std::atomic<int> error{0};
  std::atomic<int> reopened{0};

 private:
  static int null_fd() {
    const int fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    return fd >= 0 ? fd : -errno;
  }

  FdPool& pool_;
};

using Files = std::vector<std::unique_ptr<TestFile>>;

Files make(FdPool& pool, int count) {
  Files files;
  for (int i = 0; i < count; ++i) {
    files.push_back(std::make_unique<TestFile>(pool, true));
  }
  return files;
}

void the_least_recently_used_goes() {
  FdPool pool(2);
  const Files files = make(pool, 3);
  CHECK(pool.counts().open == 2 && pool.counts().closed == 1);
  CHECK(pool.acquire(*files[1], Patience::kNever) == 0);  // still open
  pool.release(*files[1]);
  CHECK(pool.acquire(*files[0], Patience::kNever) == 0);  // takes the place of 2
  pool.release(*files[0]);
  CHECK(files[0]->reopened == 1 && files[1]->reopened == 0);
  CHECK(pool.acquire(*files[1], Patience::kNever) == 0);
  pool.release(*files[1]);
  CHECK(files[1]->reopened == 0);
  CHECK(pool.counts().open == 2);
}

void all_in_use() {
  FdPool pool(2);
  const Files files = make(pool, 4);
  CHECK(pool.acquire(*files[0], Patience::kNever) == 0);
  CHECK(pool.acquire(*files[1], Patience::kNever) == 0);
  CHECK(pool.acquire(*files[2], Patience::kNever) == EAGAIN);
  CHECK(pool.acquire(*files[0], Patience::kNever) == 0);  // once more is no new descriptor
  CHECK(pool.acquire(*files[3], Patience::kForce) == 0);
  CHECK(pool.counts().open == 3);
  pool.release(*files[3]);
  CHECK(pool.counts().open == 2);  // over the limit no longer than needed
  std::thread waiter([&] {
    CHECK(pool.acquire(*files[2], Patience::kWait) == 0);
    pool.release(*files[2]);
  });
  pool.release(*files[0]);
  pool.release(*files[0]);
  waiter.join();
  pool.release(*files[1]);
}

void an_error_is_the_callers_and_costs_no_place() {
  FdPool pool(1);
  const Files files = make(pool, 2);
  files[0]->error = ESTALE;
  for (int i = 0; i < 10; ++i) {
    CHECK(pool.acquire(*files[0], Patience::kWait) == ESTALE);
  }
  CHECK(pool.counts().open == 0);
  CHECK(pool.acquire(*files[1], Patience::kNever) == 0);
  pool.release(*files[1]);
  files[0]->error = 0;
  CHECK(pool.acquire(*files[0], Patience::kNever) == 0);
  pool.release(*files[0]);
}

void what_must_stay_open_stays() {
  FdPool pool(1);
  TestFile device(pool, false);
  const Files files = make(pool, 2);
  for (const auto& file : files) {
    CHECK(pool.acquire(*file, Patience::kForce) == 0);
    pool.release(*file);
  }
  CHECK(pool.acquire(device, Patience::kNever) == 0);
  pool.release(device);
  CHECK(device.reopened == 0);
}

void an_error_of_writing_back_waits_for_the_flush() {
  FdPool pool(1);
  const Files files = make(pool, 1);
  CHECK(pool.acquire(*files[0], Patience::kNever) == 0);
  pool.set_unsynced(*files[0], true);
  pool.release(*files[0]);
  const Files others = make(pool, 1);  // fdatasync of /dev/null fails with EINVAL
  CHECK(pool.take_sync_error(*files[0]) == EINVAL);
  CHECK(pool.take_sync_error(*files[0]) == 0);
}

void many_threads() {
  FdPool pool(3);
  const Files files = make(pool, 16);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 6; ++t) {
    threads.emplace_back([&files, &pool, t] {
      for (unsigned i = 0; i < 2000; ++i) {
        TestFile& file = *files[(i * 7 + t * 5 + i / 16) % files.size()];
        CHECK(pool.acquire(file, Patience::kWait) == 0);
        CHECK(::fcntl(file.fd(), F_GETFD) >= 0);
        CHECK(pool.counts().open <= 3);
        pool.release(file);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace

int main() {
  the_least_recently_used_goes();
  all_in_use();
  an_error_is_the_callers_and_costs_no_place();
  what_must_stay_open_stays();
  an_error_of_writing_back_waits_for_the_flush();
  many_threads();
}
