// SPDX-License-Identifier: Apache-2.0
// The part of cuFile (GPUDirect Storage) that this library calls. Types and numbers follow the cuFile API
// reference, version 1.15; cufile.h is not needed to build.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "tutti/runtime/shim/cuda.hpp"

namespace tutti::runtime::shim {

struct CuFileError {
  int error;      ///< 0, or a number from 5001 up
  CuResult cuda;  ///< says more where `error` is kCuFileCudaError
};

struct CuFileDescription {
  int type;  ///< kCuFileOpaqueFd
  union {
    int fd;
    void* handle;
  } file;
  const void* operations;  ///< null: files of the system
};
static_assert(sizeof(CuFileDescription) == 24);

inline constexpr int kCuFileOpaqueFd = 1;
inline constexpr int kCuFileBase = 5000;
inline constexpr int kCuFileCudaError = kCuFileBase + 11;
inline constexpr int kCuFileAlreadyOpen = kCuFileBase + 26;

using CuFileHandle = void*;

/// Functions of libcufile.so.0, named without their prefix. The stream-ordered ones are null in libraries
/// before 1.7.
struct CuFile {
  std::string library;
  int version;  ///< 1000 x major + 10 x minor; 0 where the library does not say
  CuFileError (*driver_open)();
  CuFileError (*get_version)(int* version);
  CuFileError (*handle_register)(CuFileHandle* handle, CuFileDescription* description);
  void (*handle_deregister)(CuFileHandle handle);
  CuFileError (*buffer_register)(const void* base, std::size_t size, int flags);
  CuFileError (*buffer_deregister)(const void* base);
  ssize_t (*read)(CuFileHandle handle, void* base, std::size_t size, off_t file_offset, off_t buffer_offset);
  ssize_t (*write)(CuFileHandle handle, const void* base, std::size_t size, off_t file_offset,
                   off_t buffer_offset);
  CuFileError (*read_async)(CuFileHandle handle, void* base, std::size_t* size, off_t* file_offset,
                            off_t* buffer_offset, ssize_t* bytes, CuStream stream);
  CuFileError (*write_async)(CuFileHandle handle, void* base, std::size_t* size, off_t* file_offset,
                             off_t* buffer_offset, ssize_t* bytes, CuStream stream);
};

/// The library with its driver open; it stays open until the process ends, as other users in the process may
/// share it. `path` is a file, or empty for the loader's own search; the first library that opens serves all.
/// libcuda.so.1 is loaded and initialised before: without it some versions of libcufile never return from
/// cuFileDriverOpen.
/// @throws SystemError: that of cuda(); ENOENT without the library; to_errno() of a driver that does not
/// open.
[[nodiscard]] const CuFile& cufile(const std::string& path);

/// The errno that stands for a negative result of cuFileRead or cuFileWrite (`saved_errno`: errno after it).
[[nodiscard]] int to_errno(ssize_t result, int saved_errno) noexcept;

/// The errno that stands for an error of another call; 0 for success.
[[nodiscard]] int to_errno(const CuFileError& error) noexcept;

/// "cuFileHandleRegister: cuFile error 5027", with the CUDA error where there is one.
[[nodiscard]] std::string describe(const char* call, const CuFileError& error);

}  // namespace tutti::runtime::shim
