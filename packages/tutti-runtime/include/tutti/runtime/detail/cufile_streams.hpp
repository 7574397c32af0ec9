// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "tutti/runtime/data_path.hpp"
#include "tutti/runtime/shim/cufile.hpp"

namespace tutti::runtime::detail {

/// Where an operation's bytes are in the file, as cuFile wants to know it.
struct CufilePlace {
  shim::CuFileHandle handle;
  std::uint64_t offset;
};

/// cuFileReadAsync and cuFileWriteAsync: transfers that run in the order of a CUDA stream. The caller's
/// thread puts them there and goes on; a thread of this object sees when the stream has passed them, and
/// reports.
class CufileStreams {
 public:
  CufileStreams(const shim::CuFile& library, std::function<CufilePlace(const IoOp&)> place_of,
                std::function<shim::CuContext(int device)> context_of);
  ~CufileStreams();
  CufileStreams(const CufileStreams&) = delete;
  CufileStreams& operator=(const CufileStreams&) = delete;

  [[nodiscard]] bool offered() const noexcept {
    return library_.read_async != nullptr && library_.write_async != nullptr;
  }

  void start(CompletionSink& sink) noexcept { sink_ = &sink; }

  /// Puts operations of one stream on it, all of them or, with an exception, none.
  /// @throws std::bad_alloc; SystemError when the stream is none or its context has failed.
  void submit(std::span<const IoOp> ops);

  /// Ends the thread; called when nothing is in flight.
  void shutdown() noexcept;

 private:
  struct Transfer;
  struct Flight;

  void enqueue(Flight& flight, shim::CuStream stream) noexcept;
  void start_thread();
  void work() noexcept;
  void report(Flight& flight, std::int32_t error) noexcept;

  const shim::CuFile& library_;
  const std::function<CufilePlace(const IoOp&)> place_of_;
  const std::function<shim::CuContext(int)> context_of_;
  CompletionSink* sink_ = nullptr;

  std::mutex mutex_;  ///< guards everything below
  std::condition_variable wake_;
  std::list<std::unique_ptr<Flight>> flights_;
  std::list<std::unique_ptr<Flight>> lost_;  ///< cuFile may still write into their records
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tutti::runtime::detail
