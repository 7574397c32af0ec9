// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tutti::runtime::shim {

/// A shared library that was opened at run time and stays open: drivers start threads that must not lose
/// their code.
class Library {
 public:
  /// @throws SystemError(ENOENT) with the loader's words when it cannot be opened.
  explicit Library(const std::string& name);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }

  /// Null when the library has no such symbol.
  [[nodiscard]] void* find(const char* symbol) const noexcept;

  /// Sets `function` to the symbol. @throws SystemError(ENOSYS) naming library and symbol.
  template <typename Function>
  void require(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(require_address(symbol));
  }

  /// Sets `function` to the symbol, or to null.
  template <typename Function>
  void take(Function*& function, const char* symbol) const noexcept {
    function = reinterpret_cast<Function*>(find(symbol));
  }

 private:
  [[nodiscard]] void* require_address(const char* symbol) const;

  std::string name_;
  void* handle_;
};

}  // namespace tutti::runtime::shim
