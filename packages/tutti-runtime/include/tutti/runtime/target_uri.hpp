// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::runtime {

enum class Scheme { kFile, kMemory };

/// A parsed target URI.
///
///   file:///absolute/path    authority empty; every %XX is decoded exactly once; `?` and `#` must be written
///                            %3F and %23; no `..` component, no NUL, no encoded slash
///   mem://name?size=BYTES    name of 1 to 200 characters of A-Z a-z 0-9 . _ -; size > 0
struct TargetUri {
  Scheme scheme;
  std::string path;        ///< file: absolute path in bytes; memory: the name
  std::uint64_t size = 0;  ///< memory only
};

/// @throws InvalidUri naming the URI and the rule; SystemError(ENAMETOOLONG) for a path the system cannot
/// hold.
[[nodiscard]] TargetUri parse_target_uri(std::string_view uri);

}  // namespace tutti::runtime
