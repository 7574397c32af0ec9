// SPDX-License-Identifier: Apache-2.0
#include "tutti/runtime/target_uri.hpp"

#include <cerrno>
#include <charconv>
#include <climits>

#include "tutti/runtime/error.hpp"

namespace tutti::runtime {
namespace {

constexpr std::string_view kFilePrefix = "file://";
constexpr std::string_view kMemoryPrefix = "mem://";
constexpr std::size_t kMaxName = 200;

[[noreturn]] void refuse(std::string_view uri, const std::string& rule) {
  // A hostile URI can be megabytes long: the message shows its beginning.
  constexpr std::size_t shown = 200;
  std::string text(uri.substr(0, shown));
  for (char& c : text) {
    if (c == '\0') {
      c = '?';
    }
  }
  throw InvalidUri("target URI '" + text + (uri.size() > shown ? "..." : "") + "': " + rule);
}

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
    refuse(uri, "'%' must be followed by two hexadecimal digits; write a percent sign as %25");
  }
  const char decoded = static_cast<char>(high * 16 + low);
  if (decoded == '/') {
    refuse(uri, "an encoded slash (%2F) would change the path's components; write '/'");
  }
  return decoded;
}

std::string decode_path(std::string_view uri, std::string_view encoded) {
  std::string path;
  path.reserve(encoded.size());
  for (std::size_t i = 0; i < encoded.size(); ++i) {
    char c = encoded[i];
    if (c == '?' || c == '#') {
      refuse(uri, "a file URI has no query and no fragment; write '?' as %3F and '#' as %23");
    }
    if (c == '%') {
      c = decode_escape(uri, encoded.substr(i));
      i += 2;
    }
    if (c == '\0') {
      refuse(uri, "a path cannot hold a NUL byte");
    }
    path.push_back(c);
  }
  return path;
}

void check_components(std::string_view uri, const std::string& path) {
  for (std::size_t begin = 1; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view component = std::string_view(path).substr(begin, end - begin);
    if (component == "..") {
      refuse(uri, "'..' components are refused; name the file by its own path");
    }
    if (component.size() > NAME_MAX) {
      throw SystemError(ENAMETOOLONG, "a path component has " + std::to_string(component.size()) +
                                          " bytes, at most " + std::to_string(NAME_MAX) + " are possible");
    }
    begin = end + 1;
  }
}

TargetUri parse_file(std::string_view uri) {
  const std::string_view encoded = uri.substr(kFilePrefix.size());
  if (encoded.empty() || encoded.front() != '/') {
    refuse(uri, "a file URI is file:///absolute/path, with three slashes and no host");
  }
  std::string path = decode_path(uri, encoded);
  if (path.size() >= PATH_MAX) {
    throw SystemError(ENAMETOOLONG, "the path has " + std::to_string(path.size()) + " bytes, at most " +
                                        std::to_string(PATH_MAX - 1) + " are possible");
  }
  check_components(uri, path);
  return {Scheme::kFile, std::move(path), 0};
}

bool is_name(std::string_view name) {
  constexpr std::string_view allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return !name.empty() && name.size() <= kMaxName &&
         name.find_first_not_of(allowed) == std::string_view::npos;
}

TargetUri parse_memory(std::string_view uri) {
  const std::string_view rest = uri.substr(kMemoryPrefix.size());
  const std::size_t mark = rest.find('?');
  const std::string_view name = rest.substr(0, mark);
  if (!is_name(name)) {
    refuse(uri, "a memory target's name has 1 to 200 characters of A-Z a-z 0-9 . _ -");
  }
  constexpr std::string_view key = "size=";
  const std::string_view query = mark == std::string_view::npos ? std::string_view{} : rest.substr(mark + 1);
  if (query.substr(0, key.size()) != key) {
    refuse(uri, "a memory target is mem://name?size=BYTES, and size is its only key");
  }
  const std::string_view digits = query.substr(key.size());
  std::uint64_t size = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
  if (error != std::errc{} || end != digits.data() + digits.size() || size == 0 || size > INT64_MAX) {
    refuse(uri, "size is a whole number of bytes, 1 to 2^63 - 1, in decimal digits");
  }
  return {Scheme::kMemory, std::string(name), size};
}

}  // namespace

TargetUri parse_target_uri(std::string_view uri) {
  if (uri.starts_with(kFilePrefix)) {
    return parse_file(uri);
  }
  if (uri.starts_with(kMemoryPrefix)) {
    return parse_memory(uri);
  }
  refuse(uri, "a target is file:///absolute/path or mem://name?size=BYTES");
}

}  // namespace tutti::runtime
