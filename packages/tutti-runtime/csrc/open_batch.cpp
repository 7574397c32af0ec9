// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/open_batch.hpp"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>

#include "tutti/runtime/detail/io_thread.hpp"
#include "tutti/runtime/error.hpp"

namespace tutti::runtime {
namespace {

// A thread costs as much as opening a few files whose names are cached.
constexpr std::size_t kPerThread = 32;
constexpr std::size_t kMaxThreads = 16;

OpenOutcome open_one(StorageRuntime& runtime, const std::string& uri, bool writable) noexcept {
  OpenOutcome outcome;
  try {
    outcome.target = runtime.open(uri, writable);
  } catch (...) {
    outcome.error = std::current_exception();
  }
  return outcome;
}

// After shutdown() began every target is closed with the runtime, so there is nothing to take back.
void rethrow_if_over(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Closed&) {
    throw;
  } catch (const Forked&) {
    throw;
  } catch (...) {
  }
}

}  // namespace

std::vector<OpenOutcome> open_batch(StorageRuntime& runtime, std::span<const std::string> uris,
                                    bool writable) {
  std::vector<OpenOutcome> outcomes(uris.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next.fetch_add(1); i < uris.size(); i = next.fetch_add(1)) {
      outcomes[i] = open_one(runtime, uris[i], writable);
    }
  };
  std::vector<std::thread> helpers;
  const std::size_t wanted = std::min(uris.size() / kPerThread, kMaxThreads);
  helpers.reserve(wanted);
  try {
    while (helpers.size() < wanted) {
      helpers.push_back(detail::start_io_thread("tutti-open", work));
    }
  } catch (const std::system_error&) {  // no more threads to be had: those that are there do it
  }
  work();
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
