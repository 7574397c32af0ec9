// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/detail/cufile_streams.hpp"

#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>
#include <vector>

#include "tutti/runtime/detail/cuda_event.hpp"
#include "tutti/runtime/detail/cuda_stream.hpp"
#include "tutti/runtime/detail/io_thread.hpp"
#include "tutti/runtime/error.hpp"

namespace tutti::runtime::detail {
namespace {

using std::chrono::microseconds;

constexpr ssize_t kNotRun = -1;  // what cuFile has not written over

std::int32_t outcome(ssize_t bytes, std::size_t wanted) noexcept {
  if (bytes < 0) {
    return shim::to_errno(bytes, 0);
  }
  return static_cast<std::size_t>(bytes) == wanted ? 0 : EIO;
}

}  // namespace

/// cuFile reads and writes these when the stream comes to the transfer, so they stay where they are.
struct CufileStreams::Transfer {
  IoOp op;
  std::size_t size = 0;
  off_t file_offset = 0;
  off_t memory_offset = 0;
  ssize_t bytes = kNotRun;
  std::int32_t refused = 0;
};

/// The transfers of one submit() and the event behind them.
struct CufileStreams::Flight {
  explicit Flight(std::size_t count) : transfers(count) {
    shim::check("cuEventCreate", shim::cuda().event_create(&event, shim::kCuEventDisableTiming));
  }
  ~Flight() { shim::cuda().event_destroy(event); }
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  std::vector<Transfer> transfers;
  shim::CuEvent event = nullptr;
  Clock::time_point since;
};

CufileStreams::CufileStreams(const shim::CuFile& library, std::function<CufilePlace(const IoOp&)> place_of,
                             std::function<shim::CuContext(int)> context_of)
    : library_(library), place_of_(std::move(place_of)), context_of_(std::move(context_of)) {}

CufileStreams::~CufileStreams() { shutdown(); }

void CufileStreams::submit(std::span<const IoOp> ops) {
  const CurrentStream current(ops.front().stream, context_of_(ops.front().memory->device));
  auto flight = std::make_unique<Flight>(ops.size());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    Transfer& transfer = flight->transfers[i];
    transfer.op = ops[i];
    transfer.size = ops[i].length;
    transfer.file_offset = static_cast<off_t>(place_of_(ops[i]).offset);
    transfer.memory_offset = ops[i].address - ops[i].memory->address;
  }
  std::list<std::unique_ptr<Flight>> one;
  one.push_back(std::move(flight));
  start_thread();
  Flight& flying = *one.front();
  enqueue(flying, current.get());
  const shim::CuResult recorded = shim::cuda().event_record(flying.event, current.get());
  if (recorded != shim::kCuSuccess) {
    // Nobody can tell any more when the stream has passed them: the context has failed.
    {
      const std::lock_guard lock(mutex_);
      lost_.splice(lost_.end(), one);
    }
    report(flying, shim::to_errno(recorded));
    return;
  }
  flying.since = Clock::now();
  const std::lock_guard lock(mutex_);
  flights_.splice(flights_.end(), one);
  wake_.notify_one();
}

void CufileStreams::enqueue(Flight& flight, shim::CuStream stream) noexcept {
  for (Transfer& transfer : flight.transfers) {
    const auto call = transfer.op.direction == Direction::kRead ? library_.read_async : library_.write_async;
    const shim::CuFileError result =
        call(place_of_(transfer.op).handle, transfer.op.memory->address, &transfer.size,
             &transfer.file_offset, &transfer.memory_offset, &transfer.bytes, stream);
    transfer.refused = shim::to_errno(result);
  }
}

void CufileStreams::start_thread() {
  const std::lock_guard lock(mutex_);
  if (thread_.joinable()) {
    return;
  }
  try {
    thread_ = start_io_thread("tutti-streams", [this] { work(); });
  } catch (const std::system_error& error) {
    throw SystemError(error.code().value(),
                      "cannot start the thread that watches streams: " + error.code().message());
  }
}

void CufileStreams::work() noexcept {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !flights_.empty(); });
    if (flights_.empty()) {
      return;
    }
    std::list<std::unique_ptr<Flight>> ended;
    std::vector<std::int32_t> errors;
    for (auto each = flights_.begin(); each != flights_.end();) {
      const std::int32_t error = shim::to_errno(query_beside_captures((*each)->event));
      const auto next = std::next(each);
      if (error != EAGAIN) {
        errors.push_back(error);
        ended.splice(ended.end(), flights_, each);
      }
      each = next;
    }
    if (ended.empty()) {
      // Short while a flight is young: small transfers take less than a millisecond.
      const bool young = Clock::now() - flights_.back()->since < std::chrono::milliseconds(2);
      wake_.wait_for(lock, young ? microseconds(20) : microseconds(200));
      continue;
    }
    lock.unlock();
    auto error = errors.begin();
    for (const auto& flight : ended) {
      report(*flight, *error++);
    }
    ended.clear();
    lock.lock();
  }
}

/// `error`: of the stream itself; what its transfers did is not known then.
void CufileStreams::report(Flight& flight, std::int32_t error) noexcept {
  for (Transfer& transfer : flight.transfers) {
    IoOp& op = transfer.op;
    op.status = transfer.refused;
    if (op.status == 0) {
      op.status = error != 0 ? error : outcome(transfer.bytes, op.length);
    }
    op.done =
        op.status == 0 || (error == 0 && transfer.bytes > 0) ? static_cast<std::uint64_t>(transfer.bytes) : 0;
    sink_->complete({&op, 1});
  }
}

void CufileStreams::shutdown() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

}  // namespace tutti::runtime::detail
