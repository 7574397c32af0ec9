// SPDX-License-Identifier: Apache-2.0
// What the binding files share. They are the only ones that know pybind11: arguments and results cross here,
// nothing is decided here.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/runtime/error.hpp"
#include "tutti/runtime/storage_runtime.hpp"

namespace tutti::runtime::bindings {

namespace py = pybind11;

/// Owns a runtime on behalf of a Python object. It is leaked, on purpose, where destroying it would be wrong:
/// in a forked child (its threads are not there) and when I/O is still in flight after the grace time (a late
/// drive must find its memory).
struct LeakIfUnsafe {
  void operator()(StorageRuntime* runtime) const;
};
using Holder = std::unique_ptr<StorageRuntime, LeakIfUnsafe>;

template <typename T>
py::array_t<T> to_array(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

/// Takes anything that is an integer to Python, NumPy's scalars too. @throws InvalidHandle, TypeError
[[nodiscard]] std::uint64_t to_handle(const py::object& value);

/// @throws InvalidArgument for a negative number or no number.
[[nodiscard]] std::optional<Duration> to_timeout(std::optional<double> seconds);

/// The Python exception that stands for one of C++.
[[nodiscard]] py::object to_exception(const std::exception_ptr& error);

/// Options of a submission; `after` is None, (memory, offset, value) or a Dependency, `gate` None,
/// (memory, offset, value) or a Gate, `timeout` None, seconds, or a float64 array with seconds for each
/// request (infinity: none).
[[nodiscard]] SubmitOptions to_options(const py::object& timeout, const py::object& after,
                                       const py::object& gate);

/// The choice that `value` names. @throws InvalidArgument
template <typename T>
T pick(const char* key, const std::string& value, std::initializer_list<std::pair<const char*, T>> choices) {
  for (const auto& [name, choice] : choices) {
    if (value == name) {
      return choice;
    }
  }
  throw InvalidArgument(std::string(key) + "='" + value + "' is not known");
}

/// Frees Python objects that batches kept alive and need no longer. Call it with the GIL held.
void free_let_go();

/// Makes exceptions of this library Python's. Once per module.
void translate_errors();

// One function per part; each adds its own to the module.
using Class = py::class_<StorageRuntime, Holder>;
Class bind_runtime(py::module_& module);
void bind_cuda(py::module_& module);
void bind_factories(py::module_& module, Class& runtime);
void bind_memory(Class& runtime);
void bind_nvme(py::module_& module);
void bind_targets(Class& runtime);
void bind_ordering(py::module_& module);
void bind_extents(py::module_& module);
void bind_nvme_bus(py::module_& module);
void bind_nvme_layers(py::module_& module);
void bind_nvme_broker(py::module_& module);
void bind_testing(py::module_& module);

}  // namespace tutti::runtime::bindings
