// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/shim/cufile.hpp"

#include <atomic>
#include <cerrno>
#include <mutex>

#include "tutti/runtime/error.hpp"
#include "tutti/runtime/shim/library.hpp"

namespace tutti::runtime::shim {
namespace {

CuFile load(const std::string& path) {
  const Library library(path.empty() ? "libcufile.so.0" : path);
  CuFile table{};
  table.library = library.name();
  library.require(table.driver_open, "cuFileDriverOpen");
  library.require(table.handle_register, "cuFileHandleRegister");
  library.require(table.handle_deregister, "cuFileHandleDeregister");
  library.require(table.buffer_register, "cuFileBufRegister");
  library.require(table.buffer_deregister, "cuFileBufDeregister");
  library.require(table.read, "cuFileRead");
  library.require(table.write, "cuFileWrite");
  library.take(table.get_version, "cuFileGetVersion");
  library.take(table.read_async, "cuFileReadAsync");
  library.take(table.write_async, "cuFileWriteAsync");
  return table;
}

std::atomic<const CuFile*> the_library{nullptr};

int code_to_errno(int code) noexcept {
  switch (code - kCuFileBase) {  // numbers: enum CUfileOpError of the cuFile API
    case 1:                      // driver not initialised
    case 7:                      // platform
    case 9:                      // GPU
    case 29:                     // GPU not found
    case 33:                     // nvidia-fs set-up
      return ENODEV;
    case 2:  // bad property
    case 3:
    case 12:  // bad pointer, its memory's type, its range
    case 13:
    case 14:
    case 16:
    case 17:
    case 22:
      return EINVAL;
    case 8:   // file
    case 18:  // type of file
    case 19:  // flags of the descriptor
    case 20:
    case 34:
    case 38:  // stream-ordered calls
    case 49:
      return ENOTSUP;
    case 23:
    case 28:
      return EEXIST;
    case 24:
    case 27:
      return EBADF;
    case 25:
      return EACCES;
    case 31:
      return EMFILE;
    case 36:
    case 43:
      return ENOMEM;
    case 6:  // the driver closes
      return ESHUTDOWN;
    default:
      return EIO;
  }
}

}  // namespace

const CuFile& cufile(const std::string& path) {
  if (const CuFile* const ready = the_library.load(std::memory_order_acquire)) {
    return *ready;
  }
  static_cast<void>(cuda());
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (the_library.load(std::memory_order_relaxed) == nullptr) {
    CuFile table = load(path);
    const CuFileError result = table.driver_open();
    if (result.error != 0 && result.error != kCuFileAlreadyOpen) {
      throw SystemError(to_errno(result), describe("cuFileDriverOpen", result) + ", library " + table.library,
                        table.library);
    }
    if (table.get_version == nullptr || table.get_version(&table.version).error != 0) {
      table.version = 0;
    }
    the_library.store(new CuFile(table), std::memory_order_release);  // for good: see the header
  }
  return *the_library.load(std::memory_order_relaxed);
}

int to_errno(ssize_t result, int saved_errno) noexcept {
  if (result == -1) {
    return saved_errno > 0 ? saved_errno : EIO;
  }
  return code_to_errno(result < -2 * kCuFileBase ? 0 : static_cast<int>(-result));
}

int to_errno(const CuFileError& error) noexcept {
  if (error.error == 0) {
    return 0;
  }
  const int from_cuda = error.error == kCuFileCudaError ? to_errno(error.cuda) : 0;
  return from_cuda != 0 ? from_cuda : code_to_errno(error.error);
}

std::string describe(const char* call, const CuFileError& error) {
  std::string text = std::string(call) + ": cuFile error " + std::to_string(error.error);
  if (error.error == kCuFileCudaError) {
    text += " (" + describe("CUDA", error.cuda) + ")";
  }
  return text;
}

}  // namespace tutti::runtime::shim
