// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/shim/library.hpp"

#include <dlfcn.h>

#include <cerrno>

#include "tutti/runtime/error.hpp"

namespace tutti::runtime::shim {

Library::Library(const std::string& name)
    : name_(name), handle_(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) {
    const char* reason = ::dlerror();
    throw SystemError(ENOENT, "cannot load " + name + ": " + (reason != nullptr ? reason : "no reason given"),
                      name);
  }
}

void* Library::find(const char* symbol) const noexcept { return ::dlsym(handle_, symbol); }

void* Library::require_address(const char* symbol) const {
  void* const address = find(symbol);
  if (address == nullptr) {
    throw SystemError(ENOSYS, name_ + " has no " + symbol + "; install a newer one", name_);
  }
  return address;
}

}  // namespace tutti::runtime::shim
