// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/detail/uri_text.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>

#include "tutti/runtime/error.hpp"
#include "tutti/runtime/target_uri.hpp"

namespace tutti::runtime::detail {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

char decode_escape(std::string_view uri, std::string_view rest) {
  const int high = rest.size() > 1 ? hex_digit(rest[1]) : -1;
  const int low = rest.size() > 2 ? hex_digit(rest[2]) : -1;
  if (high < 0 || low < 0) {
    refuse_uri(uri, "'%' must be followed by two hexadecimal digits; write a percent sign as %25");
  }
  const char decoded = static_cast<char>(high * 16 + low);
  if (decoded == '/') {
    refuse_uri(uri, "an encoded slash (%2F) would change the path's components; write '/'");
  }
  return decoded;
}

}  // namespace

void refuse_uri(std::string_view uri, const std::string& rule) {
  // A hostile URI can be megabytes long: the message shows its beginning.
  constexpr std::size_t shown = 200;
  std::string text(uri.substr(0, shown));
  std::replace(text.begin(), text.end(), '\0', '?');
  throw InvalidUri("target URI '" + text + (uri.size() > shown ? "..." : "") + "': " + rule);
}

std::string decode_path(std::string_view uri, std::string_view encoded) {
  std::string path;
  path.reserve(std::min<std::size_t>(encoded.size(), PATH_MAX));
  for (std::size_t i = 0; i < encoded.size(); ++i) {
    char c = encoded[i];
    if (c == '?' || c == '#') {
      refuse_uri(uri, "a path has no query and no fragment; write '?' as %3F and '#' as %23");
    }
    if (c == '%') {
      c = decode_escape(uri, encoded.substr(i));
      i += 2;
    }
    if (c == '\0') {
      refuse_uri(uri, "a path cannot hold a NUL byte");
    }
    path.push_back(c);
  }
  return path;
}

void check_path(std::string_view uri, std::string_view path, std::size_t room) {
  if (path.size() + room >= PATH_MAX) {
    throw SystemError(ENAMETOOLONG, "the path has " + std::to_string(path.size() + room) +
                                        " bytes, at most " + std::to_string(PATH_MAX - 1) + " are possible");
  }
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view component = path.substr(begin, end - begin);
    if (component == "..") {
      refuse_uri(uri, "'..' components are refused; name the file by its own path");
    }
    if (component.size() > NAME_MAX) {
      throw SystemError(ENAMETOOLONG, "a path component has " + std::to_string(component.size()) +
                                          " bytes, at most " + std::to_string(NAME_MAX) + " are possible");
    }
    begin = end + 1;
  }
}

std::vector<std::pair<std::string_view, std::string_view>> split_query(
    std::string_view uri, std::string_view query, std::span<const std::string_view> known) {
  std::vector<std::pair<std::string_view, std::string_view>> pairs;
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view item = query.substr(0, end);
    const std::size_t mark = item.find('=');
    const std::string_view key = item.substr(0, mark);
    if (mark == std::string_view::npos || std::find(known.begin(), known.end(), key) == known.end()) {
      std::string names;
      for (const std::string_view name : known) {
        names += (names.empty() ? "" : ", ") + std::string(name);
      }
      refuse_uri(uri, std::string("'").append(item.substr(0, 40)) +
                          "' is not key=value with one of the known keys: " + names);
    }
    for (const auto& [seen, value] : pairs) {
      if (seen == key) {
        refuse_uri(uri, "the key " + std::string(key) + " stands twice");
      }
    }
    pairs.emplace_back(key, item.substr(mark + 1));
    query.remove_prefix(std::min(end + 1, query.size()));
  }
  return pairs;
}

std::uint64_t parse_number(std::string_view uri, std::string_view key, std::string_view digits,
                           std::uint64_t least, std::uint64_t most) {
  std::uint64_t number = 0;
  const char* const end = digits.data() + digits.size();
  // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage): the end is given as well
  const auto [stop, error] = std::from_chars(digits.data(), end, number);
  if (error != std::errc{} || stop != end || number < least || number > most) {
    refuse_uri(uri, std::string(key) + " is a whole number from " + std::to_string(least) + " to " +
                        std::to_string(most) + ", in decimal digits");
  }
  return number;
}

bool is_controller_name(std::string_view name) noexcept {
  constexpr std::string_view allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-:";
  constexpr std::size_t most = 200;
  return !name.empty() && name.size() <= most && name.find_first_not_of(allowed) == std::string_view::npos;
}

const char* add_root(std::vector<std::string>& roots, std::string root) {
  if (roots.size() == kMaxRoots) {
    return "at most 64 roots";
  }
  if (!root.starts_with(kNvmeRoot) && (root.empty() || root.front() != '/')) {
    return "a root is an absolute path, or nvme://name/nsid";
  }
  if (root.find('\0') != std::string::npos) {
    return "a root holds no NUL";
  }
  root.resize(std::max<std::size_t>(root.find_last_not_of('/') + 1, 1));
  if (std::find(roots.begin(), roots.end(), root) != roots.end()) {
    return "a root stands only once: two shards would be one file";
  }
  roots.push_back(std::move(root));
  return nullptr;
}

}  // namespace tutti::runtime::detail
