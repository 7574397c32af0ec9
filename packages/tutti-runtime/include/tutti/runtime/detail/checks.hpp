// SPDX-License-Identifier: Apache-2.0
// Settings that runtimes of every kind have, checked in one place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/runtime/detail/paths.hpp"

namespace tutti::runtime::detail {

/// @throws InvalidArgument naming `key`, the value and the range.
void check_range(const char* key, std::uint32_t value, std::uint32_t least, std::uint32_t most);

/// @throws InvalidArgument
void check_in_flight(std::uint32_t max_in_flight, std::uint32_t max_results);

/// One grammar for roots and units: what a URI may name, the configuration may. @throws InvalidArgument
[[nodiscard]] StripeDefaults stripe_defaults(const std::vector<std::string>& roots, std::uint64_t unit);

}  // namespace tutti::runtime::detail
