// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/error.hpp"

#include <exception>
#include <utility>

#include "bindings.hpp"

namespace tutti::runtime::bindings {
namespace {

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

void translate_errors() { py::register_exception_translator(translate); }

}  // namespace tutti::runtime::bindings
