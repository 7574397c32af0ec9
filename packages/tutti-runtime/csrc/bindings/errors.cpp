// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/error.hpp"

#include <cstring>
#include <exception>
#include <utility>

#include "bindings.hpp"
#include "tutti/runtime/extents.hpp"

namespace tutti::runtime::bindings {
namespace {

// Messages name paths, which are bytes, and a long one is cut anywhere.
py::object to_text(const char* bytes) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(bytes, static_cast<Py_ssize_t>(std::strlen(bytes)), "backslashreplace"));
}

void raise(const char* name, const Error& error) {
  const py::object type = py::module_::import("tutti_runtime.errors").attr(name);
  PyErr_SetObject(type.ptr(), to_text(error.what()).ptr());
}

// OSError picks its own subclass (FileNotFoundError, ...) from the errno, which PyErr_SetString would lose.
void raise_os_error(const SystemError& error) {
  const py::object builtin = py::module_::import("builtins").attr("OSError");
  py::object instance;
  if (error.path().empty()) {
    instance = builtin(error.error_number(), to_text(error.what()));
  } else {
    const auto size = static_cast<Py_ssize_t>(error.path().size());
    const auto name =
        py::reinterpret_steal<py::object>(PyUnicode_DecodeFSDefaultAndSize(error.path().data(), size));
    instance = builtin(error.error_number(), to_text(error.what()), name);
  }
  PyErr_SetObject(py::type::handle_of(instance).ptr(), instance.ptr());
}

void raise_extent_error(const ExtentRefused& error) {
  const py::object type = py::module_::import("tutti_runtime.errors").attr("ExtentError");
  const py::object instance = type(to_text(error.what()));
  instance.attr("reason") = name_of(error.rule());
  const Extent& extent = error.extent();
  if (extent.length != 0) {
    instance.attr("extent") = py::make_tuple(extent.logical, extent.physical, extent.length, error.flags());
  }
  PyErr_SetObject(type.ptr(), instance.ptr());
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) {
      std::rethrow_exception(std::move(pointer));
    }
  } catch (const SystemError& error) {
    raise_os_error(error);
  } catch (const ExtentRefused& error) {
    raise_extent_error(error);
  } catch (const InvalidUri& error) {
    raise("InvalidUriError", error);
  } catch (const InvalidHandle& error) {
    raise("InvalidHandleError", error);
  } catch (const InvalidArgument& error) {
    PyErr_SetObject(PyExc_ValueError, to_text(error.what()).ptr());
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

py::object to_exception(const std::exception_ptr& error) {
  try {
    translate(error);
  } catch (const std::exception& other) {
    PyErr_SetObject(PyExc_RuntimeError, to_text(other.what()).ptr());
  }
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return py::reinterpret_steal<py::object>(value);
}

void translate_errors() { py::register_exception_translator(translate); }

}  // namespace tutti::runtime::bindings
