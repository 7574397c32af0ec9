// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/open_batch.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <system_error>
#include <thread>

#include "tutti/runtime/detail/io_thread.hpp"
#include "tutti/runtime/error.hpp"

namespace tutti::runtime {
namespace {

using Clock = std::chrono::steady_clock;

// Opening a file whose name is cached takes some ten microseconds, and threads then only get in each other's
// way at the process's table of descriptors. They help where opening waits for a drive or a server.
constexpr std::chrono::microseconds kWorthAThread{100};
constexpr std::size_t kFirstLook = 4;
constexpr std::size_t kMaxThreads = 16;

OpenOutcome open_one(StorageRuntime& runtime, const std::string& uri, bool writable,
                     std::span<const std::string> roots) noexcept {
  OpenOutcome outcome;
  try {
    outcome.target = runtime.open(uri, writable, roots);
  } catch (...) {
    outcome.error = std::current_exception();
  }
  return outcome;
}

std::vector<std::thread> start_helpers(std::size_t count, const std::function<void()>& work) {
  std::vector<std::thread> helpers;
  helpers.reserve(count);
  try {
    while (helpers.size() < count) {
      helpers.push_back(detail::start_io_thread("tutti-open", work));
    }
  } catch (const std::system_error&) {
    return helpers;  // no more threads to be had: those that are there do it
  }
  return helpers;
}

// After shutdown() began every target is closed with the runtime, so there is nothing to take back.
void rethrow_if_over(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Closed&) {
    throw;
  } catch (const Forked&) {
    throw;
  } catch (...) {  // NOLINT(bugprone-empty-catch): the error of one item, which is in its outcome
  }
}

}  // namespace

std::vector<OpenOutcome> open_batch(StorageRuntime& runtime, std::span<const std::string> uris, bool writable,
                                    std::span<const std::string> roots) {
  std::vector<OpenOutcome> outcomes(uris.size());
  std::atomic<std::size_t> next{0};
  const auto open_next = [&] {
    const std::size_t i = next.fetch_add(1);
    if (i >= uris.size()) {
      return false;
    }
    outcomes[i] = open_one(runtime, uris[i], writable, roots);
    return true;
  };
  std::vector<std::thread> helpers;
  const Clock::time_point begin = Clock::now();
  for (std::size_t done = 1; open_next(); ++done) {
    if (helpers.empty() && done >= kFirstLook && (Clock::now() - begin) / done > kWorthAThread) {
      helpers = start_helpers(std::min(uris.size() - done, kMaxThreads), [&open_next] {
        while (open_next()) {
        }
      });
    }
  }
  for (std::thread& helper : helpers) {
    helper.join();
  }
  for (const OpenOutcome& outcome : outcomes) {
    if (outcome.error != nullptr) {
      rethrow_if_over(outcome.error);
    }
  }
  return outcomes;
}

}  // namespace tutti::runtime
