// Hello and verdict: encoding, and the comparison of two ranks in words.
#include "collectives/rendezvous/hello.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "collectives/rendezvous/connection.h"

namespace tarpon::rendezvous {
namespace {

constexpr std::uint32_t kMagic = 0x4e505254;  // "TRPN"
constexpr std::size_t kPlainBytes = 16;       // up to the world size
constexpr std::size_t kFixedBytes = 24;
constexpr std::size_t kShown = 80;  // characters of a peer's text in a message

/// A peer's text as part of a line: printable, and not too long.
std::string shown(std::string_view text) {
  std::string line(text.substr(0, kShown));
  for (char& c : line) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text.size() > kShown ? line + "..." : line;
}

/// "name=value" lines by name.
std::map<std::string_view, std::string_view> options(std::string_view text) {
  std::map<std::string_view, std::string_view> values;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.empty()) continue;
    const std::string_view key = line.substr(0, line.find('='));
    values[key] = line.substr(std::min(key.size() + 1, line.size()));
  }
  return values;
}

Error differs(std::uint32_t rank, std::string_view key, std::optional<std::string_view> there,
              std::optional<std::string_view> here) {
  const auto words = [&](std::optional<std::string_view> value) {
    return value ? fmt::format("{}={}", shown(key), shown(*value)) : "no " + shown(key);
  };
  return Error::make(
      Error::Code::mismatch,
      fmt::format("rank {} runs with {} where rank 0 has {}: start all ranks with the "
                  "same version and options",
                  rank, words(there), words(here)));
}

std::optional<Error> options_difference(const Hello& host, const Hello& other) {
  const auto here = options(host.agreed);
  const auto there = options(other.agreed);
  for (const auto& [key, value] : here) {
    const auto found = there.find(key);
    if (found == there.end()) return differs(other.rank, key, std::nullopt, value);
    if (found->second != value) return differs(other.rank, key, found->second, value);
  }
  for (const auto& [key, value] : there) {
    if (!here.contains(key)) return differs(other.rank, key, value, std::nullopt);
  }
  return std::nullopt;
}

}  // namespace

std::string encode(const Hello& hello) {
  std::string bytes;
  append_u32(bytes, kMagic);
  append_u32(bytes, hello.version);
  append_u32(bytes, hello.rank);
  append_u32(bytes, hello.world_size);
  append_u32(bytes, static_cast<std::uint32_t>(hello.nonce));
  append_u32(bytes, static_cast<std::uint32_t>(hello.nonce >> 32));
  return bytes + hello.agreed;
}

std::optional<Hello> decode_hello(std::string_view body) {
  if (body.size() < kPlainBytes || read_u32(body.data()) != kMagic) return std::nullopt;
  Hello hello;
  hello.version = read_u32(body.data() + 4);
  hello.rank = read_u32(body.data() + 8);
  hello.world_size = read_u32(body.data() + 12);
  if (body.size() >= kFixedBytes) {
    hello.nonce = read_u32(body.data() + 16) | std::uint64_t{read_u32(body.data() + 20)} << 32;
    hello.agreed = body.substr(kFixedBytes);
  }
  return hello;
}

std::optional<Error> difference(const Hello& host, const Hello& other) {
  if (other.version != host.version) {
    return Error::make(
        Error::Code::mismatch,
        fmt::format(
            "rank {} speaks wire version {} where rank 0 speaks {}: install the same Tarpon "
            "on all hosts",
            other.rank, other.version, host.version));
  }
  if (other.world_size != host.world_size) {
    return Error::make(
        Error::Code::mismatch,
        fmt::format(
            "rank {} expects {} ranks where rank 0 expects {}: start all ranks with the same "
            "world size",
            other.rank, other.world_size, host.world_size));
  }
  if (other.rank >= host.world_size) {
    return Error::make(Error::Code::invalid_argument,
                       fmt::format("rank {} is out of range: {} ranks are numbered 0 to {}",
                                   other.rank, host.world_size, host.world_size - 1));
  }
  return options_difference(host, other);
}

std::string encode(const Verdict& verdict) {
  std::string bytes;
  append_u32(bytes, verdict.error ? static_cast<std::uint32_t>(verdict.error->code) + 1 : 0);
  append_u32(bytes, verdict.job);
  if (verdict.error) bytes += verdict.error->message;
  return bytes;
}

std::optional<Verdict> decode_verdict(std::string_view body) {
  constexpr auto kLastCode = static_cast<std::uint32_t>(Error::Code::io);
  if (body.size() < 8) return std::nullopt;
  const std::uint32_t code = read_u32(body.data());
  if (code > kLastCode + 1) return std::nullopt;
  Verdict verdict;
  verdict.job = read_u32(body.data() + 4);
  if (code > 0) {
    verdict.error = Error::make(static_cast<Error::Code>(code - 1), std::string(body.substr(8)));
  }
  return verdict;
}

}  // namespace tarpon::rendezvous
