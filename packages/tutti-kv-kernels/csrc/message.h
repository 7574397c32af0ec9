// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <stdexcept>

namespace tutti::kv {

// @throws std::invalid_argument whose text is the arguments, one after the other.
template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream text;
  text << "tutti_kv_kernels: ";
  (text << ... << parts);
  throw std::invalid_argument(text.str());
}

}  // namespace tutti::kv
