// SPDX-License-Identifier: Apache-2.0
#include <pybind11/functional.h>

#include <span>

#include "bindings.hpp"
#include "tutti/runtime/io.hpp"

namespace tutti::runtime::bindings {
namespace {

using namespace py::literals;

void check_signals() {
  py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) {
    throw py::error_already_set();
  }
}

/// `requests` is a one-dimensional C-contiguous array of REQUEST_DTYPE: the Python side has checked it.
py::tuple submit(StorageRuntime& runtime, const py::array& requests, const py::object& timeout,
                 const py::object& after, const py::object& gate, std::optional<std::uint64_t> stream,
                 bool on_device) {
  if (requests.ndim() != 1 || requests.itemsize() != static_cast<py::ssize_t>(sizeof(IoRequest)) ||
      !(requests.flags() & py::array::c_style) ||
      reinterpret_cast<std::uintptr_t>(requests.data()) % alignof(IoRequest) != 0) {
    throw py::type_error("requests must be a one-dimensional, contiguous, aligned array of REQUEST_DTYPE");
  }
  free_let_go();
  const auto count = static_cast<std::size_t>(requests.shape(0));
  py::array_t<std::int32_t> errors(static_cast<py::ssize_t>(count));
  py::array_t<bool> accepted(static_cast<py::ssize_t>(count));
  const std::span<const IoRequest> items(static_cast<const IoRequest*>(requests.data()), count);
  const std::span<std::int32_t> reasons(errors.mutable_data(), count);
  bool* const flags = accepted.mutable_data();
  SubmitOptions options = to_options(timeout, after, gate);
  options.stream = stream;
  options.on_device = on_device;
  std::optional<std::uint64_t> handle;
  {
    py::gil_scoped_release release;
    handle = runtime.submit(items, reasons, options);
    for (std::size_t i = 0; i < count; ++i) {
      flags[i] = reasons[i] == 0;
    }
  }
  return py::make_tuple(handle, accepted, errors);
}

/// None at the timeout, else (status, bytes) and, where items are late, (late, late_handle).
py::object wait(StorageRuntime& runtime, const py::object& handle, std::optional<double> timeout) {
  free_let_go();
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
  if (completion->late.empty()) {
    return py::make_tuple(to_array(completion->status), to_array(completion->bytes));
  }
  const py::array late = to_array(completion->late).attr("view")(py::dtype::of<bool>());
  return py::make_tuple(to_array(completion->status), to_array(completion->bytes), late,
                        completion->late_handle);
}

py::list memory_kinds(const DataPathCaps& path) {
  py::list kinds(py::make_tuple("host", "pinned_host"));
  if (path.device_memory) {
    kinds.append("device");
  }
  return kinds;
}

py::dict caps(StorageRuntime& runtime) {
  const StorageRuntime::Caps caps = runtime.caps();
  const bool stepped = !caps.path.stepped_down.empty();
  const py::object stepped_down = stepped ? py::object(py::str(caps.path.stepped_down)) : py::none();
  return py::dict(
      "data_path"_a = caps.path.name,
      "chosen_because"_a = stepped ? caps.path.stepped_down : caps.chosen_because,
      "stepped_down"_a = stepped_down, "direct"_a = caps.path.direct, "memory_alignment"_a = kMemoryAlignment,
      "offset_alignment"_a = kIoAlignment, "length_alignment"_a = kIoAlignment,
      "max_single_io_bytes"_a = kMaxSingleIoBytes, "max_batch_requests"_a = caps.max_in_flight,
      "max_in_flight"_a = caps.max_in_flight, "max_open_files"_a = caps.path.max_open_files,
      "max_results"_a = caps.max_results, "memory_kinds"_a = memory_kinds(caps.path),
      "device_execution"_a = caps.path.device_execution, "stream_ordered"_a = caps.path.stream_ordered,
      "features_used"_a = caps.path.features_used, "features_unused"_a = caps.path.features_unused);
}

py::dict stats(StorageRuntime& runtime) {
  const Stats stats = runtime.stats();
  return py::dict("submitted"_a = stats.submitted, "accepted"_a = stats.accepted,
                  "rejected"_a = stats.rejected, "completed"_a = stats.completed, "failed"_a = stats.failed,
                  "timed_out"_a = stats.timed_out, "canceled"_a = stats.canceled, "late"_a = stats.late,
                  "late_done"_a = stats.late_done, "bytes_read"_a = stats.bytes_read,
                  "bytes_written"_a = stats.bytes_written, "direct_fallbacks"_a = stats.direct_fallbacks,
                  "step_downs"_a = stats.step_downs);
}

}  // namespace

Class bind_runtime(py::module_& module) {
  module.attr("REQUEST_ITEMSIZE") = sizeof(IoRequest);
  using Release = py::call_guard<py::gil_scoped_release>;
  return Class(module, "StorageRuntime")
      .def(
          "open",
          [](StorageRuntime& runtime, const std::string& uri, bool writable,
             const std::vector<std::string>& roots) { return runtime.open(uri, writable, roots); },
          "uri"_a, "writable"_a, "roots"_a, Release())
      .def("close",
           [](StorageRuntime& r, const py::object& h) {
             const std::uint64_t handle = to_handle(h);
             py::gil_scoped_release release;
             r.close(handle);
           })
      .def("submit", &submit, "requests"_a, "timeout"_a = py::none(), "after"_a = py::none(),
           "gate"_a = py::none(), "stream"_a = py::none(), "on_device"_a = false)
      .def("poll", [](StorageRuntime& r, const py::object& h) { return r.poll(to_handle(h)); })
      .def("wait", &wait, "handle"_a, "timeout"_a)
      .def("abandon", [](StorageRuntime& r, const py::object& h) { r.abandon(to_handle(h)); })
      .def("cancel",
           [](StorageRuntime& r, const py::object& h) {
             const std::uint64_t handle = to_handle(h);
             py::gil_scoped_release release;
             r.cancel(handle);
           })
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
      .def_property_readonly("notice_count", &StorageRuntime::notice_count)
      .def("notices", &StorageRuntime::notices)
      .def_property_readonly("direct_fallbacks", &StorageRuntime::direct_fallbacks);
}

}  // namespace tutti::runtime::bindings
