// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "tutti/runtime/detail/cufile_streams.hpp"
#include "tutti/runtime/detail/file_target.hpp"
#include "tutti/runtime/detail/op_pool.hpp"
#include "tutti/runtime/detail/paths.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/shim/cufile.hpp"

namespace tutti::runtime::detail {
namespace {

/// The same file under a descriptor that cuFile takes: it refuses O_NOFOLLOW among the flags, which cannot be
/// cleared. /proc/self/fd leads to the open file and not to its path.
int open_again(const FileTarget& file) {
  const int flags = ::fcntl(file.fd(), F_GETFL) & (O_ACCMODE | O_DIRECT);
  const int fd = ::open(("/proc/self/fd/" + std::to_string(file.fd())).c_str(), flags | O_CLOEXEC);
  if (fd < 0) {
    const int error = errno;
    throw SystemError(error, std::string("cannot open it again for cuFile: ") + std::strerror(error),
                      file.path());
  }
  return fd;
}

/// A file that cuFile knows. cuFile works with its descriptor until it is deregistered, so it stays open.
class CufileTarget final : public Target {
 public:
  CufileTarget(const shim::CuFile& library, std::unique_ptr<Target> opened)
      : Target(opened->size(), opened->writable()), library_(library), opened_(std::move(opened)) {
    set_root(opened_->root());
    fd_ = open_again(file());
    shim::CuFileDescription description{shim::kCuFileOpaqueFd, {fd_}, nullptr};
    const shim::CuFileError result = library.handle_register(&handle_, &description);
    if (result.error != 0) {
      ::close(fd_);
      throw SystemError(shim::to_errno(result), shim::describe("cuFileHandleRegister", result),
                        file().path());
    }
  }
  ~CufileTarget() override {
    library_.handle_deregister(handle_);
    ::close(fd_);
  }

  [[nodiscard]] TargetInfo info() const override { return opened_->info(); }
  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] std::uint64_t base() const noexcept { return file().base(); }
  [[nodiscard]] shim::CuFileHandle handle() const noexcept { return handle_; }

 private:
  [[nodiscard]] const FileTarget& file() const noexcept { return static_cast<const FileTarget&>(*opened_); }

  const shim::CuFile& library_;
  const std::unique_ptr<Target> opened_;
  int fd_ = -1;
  shim::CuFileHandle handle_ = nullptr;
};

FileSettings without_pool(FileSettings files) {
  files.pool = nullptr;
  return files;
}

/// GPUDirect Storage: cuFileRead and cuFileWrite on a pool of threads, between files and memory of a CUDA
/// device or of the host. Where the system has no direct way between drive and device, cuFile itself goes
/// through host memory ("compatibility mode") or refuses, as its own configuration says.
class CufilePath final : public DataPath {
 public:
  CufilePath(FileSettings files, std::uint32_t threads, const std::string& library)
      : library_(shim::cufile(library)),
        opener_(without_pool(std::move(files))),
        threads_(threads),
        streams_(
            library_,
            [](const IoOp& op) {
              const auto& target = static_cast<const CufileTarget&>(*op.target);
              return CufilePlace{target.handle(), target.base() + op.target_offset};
            },
            [this](int device) { return context_of(device); }),
        pool_("tutti-cufile", threads, [this](IoOp& op) { run(op); }) {
    contexts_.try_emplace(0, 0);
  }

  void start(CompletionSink& sink) override {
    sink_ = &sink;
    streams_.start(sink);
    pool_.start(sink);
  }
  std::unique_ptr<Target> open(const TargetUri& uri, bool writable) override;
  void register_memory(Memory& memory) override;
  void unregister_memory(const Memory& memory) noexcept override;
  void submit(std::span<const IoOp> ops) override {
    if (!ops.empty() && ops.front().on_stream) {
      submit_on_stream(ops);
    } else {
      pool_.submit(ops);
    }
  }
  void withdraw(const OpFilter& filter, std::int32_t status) noexcept override {
    pool_.withdraw(filter, status);
  }
  void shutdown() noexcept override;
  DataPathCaps caps() const override;
  QueueLimits queue_limits() const noexcept override { return {2UL * threads_, 2UL * threads_}; }
  std::uint64_t direct_fallbacks() const noexcept override { return opener_.fallbacks(); }

 private:
  void submit_on_stream(std::span<const IoOp> ops);
  void run(IoOp& op) noexcept;
  void transfer(IoOp& op, const CufileTarget& target) noexcept;
  shim::CuContext context_of(int device) noexcept;
  void deregister(const std::byte* base, int device) noexcept;

  const shim::CuFile& library_;
  FileOpener opener_;
  const std::uint32_t threads_;
  CompletionSink* sink_ = nullptr;
  mutable std::mutex mutex_;  ///< guards everything below but the pool
  std::map<int, shim::PrimaryContext>
      contexts_;                             ///< one for each device with registered memory, and device 0
  std::map<const std::byte*, int> buffers_;  ///< registered with cuFile: base -> device
  std::string not_registered_;               ///< why the last buffer that cuFile refused was refused
  CufileStreams streams_;                    ///< its thread uses what is above
  OpPool pool_;                              ///< last: its threads use the rest
};

std::unique_ptr<Target> CufilePath::open(const TargetUri& uri, bool writable) {
  return std::make_unique<CufileTarget>(library_, opener_.open(uri, writable));
}

void CufilePath::register_memory(Memory& memory) {
  if (memory.kind == MemoryKind::kHost) {
    return;  // cuFile would pin it, which plain host memory does not ask for
  }
  const std::lock_guard lock(mutex_);
  const auto context = contexts_.try_emplace(memory.device, memory.device).first;
  const shim::ScopedContext current(context->second.get());
  const shim::CuFileError result = library_.buffer_register(memory.address, memory.size, 0);
  if (result.error == 0) {
    buffers_.emplace(memory.address, memory.device);
    memory.buffer_index = 0;
  } else {
    not_registered_ = shim::describe("cuFileBufRegister", result);
  }
}

void CufilePath::unregister_memory(const Memory& memory) noexcept {
  if (memory.buffer_index < 0) {
    return;
  }
  deregister(memory.address, memory.device);
  const std::lock_guard lock(mutex_);
  buffers_.erase(memory.address);
}

void CufilePath::deregister(const std::byte* base, int device) noexcept {
  const bool pushed = shim::cuda().context_push(context_of(device)) == shim::kCuSuccess;
  library_.buffer_deregister(base);
  shim::CuContext mine = nullptr;
  if (pushed) {
    shim::cuda().context_pop(&mine);
  }
}

void CufilePath::shutdown() noexcept {
  pool_.shutdown();
  streams_.shutdown();
  std::map<const std::byte*, int> left;
  {
    const std::lock_guard lock(mutex_);
    left.swap(buffers_);
  }
  for (const auto& [base, device] : left) {
    deregister(base, device);
  }
}

shim::CuContext CufilePath::context_of(int device) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = contexts_.find(device);
  return found != contexts_.end() ? found->second.get() : contexts_.at(0).get();
}

/// A stream that is none, or has failed, fails the items: a submit that has reserved them does not throw.
void CufilePath::submit_on_stream(std::span<const IoOp> ops) {
  std::int32_t status = 0;
  try {
    streams_.submit(ops);
  } catch (const SystemError& error) {
    status = error.error_number();
  }
  if (status == 0) {
    return;
  }
  for (IoOp op : ops) {
    op.status = status;
    sink_->complete({&op, 1});
  }
}

void CufilePath::run(IoOp& op) noexcept {
  const auto& target = static_cast<const CufileTarget&>(*op.target);
  if (op.direction == Direction::kFlush) {
    op.status = ::fdatasync(target.fd()) == 0 ? 0 : errno;
    return;
  }
  const shim::Cuda& driver = shim::cuda();
  const shim::CuResult pushed = driver.context_push(context_of(op.memory->device));
  if (pushed != shim::kCuSuccess) {
    op.status = shim::to_errno(pushed);
    return;
  }
  transfer(op, target);
  shim::CuContext mine = nullptr;
  driver.context_pop(&mine);
}

void CufilePath::transfer(IoOp& op, const CufileTarget& target) noexcept {
  std::byte* const base = op.memory->address;  // of a registered buffer cuFile wants the base as registered
  const auto place = op.address - base;
  while (op.done < op.length) {
    const auto done = static_cast<off_t>(op.done);
    const auto file_offset = static_cast<off_t>(target.base() + op.target_offset) + done;
    const std::uint64_t left = op.length - op.done;
    errno = 0;
    const ssize_t moved = op.direction == Direction::kRead
                              ? library_.read(target.handle(), base, left, file_offset, place + done)
                              : library_.write(target.handle(), base, left, file_offset, place + done);
    if (moved <= 0) {
      op.status = moved == 0 ? EIO : shim::to_errno(moved, errno);  // 0: the file has become shorter
      return;
    }
    op.done += static_cast<std::uint64_t>(moved);
  }
}

DataPathCaps CufilePath::caps() const {
  const std::lock_guard lock(mutex_);
  DataPathCaps caps{"cufile", opener_.policy_name(), {}, {}, 0, {}};
  caps.device_memory = true;
  caps.stream_ordered = streams_.offered();
  if (caps.stream_ordered) {
    caps.features_used["stream_ordered"] = "submit(stream=...): cuFileReadAsync, cuFileWriteAsync";
  } else {
    caps.features_unused["stream_ordered"] =
        "this cuFile has no stream-ordered calls; they came with CUDA 12.2";
  }
  caps.features_used["library"] = library_.library + ", version " + std::to_string(library_.version);
  if (!buffers_.empty()) {
    caps.features_used["registered_buffers"] =
        std::to_string(buffers_.size()) + " ranges of device or pinned memory";
  } else {
    caps.features_unused["registered_buffers"] =
        not_registered_.empty() ? "no device or pinned memory is registered yet" : not_registered_;
  }
  return caps;
}

}  // namespace

std::unique_ptr<DataPath> make_cufile_path(FileSettings files, std::uint32_t threads,
                                           const std::string& library) {
  return std::make_unique<CufilePath>(std::move(files), threads, library);
}

}  // namespace tutti::runtime::detail
