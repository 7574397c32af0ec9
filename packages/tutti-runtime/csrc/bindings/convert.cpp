// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "bindings.hpp"
#include "tutti/runtime/error.hpp"

namespace tutti::runtime::bindings {

void LeakIfUnsafe::operator()(StorageRuntime* runtime) const {
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

}  // namespace tutti::runtime::bindings
