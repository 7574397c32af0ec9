// SPDX-License-Identifier: Apache-2.0
// A CUDA driver for tests, as a library named libcuda.so.1: contexts, pinned and "device" memory (all of it
// host memory), events that a test sets or a stream reaches, and streams that really run in order on threads
// of their own. Numbers are those of the CUDA Driver API. What a driver would refuse is refused here too.
//
// Kernels are there with fake_kernels.cpp only. While one stays, this driver is the worst that can
// be: every call that may wait for the device does, and no other call gets in meanwhile.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kInvalidValue = 1, kOutOfMemory = 2, kNotInitialised = 3, kInvalidContext = 201,
              kInvalidHandle = 400, kNotReady = 600, kAlreadyRegistered = 712, kNotRegistered = 713,
              kNotSupported = 801, kCaptureUnsupported = 900;
constexpr unsigned kHost = 1, kDevice = 2;
constexpr int kDevices = 2;

struct Range {
  std::uint64_t size;
  unsigned type;
  int device;
};

struct Stream {
  void* context;
  int priority = 0;
  std::set<std::string> used_for;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool busy = false;
};

std::mutex the_mutex;
bool initialised = false;
bool capturing = false;
int refuse_register = 0, refuse_record = 0, after_record = 0, events_made = 0;
long registered_in_all = 0;
std::map<std::uint64_t, Range> ranges;
std::map<std::uint64_t, int> events;
std::map<Stream*, bool> streams;
int retained[kDevices] = {0, 0};
thread_local std::vector<void*> contexts;
thread_local int capture_mode = 0;  // global

void* context_of(int device) { return reinterpret_cast<void*>(0x1000 + device); }
bool is_context(void* context) { return context == context_of(0) || context == context_of(1); }

// Call with the lock held.
const std::pair<const std::uint64_t, Range>* find(std::uint64_t address) {
  auto place = ranges.upper_bound(address);
  if (place == ranges.begin()) {
    return nullptr;
  }
  --place;
  return address < place->first + place->second.size ? &*place : nullptr;
}

std::mutex entry;  // calls that wait hold it
std::mutex kernels_mutex;
std::condition_variable kernels_left;
std::multiset<int> kernels;  // that were launched and are not over, by the priority of their stream
std::string waited;          // what had to wait for a kernel, or would have

/// Until no kernel is there, or none of a priority.
void wait_for_kernels(const char* call, const int* priority = nullptr) {
  std::unique_lock lock(kernels_mutex);
  const auto gone = [&] { return priority == nullptr ? kernels.empty() : !kernels.contains(*priority); };
  if (!gone()) {
    waited += std::string(call) + "; ";
    kernels_left.wait(lock, gone);
  }
}

/// A call that may wait for all that runs on the device.
void waiting_call(const char* call) {
  const std::lock_guard lock(entry);
  wait_for_kernels(call);
}

/// Any other call.
void pass() { const std::lock_guard lock(entry); }

/// What a driver makes when something is first used.
void first_use(Stream* stream, const char* what) {
  bool first = false;
  {
    const std::lock_guard lock(stream->mutex);
    first = stream->used_for.insert(what).second;
  }
  if (first) {
    waiting_call((std::string("first ") + what).c_str());
  }
}

bool is_pinned(const void* address, std::uint64_t size) {
  const std::lock_guard lock(the_mutex);
  const auto first = reinterpret_cast<std::uint64_t>(address);
  const auto* const range = find(first);
  return range != nullptr && range->second.type == kHost && first + size <= range->first + range->second.size;
}

void serve(Stream* stream) {
  std::unique_lock lock(stream->mutex);
  while (true) {
    stream->changed.wait(lock, [&] { return !stream->work.empty(); });
    auto next = std::move(stream->work.front());
    stream->work.pop_front();
    stream->busy = true;
    lock.unlock();
    next();
    lock.lock();
    stream->busy = false;
    stream->changed.notify_all();
  }
}

int enqueue(Stream* stream, std::function<void()> work) {
  {
    const std::lock_guard lock(the_mutex);
    if (!streams.contains(stream)) {
      return kInvalidHandle;
    }
  }
  const std::lock_guard lock(stream->mutex);
  stream->work.push_back(std::move(work));
  stream->changed.notify_all();
  return 0;
}

/// `host` is the side that should be pinned. Work of one priority shares a queue of the device.
int copy(Stream* stream, void* to, const void* from, std::uint64_t size, const void* host, const char* what) {
  {
    const std::lock_guard lock(the_mutex);
    if (!streams.contains(stream)) {
      return kInvalidHandle;
    }
  }
  first_use(stream, what);
  if (is_pinned(host, size)) {
    pass();
  } else {
    waiting_call("copy of memory that is not pinned");
  }
  return enqueue(stream, [=, priority = stream->priority] {
    wait_for_kernels("copy behind a kernel of its priority", &priority);
    std::memcpy(to, from, size);
  });
}

// A word is in memory that the device reaches, and the stream's own context is current: as on a real driver.
int check_word(Stream* stream, std::uint64_t address) {
  const std::lock_guard lock(the_mutex);
  if (!streams.contains(stream)) {
    return kInvalidHandle;
  }
  if (contexts.empty() || contexts.back() != stream->context) {
    return kInvalidContext;
  }
  return address % 8 == 0 && find(address) != nullptr ? 0 : kInvalidValue;
}

}  // namespace

extern "C" {

// --- for the tests
// ------------------------------------------------------------------------------------------
int fake_cuda_initialised() { return initialised; }
void fake_cuda_set_event(std::uint64_t event, int result) {
  const std::lock_guard lock(the_mutex);
  events[event] = result;
}
void fake_cuda_destroy_event(std::uint64_t event) {
  const std::lock_guard lock(the_mutex);
  events.erase(event);
}
void fake_cuda_set_capturing(int value) { capturing = value != 0; }
void fake_cuda_refuse_register(int result) { refuse_register = result; }
// What cuEventRecord answers, and what a recorded event becomes once its stream has passed it.
void fake_cuda_record(int result, int then) {
  refuse_record = result;
  after_record = then;
}
int fake_cuda_events_made() {
  const std::lock_guard lock(the_mutex);
  return events_made;
}
long fake_cuda_registered() {
  const std::lock_guard lock(the_mutex);
  long count = 0;
  for (const auto& [address, range] : ranges) {
    count += range.type == kHost;
  }
  return count;
}
long fake_cuda_registered_in_all() { return registered_in_all; }
long fake_cuda_contexts_retained() { return retained[0] + retained[1]; }
void* fake_cuda_malloc(std::uint64_t size, int device) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 1 << 16, size) != 0) {
    return nullptr;
  }
  const std::lock_guard lock(the_mutex);
  ranges[reinterpret_cast<std::uint64_t>(memory)] = {size, kDevice, device};
  return memory;
}
void fake_cuda_push(int device) { contexts.push_back(context_of(device)); }
void fake_cuda_pop() { contexts.pop_back(); }
void* fake_cuda_stream(int device) {
  auto* const stream = new Stream{};
  stream->context = context_of(device);
  std::thread([stream] { serve(stream); }).detach();
  const std::lock_guard lock(the_mutex);
  streams[stream] = true;
  return stream;
}
// Whether everything enqueued has run, within a time in milliseconds.
int fake_cuda_stream_idle(void* which, int milliseconds) {
  auto* const stream = static_cast<Stream*>(which);
  std::unique_lock lock(stream->mutex);
  return stream->changed.wait_for(lock, std::chrono::milliseconds(milliseconds),
                                  [&] { return stream->work.empty() && !stream->busy; });
}
// A copy in stream order, as a stand-in for kernels and copy engines.
int fake_cuda_copy(void* stream, void* to, const void* from, std::uint64_t size) {
  return enqueue(static_cast<Stream*>(stream), [=] { std::memcpy(to, from, size); });
}

// --- the driver
// ---------------------------------------------------------------------------------------------
int cuInit(unsigned) {
  if (const char* result = std::getenv("FAKE_CUDA_INIT")) {
    return std::atoi(result);
  }
  initialised = true;
  return 0;
}
int cuGetErrorName(int error, const char** name) {
  static const std::map<int, const char*> names = {{kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
                                                   {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                   {100, "CUDA_ERROR_NO_DEVICE"},
                                                   {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
                                                   {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}};
  const auto found = names.find(error);
  *name = found != names.end() ? found->second : "CUDA_ERROR_UNKNOWN";
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = kDevices;
  return initialised ? 0 : kNotInitialised;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDeviceGetAttribute(int* value, int, int) {
  *value = 1;
  return 0;
}
int cuDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(text, static_cast<std::size_t>(size), "FFFF:%02X:00.0", device + 1);
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  const std::lock_guard lock(the_mutex);
  ++retained[device];
  *context = context_of(device);
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  const std::lock_guard lock(the_mutex);
  --retained[device];
  return 0;
}
int cuCtxPushCurrent_v2(void* context) {
  if (!is_context(context)) {
    return kInvalidContext;
  }
  contexts.push_back(context);
  return 0;
}
int cuCtxPopCurrent_v2(void** context) {
  if (contexts.empty()) {
    return kInvalidContext;
  }
  *context = contexts.back();
  contexts.pop_back();
  return 0;
}
int cuCtxGetCurrent(void** context) {
  *context = contexts.empty() ? nullptr : contexts.back();
  return 0;
}
int cuMemHostRegister_v2(void* address, std::size_t size, unsigned) {
  if (contexts.empty()) {
    return kInvalidContext;
  }
  if (refuse_register != 0) {
    return refuse_register;
  }
  waiting_call("cuMemHostRegister");
  const auto first = reinterpret_cast<std::uint64_t>(address);
  const std::lock_guard lock(the_mutex);
  const auto next = ranges.upper_bound(first);
  if (find(first) != nullptr || (next != ranges.end() && next->first < first + size)) {
    return kAlreadyRegistered;
  }
  ranges[first] = {size, kHost, 0};
  ++registered_in_all;
  return 0;
}
int cuMemHostUnregister(void* address) {
  if (contexts.empty()) {
    return kInvalidContext;
  }
  waiting_call("cuMemHostUnregister");
  const std::lock_guard lock(the_mutex);
  return ranges.erase(reinterpret_cast<std::uint64_t>(address)) == 1 ? 0 : kNotRegistered;
}
int cuMemHostGetDevicePointer_v2(std::uint64_t* pointer, void* address, unsigned) {
  if (contexts.empty()) {
    return kInvalidContext;
  }
  const std::lock_guard lock(the_mutex);
  *pointer = reinterpret_cast<std::uint64_t>(address);
  const auto* const range = find(*pointer);
  return range != nullptr && range->second.type == kHost ? 0 : kInvalidValue;
}
int cuPointerGetAttribute(void* value, int attribute, std::uint64_t pointer) {
  const std::lock_guard lock(the_mutex);
  const auto* const range = find(pointer);
  if (range == nullptr) {
    return kInvalidValue;
  }
  if (attribute == 2) {
    *static_cast<unsigned*>(value) = range->second.type;
  } else if (attribute == 9) {
    *static_cast<int*>(value) = range->second.device;
  } else {
    return kInvalidValue;
  }
  return 0;
}
int cuEventQuery(std::uint64_t event) {
  if (capturing && capture_mode != 2) {
    return kCaptureUnsupported;
  }
  const std::lock_guard lock(the_mutex);
  const auto found = events.find(event);
  return found == events.end() ? kInvalidHandle : found->second;
}
int cuEventCreate(std::uint64_t* event, unsigned) {
  if (contexts.empty()) {
    return kInvalidContext;
  }
  static std::uint64_t next = 1 << 20;
  const std::lock_guard lock(the_mutex);
  *event = next++;
  events[*event] = 0;
  ++events_made;
  return 0;
}
int cuEventRecord(std::uint64_t event, Stream* stream) {
  if (refuse_record != 0) {
    return refuse_record;
  }
  {
    const std::lock_guard lock(the_mutex);
    if (!events.contains(event)) {
      return kInvalidHandle;
    }
    events[event] = kNotReady;
  }
  return enqueue(stream, [event] {
    const std::lock_guard lock(the_mutex);
    events[event] = after_record;
  });
}
int cuEventDestroy_v2(std::uint64_t event) {
  const std::lock_guard lock(the_mutex);
  --events_made;
  return events.erase(event) == 1 ? 0 : kInvalidHandle;
}
int cuStreamIsCapturing(Stream*, int* status) {
  *status = capturing ? 1 : 0;
  return 0;
}
int cuStreamGetCtx(Stream* stream, void** context) {
  const std::lock_guard lock(the_mutex);
  if (!streams.contains(stream)) {
    return kInvalidHandle;
  }
  *context = stream->context;
  return 0;
}
int cuStreamWaitValue64_v2(Stream* stream, std::uint64_t address, std::uint64_t value, unsigned flags) {
  const int error = flags == 0 ? check_word(stream, address) : kInvalidValue;
  if (error != 0) {
    return error;
  }
  auto* const word = reinterpret_cast<std::uint64_t*>(address);
  return enqueue(stream, [=] {
    while (static_cast<std::int64_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) < 0) {
      std::this_thread::yield();
    }
  });
}
int cuStreamWriteValue64_v2(Stream* stream, std::uint64_t address, std::uint64_t value, unsigned) {
  const int error = check_word(stream, address);
  if (error != 0) {
    return error;
  }
  auto* const word = reinterpret_cast<std::uint64_t*>(address);
  return enqueue(stream, [=] { __atomic_store_n(word, value, __ATOMIC_RELEASE); });
}
int cuLaunchHostFunc(Stream* stream, void (*function)(void*), void* argument) {
  return enqueue(stream, [=] { function(argument); });
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return 0;
}

// --- the rest of what programs around the runtime call
int cuStreamCreate(void** stream, unsigned) {
  if (contexts.empty()) {
    return kInvalidContext;
  }
  waiting_call("cuStreamCreate");
  *stream = fake_cuda_stream(contexts.back() == context_of(1) ? 1 : 0);
  return 0;
}
int cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  if (flags != 1) {
    return kInvalidValue;  // a stream that waits for the default one: nobody here wants that
  }
  const int error = cuStreamCreate(stream, flags);
  if (error == 0) {
    static_cast<Stream*>(*stream)->priority = std::clamp(priority, -5, 0);
  }
  return error;
}
int cuCtxSynchronize() {
  waiting_call("cuCtxSynchronize");
  return contexts.empty() ? kInvalidContext : 0;
}
int cuStreamQuery(Stream* stream) {
  pass();
  const std::lock_guard lock(stream->mutex);
  return stream->work.empty() && !stream->busy ? 0 : kNotReady;
}
int cuStreamDestroy_v2(Stream* stream) {  // its thread goes on to wait for work that never comes
  const std::lock_guard lock(the_mutex);
  return streams.erase(stream) == 1 ? 0 : kInvalidHandle;
}
int cuStreamBeginCapture_v2(Stream*, int) { return kNotSupported; }
int cuMemAlloc_v2(std::uint64_t* pointer, std::size_t size) {
  if (contexts.empty()) {
    return kInvalidContext;
  }
  waiting_call("cuMemAlloc");
  *pointer =
      reinterpret_cast<std::uint64_t>(fake_cuda_malloc(size, contexts.back() == context_of(1) ? 1 : 0));
  return *pointer != 0 ? 0 : kOutOfMemory;
}
int cuMemFree_v2(std::uint64_t pointer) {
  waiting_call("cuMemFree");
  const std::lock_guard lock(the_mutex);
  if (ranges.erase(pointer) == 0) {
    return kInvalidValue;
  }
  std::free(reinterpret_cast<void*>(pointer));
  return 0;
}
int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t size, Stream* stream) {
  return copy(stream, reinterpret_cast<void*>(to), from, size, from, "copy to the device");
}
int cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t size, Stream* stream) {
  return copy(stream, to, reinterpret_cast<const void*>(from), size, to, "copy from the device");
}
// What waited for a kernel since the last call, by name.
const char* fake_cuda_waited() {
  static std::string said;
  const std::lock_guard lock(kernels_mutex);
  said.swap(waited);
  waited.clear();
  return said.c_str();
}
}
