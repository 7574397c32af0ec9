// SPDX-License-Identifier: Apache-2.0
// A cuFile for tests, as a library named libcufile.so.0: pread and pwrite behind cuFile's calls. It ends the
// process when it is called before the CUDA driver was initialised, where the real one may spin for ever.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

namespace {

struct Error {
  int error;
  int cuda;
};
struct Description {
  int type;
  union {
    int fd;
    void* handle;
  } file;
  const void* operations;
};

std::mutex the_mutex;
std::map<void*, int> handles;
std::map<const void*, std::size_t> buffers;
std::uintptr_t next_handle = 0x100;
// What the next calls answer: set by a test.
std::atomic<int> refuse_handle{0}, refuse_handle_cuda{0}, refuse_buffer{0}, io_result{0}, io_errno{0},
    most_bytes{0}, without_context{0};

void* cuda_symbol(const char* name) {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
  return library == nullptr ? nullptr : ::dlsym(library, name);
}

void require_cuda(const char* call) {
  auto* const initialised = reinterpret_cast<int (*)()>(cuda_symbol("fake_cuda_initialised"));
  if (initialised == nullptr || initialised() == 0) {
    std::fprintf(stderr, "%s was called before the CUDA driver was initialised\n", call);
    std::abort();
  }
}

// What a call does that needs a context: all but what a stream runs later.
void note_context() {
  void* context = nullptr;
  auto* const current = reinterpret_cast<int (*)(void**)>(cuda_symbol("cuCtxGetCurrent"));
  current(&context);
  without_context += context == nullptr;
}

ssize_t transfer(void* handle, char* base, std::size_t size, off_t file_offset, off_t buffer_offset,
                 bool reads) {
  int fd = -1;
  {
    const std::lock_guard lock(the_mutex);
    const auto found = handles.find(handle);
    if (found == handles.end()) {
      return -5027;
    }
    fd = found->second;
  }
  if (io_result != 0) {
    errno = io_errno;
    return io_result;
  }
  if (most_bytes != 0 && size > static_cast<std::size_t>(most_bytes)) {
    size = static_cast<std::size_t>(most_bytes);
  }
  char* const place = base + buffer_offset;
  return reads ? ::pread(fd, place, size, file_offset) : ::pwrite(fd, place, size, file_offset);
}

struct Async {
  void* handle;
  char* base;
  std::size_t* size;
  off_t* file_offset;
  off_t* buffer_offset;
  ssize_t* bytes;
  bool reads;
};

void run_async(void* argument) {
  auto* const work = static_cast<Async*>(argument);
  *work->bytes =
      transfer(work->handle, work->base, *work->size, *work->file_offset, *work->buffer_offset, work->reads);
  delete work;
}

Error enqueue(Async* work, void* stream) {
  note_context();
  auto* const launch =
      reinterpret_cast<int (*)(void*, void (*)(void*), void*)>(cuda_symbol("cuLaunchHostFunc"));
  const int result = launch(stream, run_async, work);
  return {result == 0 ? 0 : 5011, result};
}

}  // namespace

extern "C" {

// --- for the tests
// ------------------------------------------------------------------------------------------
void fake_cufile_refuse_handle(int error, int cuda) {
  refuse_handle = error;
  refuse_handle_cuda = cuda;
}
void fake_cufile_refuse_buffer(int error) { refuse_buffer = error; }
void fake_cufile_io(int result, int error) {
  io_errno = error;
  io_result = result;
}
void fake_cufile_most_bytes(int bytes) { most_bytes = bytes; }
int fake_cufile_without_context() { return without_context; }
int fake_cufile_handles() {
  const std::lock_guard lock(the_mutex);
  return static_cast<int>(handles.size());
}
int fake_cufile_buffers() {
  const std::lock_guard lock(the_mutex);
  return static_cast<int>(buffers.size());
}

// --- cuFile
// -------------------------------------------------------------------------------------------------
Error cuFileDriverOpen() {
  require_cuda("cuFileDriverOpen");
  if (const char* result = std::getenv("FAKE_CUFILE_OPEN")) {
    return {std::atoi(result), 0};
  }
  return {0, 0};
}
Error cuFileGetVersion(int* version) {
  *version = 1150;
  return {0, 0};
}
Error cuFileHandleRegister(void** handle, Description* description) {
  require_cuda("cuFileHandleRegister");
  if (refuse_handle != 0) {
    return {refuse_handle, refuse_handle_cuda};
  }
  if (description->type != 1 || description->operations != nullptr) {
    return {5022, 0};
  }
  if ((::fcntl(description->file.fd, F_GETFL) & (O_NOFOLLOW | O_NONBLOCK | O_APPEND)) != 0) {
    return {5019, 0};  // seen with version 1.15 of the real one
  }
  const std::lock_guard lock(the_mutex);
  *handle = reinterpret_cast<void*>(next_handle++);
  handles[*handle] = description->file.fd;
  return {0, 0};
}
void cuFileHandleDeregister(void* handle) {
  const std::lock_guard lock(the_mutex);
  if (handles.erase(handle) != 1) {
    std::abort();
  }
}
Error cuFileBufRegister(const void* base, std::size_t size, int) {
  if (refuse_buffer != 0) {
    return {refuse_buffer, 0};
  }
  const std::lock_guard lock(the_mutex);
  return buffers.try_emplace(base, size).second ? Error{0, 0} : Error{5023, 0};
}
Error cuFileBufDeregister(const void* base) {
  const std::lock_guard lock(the_mutex);
  return buffers.erase(base) == 1 ? Error{0, 0} : Error{5024, 0};
}
ssize_t cuFileRead(void* handle, void* base, std::size_t size, off_t file_offset, off_t buffer_offset) {
  note_context();
  return transfer(handle, static_cast<char*>(base), size, file_offset, buffer_offset, true);
}
ssize_t cuFileWrite(void* handle, const void* base, std::size_t size, off_t file_offset,
                    off_t buffer_offset) {
  note_context();
  return transfer(handle, const_cast<char*>(static_cast<const char*>(base)), size, file_offset, buffer_offset,
                  false);
}
Error cuFileReadAsync(void* handle, void* base, std::size_t* size, off_t* file_offset, off_t* buffer_offset,
                      ssize_t* bytes, void* stream) {
  return enqueue(new Async{handle, static_cast<char*>(base), size, file_offset, buffer_offset, bytes, true},
                 stream);
}
Error cuFileWriteAsync(void* handle, void* base, std::size_t* size, off_t* file_offset, off_t* buffer_offset,
                       ssize_t* bytes, void* stream) {
  return enqueue(new Async{handle, static_cast<char*>(base), size, file_offset, buffer_offset, bytes, false},
                 stream);
}
}
