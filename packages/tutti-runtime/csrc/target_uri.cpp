// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/target_uri.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <utility>

#include "tutti/runtime/detail/uri_text.hpp"
#include "tutti/runtime/io.hpp"

namespace tutti::runtime {
namespace {

using detail::check_path;
using detail::decode_path;
using detail::parse_number;
using detail::refuse_uri;

constexpr std::size_t kMaxName = 200;

std::string parse_absolute(std::string_view uri, std::string_view encoded, const char* rule) {
  if (encoded.empty() || encoded.front() != '/') {
    refuse_uri(uri, rule);
  }
  std::string path = decode_path(uri, encoded);
  check_path(uri, path);
  return path;
}

TargetUri parse_file(std::string_view uri, std::string_view rest) {
  constexpr const char* rule = "a file URI is file:///absolute/path, with three slashes and no host";
  return {Scheme::kFile, parse_absolute(uri, rest, rule)};
}

bool is_name(std::string_view name) {
  constexpr std::string_view allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return !name.empty() && name.size() <= kMaxName &&
         name.find_first_not_of(allowed) == std::string_view::npos;
}

/// What stands before the first `?`, and what behind it.
std::pair<std::string_view, std::string_view> split_at_query(std::string_view rest) {
  const std::size_t mark = std::min(rest.find('?'), rest.size());
  return {rest.substr(0, mark), rest.substr(std::min(mark + 1, rest.size()))};
}

TargetUri parse_memory(std::string_view uri, std::string_view rest) {
  const auto [name, query] = split_at_query(rest);
  if (!is_name(name)) {
    refuse_uri(uri, "a memory target's name has 1 to 200 characters of A-Z a-z 0-9 . _ -");
  }
  constexpr std::string_view key = "size=";
  if (query.substr(0, key.size()) != key) {
    refuse_uri(uri, "a memory target is mem://name?size=BYTES, and size is its only key");
  }
  return {Scheme::kMemory, std::string(name),
          parse_number(uri, "size", query.substr(key.size()), 1, INT64_MAX)};
}

std::uint64_t parse_aligned(std::string_view uri, std::string_view key, std::string_view digits,
                            std::uint64_t least) {
  const std::uint64_t number = parse_number(uri, key, digits, least, INT64_MAX);
  if (number % kIoAlignment != 0) {
    refuse_uri(uri, std::string(key) + " is a multiple of 4096");
  }
  return number;
}

TargetUri parse_raw(std::string_view uri, std::string_view rest) {
  constexpr std::array<std::string_view, 2> keys{"offset", "size"};
  const auto [path, query] = split_at_query(rest);
  TargetUri parsed{Scheme::kRaw,
                   parse_absolute(uri, path, "a raw URI is raw:///absolute/path?offset=BYTES&size=BYTES")};
  for (const auto& [key, value] : detail::split_query(uri, query, keys)) {
    if (key == "offset") {
      parsed.offset = parse_aligned(uri, key, value, 0);
    } else {
      parsed.size = parse_aligned(uri, key, value, kIoAlignment);
    }
  }
  return parsed;
}

TargetUri parse_nvme(std::string_view uri, std::string_view rest) {
  constexpr std::array<std::string_view, 3> keys{"offset", "size", "broker"};
  const auto [place, query] = split_at_query(rest);
  const std::size_t slash = place.find('/');
  if (slash == std::string_view::npos || !detail::is_controller_name(place.substr(0, slash))) {
    refuse_uri(
        uri,
        "an NVMe target is nvme://name/nsid?offset=BYTES&size=BYTES, with a controller's name of 1 to 200 "
        "characters of A-Z a-z 0-9 . _ - :");
  }
  TargetUri parsed{Scheme::kNvme, std::string(place.substr(0, slash))};
  parsed.nsid =
      static_cast<std::uint32_t>(parse_number(uri, "nsid", place.substr(slash + 1), 1, UINT32_MAX - 1));
  for (const auto& [key, value] : detail::split_query(uri, query, keys)) {
    if (key == "offset") {
      parsed.offset = parse_aligned(uri, key, value, 0);
    } else if (key == "broker") {
      parsed.broker = parse_absolute(uri, value, "broker is the absolute path of a socket");
    } else {
      parsed.size = parse_aligned(uri, key, value, kIoAlignment);
    }
  }
  return parsed;
}

std::string parse_shard_path(std::string_view uri, std::string_view encoded) {
  if (!encoded.empty() && encoded.front() == '/') {
    encoded.remove_prefix(1);  // striped:///name is the same as striped://name
  }
  std::string path = decode_path(uri, encoded);
  check_path(uri, path);
  const std::string framed = "/" + path + "/";
  if (framed.find("//") != std::string::npos || framed.find("/./") != std::string::npos) {
    refuse_uri(uri, "a striped target's name is a relative path without empty and '.' components");
  }
  return path;
}

std::vector<std::string> parse_roots(std::string_view uri, std::string_view list, std::size_t name_size) {
  std::vector<std::string> roots;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    std::string root = decode_path(uri, list.substr(begin, end - begin));
    check_path(uri, root, name_size + 1);
    if (const char* rule = detail::add_root(roots, std::move(root))) {
      refuse_uri(
          uri,
          std::string("roots is a list of paths with commas between them (one in a path is %2C); ") + rule);
    }
    begin = end + 1;
  }
  return roots;
}

TargetUri parse_striped(std::string_view uri, std::string_view rest) {
  constexpr std::array<std::string_view, 5> keys{"roots", "unit", "rot", "size", "offset"};
  const auto [name, query] = split_at_query(rest);
  TargetUri parsed{Scheme::kStriped, parse_shard_path(uri, name)};
  std::optional<std::uint64_t> rotation;
  for (const auto& [key, value] : detail::split_query(uri, query, keys)) {
    if (key == "roots") {
      parsed.roots = parse_roots(uri, value, parsed.path.size());
    } else if (key == "unit") {
      parsed.unit = parse_number(uri, key, value, kIoAlignment, kMaxStripeUnit);
      if (!std::has_single_bit(parsed.unit)) {
        refuse_uri(uri, "unit is a power of two");
      }
    } else if (key == "rot") {
      rotation = parse_number(uri, key, value, 0, kMaxRoots - 1);
    } else if (key == "offset") {
      parsed.offset = parse_aligned(uri, key, value, 0);
    } else {
      parsed.size = parse_aligned(uri, key, value, kIoAlignment);
    }
  }
  parsed.rotation = static_cast<std::uint32_t>(rotation.value_or(0));
  if (!parsed.roots.empty() && parsed.rotation >= parsed.roots.size()) {
    refuse_uri(uri, "rot is less than the number of roots");
  }
  return parsed;
}

}  // namespace

TargetUri parse_target_uri(std::string_view uri) {
  using Parser = TargetUri (*)(std::string_view, std::string_view);
  constexpr std::array<std::pair<std::string_view, Parser>, 5> parsers{{{"file://", parse_file},
                                                                        {"mem://", parse_memory},
                                                                        {"striped://", parse_striped},
                                                                        {"raw://", parse_raw},
                                                                        {"nvme://", parse_nvme}}};
  for (const auto& [prefix, parse] : parsers) {
    if (uri.starts_with(prefix)) {
      return parse(uri, uri.substr(prefix.size()));
    }
  }
  refuse_uri(uri,
             "a target is file:///absolute/path, striped://name?roots=/a,/b, raw:///dev/name, "
             "nvme://name/nsid or mem://name?size=BYTES");
}

}  // namespace tutti::runtime
