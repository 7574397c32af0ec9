// SPDX-License-Identifier: Apache-2.0
// The only file that knows pybind11: arguments and results cross here, nothing is decided here.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "tutti/runtime/config.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/storage_runtime.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace tutti::runtime {
namespace {

/// Owns a runtime on behalf of a Python object. It is leaked, on purpose, where destroying it would be wrong:
/// in a forked child (its threads are not there) and when I/O is still in flight after the grace time (a late
/// drive must find its memory).
struct LeakIfUnsafe {
  void operator()(StorageRuntime* runtime) const {
    constexpr Duration grace{5.0};
    if (!runtime->is_owner()) {
      return;
    }
    bool drained = false;
    {
      py::gil_scoped_release release;
      drained = runtime->shutdown(grace);
    }
    if (drained) {
      delete runtime;
    }
  }
};
using Holder = std::unique_ptr<StorageRuntime, LeakIfUnsafe>;

template <typename T>
py::array_t<T> to_array(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

/// Takes anything that is an integer to Python, NumPy's scalars too.
std::uint64_t to_handle(const py::object& value) {
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!number) {
    throw py::error_already_set();
  }
  const std::uint64_t handle = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw InvalidHandle("handle " + py::str(number).cast<std::string>() + " is not one of this runtime's");
  }
  return handle;
}

void check_signals() {
  py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) {
    throw py::error_already_set();
  }
}

std::optional<Duration> to_timeout(std::optional<double> seconds) {
  if (!seconds) {
    return std::nullopt;
  }
  if (std::isnan(*seconds) || *seconds < 0) {
    throw InvalidArgument("timeout=" + std::to_string(*seconds) +
                          " must be None or a number of seconds from 0 up");
  }
  return Duration(*seconds);
}

/// `requests` is a one-dimensional C-contiguous array of REQUEST_DTYPE: the Python side has checked it.
py::tuple submit(StorageRuntime& runtime, const py::array& requests) {
  if (requests.ndim() != 1 || requests.itemsize() != static_cast<py::ssize_t>(sizeof(IoRequest)) ||
      !(requests.flags() & py::array::c_style) ||
      reinterpret_cast<std::uintptr_t>(requests.data()) % alignof(IoRequest) != 0) {
    throw py::type_error("requests must be a one-dimensional, contiguous, aligned array of REQUEST_DTYPE");
  }
  const auto count = static_cast<std::size_t>(requests.shape(0));
  py::array_t<std::int32_t> errors(static_cast<py::ssize_t>(count));
  py::array_t<bool> accepted(static_cast<py::ssize_t>(count));
  const std::span<const IoRequest> items(static_cast<const IoRequest*>(requests.data()), count);
  const std::span<std::int32_t> reasons(errors.mutable_data(), count);
  bool* const flags = accepted.mutable_data();
  std::optional<std::uint64_t> handle;
  {
    py::gil_scoped_release release;
    handle = runtime.submit(items, reasons);
    for (std::size_t i = 0; i < count; ++i) {
      flags[i] = reasons[i] == 0;
    }
  }
  return py::make_tuple(handle, accepted, errors);
}

py::object wait(StorageRuntime& runtime, const py::object& handle, std::optional<double> timeout) {
  const std::uint64_t batch = to_handle(handle);
  const std::optional<Duration> limit = to_timeout(timeout);
  std::optional<Completion> completion;
  {
    py::gil_scoped_release release;
    completion = runtime.wait(batch, limit, check_signals);
  }
  if (!completion) {
    return py::none();
  }
  return py::make_tuple(to_array(completion->status), to_array(completion->bytes));
}

py::dict caps(StorageRuntime& runtime) {
  const StorageRuntime::Caps caps = runtime.caps();
  return py::dict("data_path"_a = caps.path.name, "chosen_because"_a = caps.chosen_because,
                  "direct"_a = caps.path.direct, "memory_alignment"_a = kMemoryAlignment,
                  "offset_alignment"_a = kIoAlignment, "length_alignment"_a = kIoAlignment,
                  "max_single_io_bytes"_a = kMaxSingleIoBytes, "max_batch_requests"_a = caps.max_in_flight,
                  "max_in_flight"_a = caps.max_in_flight, "memory_kinds"_a = py::list(py::make_tuple("host")),
                  "device_execution"_a = false, "features_used"_a = caps.path.features_used,
                  "features_unused"_a = caps.path.features_unused);
}

py::dict stats(StorageRuntime& runtime) {
  const Stats stats = runtime.stats();
  return py::dict("submitted"_a = stats.submitted, "accepted"_a = stats.accepted,
                  "rejected"_a = stats.rejected, "completed"_a = stats.completed, "failed"_a = stats.failed,
                  "bytes_read"_a = stats.bytes_read, "bytes_written"_a = stats.bytes_written,
                  "direct_fallbacks"_a = stats.direct_fallbacks);
}

template <typename T>
T pick(const char* key, const std::string& value, std::initializer_list<std::pair<const char*, T>> choices) {
  for (const auto& [name, choice] : choices) {
    if (value == name) {
      return choice;
    }
  }
  throw InvalidArgument(std::string(key) + "='" + value + "' is not known");
}

Holder make_file(const std::string& data_path, const std::string& direct, std::uint32_t queue_depth,
                 std::uint32_t max_in_flight, std::uint32_t threads) {
  FileConfig config;
  config.data_path = pick<DataPathChoice>("data_path", data_path,
                                          {{"auto", DataPathChoice::kAuto},
                                           {"uring", DataPathChoice::kUring},
                                           {"posix", DataPathChoice::kPosix}});
  config.direct = pick<DirectPolicy>(
      "direct", direct,
      {{"auto", DirectPolicy::kAuto}, {"on", DirectPolicy::kOn}, {"off", DirectPolicy::kOff}});
  config.queue_depth = queue_depth;
  config.max_in_flight = max_in_flight;
  config.threads = threads;
  py::gil_scoped_release release;
  return Holder(make_file_runtime(config).release());
}

Holder make_memory(std::uint32_t max_in_flight) {
  return Holder(make_memory_runtime(max_in_flight).release());
}

void raise(const char* name, const Error& error) {
  const py::object type = py::module_::import("tutti_runtime.errors").attr(name);
  PyErr_SetString(type.ptr(), error.what());
}

// OSError picks its own subclass (FileNotFoundError, ...) from the errno, which PyErr_SetString would lose.
void raise_os_error(const SystemError& error) {
  const py::object builtin = py::module_::import("builtins").attr("OSError");
  py::object instance;
  if (error.path().empty()) {
    instance = builtin(error.error_number(), error.what());
  } else {
    const auto size = static_cast<Py_ssize_t>(error.path().size());
    const auto name =
        py::reinterpret_steal<py::object>(PyUnicode_DecodeFSDefaultAndSize(error.path().data(), size));
    instance = builtin(error.error_number(), error.what(), name);
  }
  PyErr_SetObject(py::type::handle_of(instance).ptr(), instance.ptr());
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) {
      std::rethrow_exception(std::move(pointer));
    }
  } catch (const SystemError& error) {
    raise_os_error(error);
  } catch (const InvalidUri& error) {
    raise("InvalidUriError", error);
  } catch (const InvalidHandle& error) {
    raise("InvalidHandleError", error);
  } catch (const InvalidArgument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const Busy& error) {
    raise("BusyError", error);
  } catch (const Closed& error) {
    raise("RuntimeClosedError", error);
  } catch (const Forked& error) {
    raise("ForkedRuntimeError", error);
  } catch (const Error& error) {
    raise("TuttiRuntimeError", error);
  }
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "Compiled part of tutti_runtime; use the package, not this module.";
  py::register_exception_translator(translate);
  m.attr("REQUEST_ITEMSIZE") = sizeof(IoRequest);
  m.def("make_file", &make_file, "data_path"_a, "direct"_a, "queue_depth"_a, "max_in_flight"_a, "threads"_a);
  m.def("make_memory", &make_memory, "max_in_flight"_a);

  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<StorageRuntime, Holder>(m, "StorageRuntime")
      .def("open", &StorageRuntime::open, "uri"_a, "writable"_a, Release())
      .def("close",
           [](StorageRuntime& r, const py::object& h) {
             const std::uint64_t handle = to_handle(h);
             py::gil_scoped_release release;
             r.close(handle);
           })
      .def("register_memory", &StorageRuntime::register_memory, "address"_a, "size"_a, Release())
      .def("unregister_memory",
           [](StorageRuntime& r, const py::object& h) {
             const std::uint64_t handle = to_handle(h);
             py::gil_scoped_release release;
             r.unregister_memory(handle);
           })
      .def("submit", &submit, "requests"_a)
      .def("poll", [](StorageRuntime& r, const py::object& h) { return r.poll(to_handle(h)); })
      .def("wait", &wait, "handle"_a, "timeout"_a)
      .def("abandon", [](StorageRuntime& r, const py::object& h) { r.abandon(to_handle(h)); })
      .def("completion_fd", &StorageRuntime::completion_fd)
      .def("caps", &caps)
      .def("stats", &stats)
      .def("shutdown",
           [](StorageRuntime& r, double timeout) {
             const Duration limit = *to_timeout(timeout);
             py::gil_scoped_release release;
             return r.shutdown(limit);
           })
      .def_property_readonly("stopped", &StorageRuntime::stopped)
      .def_property_readonly("is_owner", &StorageRuntime::is_owner)
      .def_property_readonly("direct_fallbacks", &StorageRuntime::direct_fallbacks);
}

}  // namespace tutti::runtime
