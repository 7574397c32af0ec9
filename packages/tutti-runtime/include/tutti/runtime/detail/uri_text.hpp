// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::runtime::detail {

/// @throws InvalidUri with the beginning of `uri` and `rule`.
[[noreturn]] void refuse_uri(std::string_view uri, const std::string& rule);

/// Decodes every %XX once. @throws InvalidUri for a malformed escape, an encoded slash, a NUL, `?` or `#`.
[[nodiscard]] std::string decode_path(std::string_view uri, std::string_view encoded);

/// @throws InvalidUri for a `..` component, SystemError(ENAMETOOLONG) for a component over NAME_MAX or a path
/// that does not leave `room` bytes below PATH_MAX.
void check_path(std::string_view uri, std::string_view path, std::size_t room = 0);

/// Splits `key=value&key=value`. @throws InvalidUri for a key outside `known` or one that comes twice.
[[nodiscard]] std::vector<std::pair<std::string_view, std::string_view>> split_query(
    std::string_view uri, std::string_view query, std::span<const std::string_view> known);

/// A decimal number. @throws InvalidUri naming `key` and the bounds.
[[nodiscard]] std::uint64_t parse_number(std::string_view uri, std::string_view key, std::string_view digits,
                                         std::uint64_t least, std::uint64_t most);

/// What begins a root that is a namespace and not a folder.
inline constexpr std::string_view kNvmeRoot = "nvme://";

/// Whether a controller can have this name in a runtime.
[[nodiscard]] bool is_controller_name(std::string_view name) noexcept;

/// Appends the root of a striped target, without trailing slashes. @returns null, or the rule that it breaks
/// (it is then not appended).
[[nodiscard]] const char* add_root(std::vector<std::string>& roots, std::string root);

}  // namespace tutti::runtime::detail
