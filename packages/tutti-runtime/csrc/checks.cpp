// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/detail/checks.hpp"

#include <bit>

#include "tutti/runtime/detail/uri_text.hpp"
#include "tutti/runtime/error.hpp"
#include "tutti/runtime/io.hpp"
#include "tutti/runtime/target_uri.hpp"

namespace tutti::runtime::detail {

void check_range(const char* key, std::uint32_t value, std::uint32_t least, std::uint32_t most) {
  if (value < least || value > most) {
    throw InvalidArgument(std::string(key) + "=" + std::to_string(value) + " must be between " +
                          std::to_string(least) + " and " + std::to_string(most));
  }
}

void check_in_flight(std::uint32_t max_in_flight, std::uint32_t max_results) {
  check_range("max_in_flight", max_in_flight, 1, 1 << 20);
  check_range("max_results", max_results, 1, 1 << 24);
}

StripeDefaults stripe_defaults(const std::vector<std::string>& roots, std::uint64_t unit) {
  StripeDefaults defaults{{}, unit};
  if (!std::has_single_bit(unit) || unit < kIoAlignment || unit > kMaxStripeUnit) {
    throw InvalidArgument("unit=" + std::to_string(unit) + " must be a power of two from 4096 to 1073741824");
  }
  for (const std::string& root : roots) {
    if (const char* rule = add_root(defaults.roots, root)) {
      throw InvalidArgument("roots: '" + root + "' breaks the rule: " + rule);
    }
  }
  return defaults;
}

}  // namespace tutti::runtime::detail
