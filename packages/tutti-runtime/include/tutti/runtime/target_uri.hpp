// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::runtime {

enum class Scheme { kFile, kMemory, kStriped, kRaw, kNvme };

/// Most roots of one striped target.
inline constexpr std::size_t kMaxRoots = 64;
/// Largest striping unit: one request never needs to be larger either.
inline constexpr std::uint64_t kMaxStripeUnit = std::uint64_t{1} << 30;

/// A parsed target URI.
///
///   file:///absolute/path    authority empty; every %XX is decoded exactly once; `?` and `#` must be written
///                            %3F and %23; no `..` component, no NUL, no encoded slash
///   mem://name?size=BYTES    name of 1 to 200 characters of A-Z a-z 0-9 . _ -; size > 0
///   striped://name?roots=/a,/b&unit=BYTES&rot=N&size=BYTES
///                            name is a relative path below every root, written like a file's path and
///                            without empty, `.` or `..` components; all keys are optional and stand at most
///                            once. roots: 1 to 64 different absolute paths, a comma in one written %2C and a
///                            `&` %26. unit: power of two, 4 KiB to 1 GiB. rot: which root holds the first
///                            unit, counted from 0, less than the number of roots. size: multiple of 4 KiB
///   raw:///absolute/path?offset=BYTES&size=BYTES
///                            block device or image file; the slice begins at offset, a multiple of 4 KiB
///   nvme://name/nsid?offset=BYTES&size=BYTES&broker=/path
///                            a slice of a namespace; name is the controller's in this runtime (1 to 200
///                            characters of A-Z a-z 0-9 . _ - :), nsid its identifier from 1 on; broker: the
///                            socket of the tutti-nvmed that the runtime must have the controller from
///
/// A root of a striped target can be nvme://name/nsid too; each shard then begins at `offset` of its
/// namespace.
struct TargetUri {
  Scheme scheme;
  std::string path;          ///< absolute path; memory, nvme: the name; striped: path below each root
  std::uint64_t size = 0;    ///< memory: required; raw, nvme, striped: 0 for all there is
  std::uint64_t offset = 0;  ///< raw, nvme; striped: of each shard on an nvme root
  // NOLINTNEXTLINE(readability-redundant-member-init): GCC warns of aggregates that leave it out otherwise
  std::vector<std::string> roots{};  ///< striped only; empty for the runtime's own
  std::uint64_t unit = 0;            ///< striped only; 0 for the runtime's own
  std::uint32_t rotation = 0;        ///< striped only
  std::uint32_t nsid = 0;            ///< nvme only
  // NOLINTNEXTLINE(readability-redundant-member-init): as above
  std::string broker{};  ///< nvme only: the socket that the controller must be had from; empty: any
};

/// @throws InvalidUri naming the URI and the rule; SystemError(ENAMETOOLONG) for a path the system cannot
/// hold.
[[nodiscard]] TargetUri parse_target_uri(std::string_view uri);

}  // namespace tutti::runtime
