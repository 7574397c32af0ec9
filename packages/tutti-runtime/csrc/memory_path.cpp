// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tutti/runtime/detail/paths.hpp"
#include "tutti/runtime/error.hpp"

namespace tutti::runtime::detail {
namespace {

/// Zero-filled pages that exist only once they are touched.
class MemoryObject {
 public:
  MemoryObject(const std::string& name, std::uint64_t size) : size_(size) {
    void* address =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
      const int error = errno;
      throw SystemError(
          error,
          "cannot reserve " + std::to_string(size) + " bytes for a memory target: " + std::strerror(error),
          "mem://" + name);
    }
    data_ = static_cast<std::byte*>(address);
  }
  ~MemoryObject() { ::munmap(data_, size_); }
  MemoryObject(const MemoryObject&) = delete;
  MemoryObject& operator=(const MemoryObject&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t size_;
};

class MemoryTarget final : public Target {
 public:
  MemoryTarget(std::string name, std::shared_ptr<MemoryObject> object, bool writable)
      : Target(object->size(), writable), name_(std::move(name)), object_(std::move(object)) {}

  [[nodiscard]] std::byte* data() const noexcept { return object_->data(); }
  [[nodiscard]] TargetInfo info() const override {
    TargetInfo info = Target::info();
    info.kind = "memory";
    info.path = name_;
    return info;
  }

 private:
  std::string name_;
  std::shared_ptr<MemoryObject> object_;
};

class MemoryPath final : public DataPath {
 public:
  void start(CompletionSink& sink) override { sink_ = &sink; }

  std::unique_ptr<Target> open(const TargetUri& uri, bool writable) override {
    if (uri.scheme != Scheme::kMemory) {
      throw InvalidUri("target '" + uri.path + "': a memory runtime opens mem://name?size=BYTES only");
    }
    std::lock_guard lock(mutex_);
    // Objects live as long as the runtime, so that close and open find the same bytes, as with a file.
    auto& object = objects_[uri.path];
    if (object == nullptr) {
      try {
        object = std::make_shared<MemoryObject>(uri.path, uri.size);
      } catch (...) {
        objects_.erase(uri.path);
        throw;
      }
    } else if (object->size() != uri.size) {
      throw InvalidUri("target 'mem://" + uri.path + "?size=" + std::to_string(uri.size) +
                       "': it exists with size=" + std::to_string(object->size()) + "; use that size");
    }
    return std::make_unique<MemoryTarget>(uri.path, object, writable);
  }

  void submit(std::span<const IoOp> ops) override {
    std::vector<IoOp> finished(ops.begin(), ops.end());
    for (IoOp& op : finished) {
      std::byte* place = static_cast<MemoryTarget*>(op.target)->data() + op.target_offset;
      if (op.direction == Direction::kRead) {
        std::memcpy(op.address, place, op.length);
      } else if (op.direction == Direction::kWrite) {
        std::memcpy(place, op.address, op.length);
      }
      op.done = op.length;
    }
    sink_->complete(finished);
  }

  void shutdown() noexcept override {
    std::lock_guard lock(mutex_);
    objects_.clear();
  }

  DataPathCaps caps() const override { return {"memory", "none", {}, {}, 0, {}}; }

 private:
  CompletionSink* sink_ = nullptr;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<MemoryObject>> objects_;
};

}  // namespace

std::unique_ptr<DataPath> make_memory_path() { return std::make_unique<MemoryPath>(); }

}  // namespace tutti::runtime::detail
