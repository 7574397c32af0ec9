// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/runtime/io.hpp"
#include "tutti/runtime/ordering.hpp"
#include "tutti/runtime/target_uri.hpp"
#include "tutti/runtime/write_policy.hpp"

namespace tutti::runtime {

/// What there is to know of an open target.
struct TargetInfo {
  std::string kind;  ///< "file", "device", "memory", "nvme" or "striped"
  std::string path;  ///< of the file; else the name
  std::uint64_t size = 0;
  std::uint64_t offset = 0;  ///< where the target begins in its file or device
  bool writable = false;
  bool direct = false;     ///< O_DIRECT is in use
  std::uint64_t root = 0;  ///< equal for targets on one drive; `st_dev` of a file
  std::string root_tag;    ///< the drive as the caller named it, or empty
  std::uint64_t inode = 0;
  std::uint64_t unit = 0;  ///< striped: bytes
  std::uint32_t rotation = 0;
  std::vector<TargetInfo> shards;  ///< striped: in the order of the roots
};

/// An open target. A data path derives its own; StorageRuntime owns it and keeps it open while I/O is in
/// flight.
class Target {
 public:
  Target(std::uint64_t size, bool writable, bool composite = false)
      : size_(size), writable_(writable), composite_(composite) {}
  virtual ~Target() = default;
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] bool writable() const noexcept { return writable_; }
  /// Made of other targets: only the decorator that made it can use it.
  [[nodiscard]] bool composite() const noexcept { return composite_; }
  [[nodiscard]] virtual TargetInfo info() const {
    TargetInfo info;
    info.size = size_;
    info.writable = writable_;
    info.root_tag = root_tag;
    return info;
  }

  /// The targets whose roots count: its shards, or only itself.
  [[nodiscard]] virtual std::vector<Target*> shards() { return {this}; }

  /// What targets on one drive have in common (`st_dev` for files, unless the caller said otherwise):
  /// scheduling is per root.
  [[nodiscard]] std::uint64_t root() const noexcept { return root_; }
  void set_root(std::uint64_t root) noexcept { root_ = root; }

  std::uint32_t in_flight = 0;  ///< the runtime's count, under the runtime's lock
  std::string uri;              ///< as it was opened; set by the runtime
  std::string root_tag;         ///< drive as the caller named it, or empty; set by the runtime

 private:
  std::uint64_t size_;
  bool writable_;
  bool composite_;
  std::uint64_t root_ = 0;
};

enum class MemoryKind {
  kHost,        ///< mapped memory of this process
  kPinnedHost,  ///< the same, and pinned by CUDA: copies run asynchronously, streams wait on words in it
  kDevice,      ///< memory of a CUDA device
};

inline constexpr int kAnyDevice = -1;

/// A registered memory range of the caller.
struct Memory {
  std::byte* address = nullptr;
  std::uint64_t size = 0;
  MemoryKind kind = MemoryKind::kHost;
  int device = kAnyDevice;      ///< CUDA device that it belongs to, or lies beside; none for kHost
  std::shared_ptr<void> pin;    ///< keeps pinned memory pinned
  int buffer_index = -1;        ///< place in a data path's own table of registered buffers, or -1
  std::uint32_t in_flight = 0;  ///< the runtime's count, under the runtime's lock
};

/// One accepted item on its way. Target and memory outlive it.
struct IoOp {
  Direction direction = Direction::kRead;
  Target* target = nullptr;
  Memory* memory = nullptr;
  std::byte* address = nullptr;
  std::uint64_t target_offset = 0;
  std::uint64_t length = 0;
  void* batch = nullptr;  ///< the runtime's own; data paths hand it back untouched
  std::uint32_t item = 0;
  bool part = false;         ///< a piece that StripedPath made; `batch` is then its own
  bool on_device = false;    ///< whoever can, lets a device submit it
  bool on_stream = false;    ///< runs in the order of `stream`, not of the runtime
  std::uint64_t stream = 0;  ///< a CUstream as a number
  TimePoint deadline = TimePoint::max();
  std::uint32_t attempts = 0;    ///< retries without progress
  bool buffered_retry = false;   ///< O_DIRECT was refused once for this operation
  std::int32_t upper_error = 0;  ///< with which a better data path failed before this one was asked
  std::uint64_t upper_done = 0;  ///< bytes that it had moved then
  std::uint64_t done = 0;        ///< bytes moved so far
  std::int32_t status = 0;       ///< set before completion: 0 or a positive errno
};

/// Where a data path reports finished operations.
class CompletionSink {
 public:
  /// Called once for every operation, from any thread, with no lock of the data path held. After the call the
  /// data path no longer touches the operation's target or memory.
  virtual void complete(std::span<const IoOp> ops) noexcept = 0;

 protected:
  ~CompletionSink() = default;
};

/// What a data path can say about itself.
struct DataPathCaps {
  std::string name;
  std::string direct;                                  ///< policy in force: "auto", "on", "off" or "none"
  std::map<std::string, std::string> features_used;    ///< feature -> what for
  std::map<std::string, std::string> features_unused;  ///< feature -> why not
  std::uint32_t max_open_files = 0;                    ///< descriptors of targets that are kept; 0: none
  std::string stepped_down;                            ///< why a better data path was given up, or empty
  bool device_memory = false;                          ///< takes MemoryKind::kDevice
  bool stream_ordered = false;                         ///< takes operations with `on_stream`
  bool device_execution = false;                       ///< heeds `on_device`
};

/// How many operations a data path works on at once. More may be given to it; they only wait.
struct QueueLimits {
  std::uint64_t per_root = std::numeric_limits<std::uint32_t>::max();
  std::uint64_t total = std::numeric_limits<std::uint64_t>::max();
};

/// Says which operations are meant.
using OpFilter = std::function<bool(const IoOp&)>;

/// Moves bytes between targets and memory. Implementations: memory, posix, uring; decorators stand before
/// them in a chain and are both a data path and the sink of the one behind.
class DataPath {
 public:
  virtual ~DataPath() = default;

  /// Called once before any submit.
  virtual void start(CompletionSink& sink) = 0;

  /// @throws InvalidUri for a scheme of another data path, SystemError when the system refuses.
  [[nodiscard]] virtual std::unique_ptr<Target> open(const TargetUri& uri, bool writable) = 0;

  /// Offers memory for registration with the device; keeps `memory.buffer_index` at -1 when it cannot.
  virtual void register_memory(Memory& /*memory*/) {}
  virtual void unregister_memory(const Memory& /*memory*/) noexcept {}

  /// Whether the operation (its item's number in the batch is set) may be accepted: 0 or an errno, with which
  /// the request is rejected. Called with the runtime's lock held, in the order of the batch.
  [[nodiscard]] virtual int admit(const IoOp& /*op*/) noexcept { return 0; }

  /// Takes every operation, or throws and takes none. Each one taken is completed exactly once, also from
  /// within this call. Operations with `on_stream` are on their stream when it returns; they come in calls of
  /// their own, and only where caps() say stream_ordered.
  virtual void submit(std::span<const IoOp> ops) = 0;

  /// Completes with `status` what `filter` names and the device has not begun; the rest runs on. Must not
  /// wait for a device.
  virtual void withdraw(const OpFilter& /*filter*/, std::int32_t /*status*/) noexcept {}

  /// Stops the threads. Called when nothing is in flight; no submit follows.
  virtual void shutdown() noexcept = 0;

  [[nodiscard]] virtual DataPathCaps caps() const = 0;
  [[nodiscard]] virtual QueueLimits queue_limits() const noexcept { return {}; }
  virtual void set_write_policy(const WritePolicy& /*policy*/) noexcept {}
  [[nodiscard]] virtual std::uint64_t direct_fallbacks() const noexcept { return 0; }
  /// How often it went over to a simpler way because this one gave errors.
  [[nodiscard]] virtual std::uint64_t step_downs() const noexcept { return 0; }
};

}  // namespace tutti::runtime
