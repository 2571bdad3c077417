// Hello and verdict: encoding, and the comparison of two ranks in words.
#include "collectives/rendezvous/hello.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "collectives/rendezvous/control_frame.h"
#include "xdp/base/printable.h"

namespace tarpon::rendezvous {
namespace {

constexpr std::uint32_t kMagic = 0x4e505254;  // "TRPN"
constexpr std::size_t kFixedBytes = 24;
constexpr std::size_t kVerdictBytes = 12;

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

Difference mismatch(std::string for_host, std::string for_guest) {
  return {Error::make(Error::Code::mismatch, std::move(for_host)),
          Error::make(Error::Code::mismatch, std::move(for_guest))};
}

/// `there` and `here`: the value of `key` at `rank` and at rank 0; nothing if it lacks the option.
Difference differs(std::uint32_t rank, std::string_view key, std::optional<std::string_view> there,
                   std::optional<std::string_view> here) {
  constexpr const char* kRemedy = "start all ranks with the same version and options";
  const auto words = [&](std::optional<std::string_view> value) {
    return value ? fmt::format("{}={}", printable(key), printable(*value)) : "no " + printable(key);
  };
  const std::string told =
      there ? fmt::format("rank {} runs with {}, rank 0 does not", rank, words(there))
            : fmt::format("rank {} lacks an option that rank 0 has", rank);
  return mismatch(fmt::format("rank {} runs with {} where rank 0 has {}: {}", rank, words(there),
                              words(here), kRemedy),
                  fmt::format("{}: {}", told, kRemedy));
}

std::optional<Difference> options_difference(const Hello& host, const Hello& guest) {
  const auto here = options(host.agreed);
  const auto there = options(guest.agreed);
  // An option that both have says more than one that exists only because of another.
  for (const auto& [key, value] : there) {
    const auto found = here.find(key);
    if (found != here.end() && found->second != value) {
      return differs(guest.rank, key, value, found->second);
    }
  }
  for (const auto& [key, value] : there) {
    if (!here.contains(key)) return differs(guest.rank, key, value, std::nullopt);
  }
  for (const auto& [key, value] : here) {
    if (!there.contains(key)) return differs(guest.rank, key, std::nullopt, value);
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
  if (body.size() < kFixedBytes || read_u32(body.data()) != kMagic) return std::nullopt;
  Hello hello;
  hello.version = read_u32(body.data() + 4);
  hello.rank = read_u32(body.data() + 8);
  hello.world_size = read_u32(body.data() + 12);
  hello.nonce = read_u32(body.data() + 16) | std::uint64_t{read_u32(body.data() + 20)} << 32;
  hello.agreed = body.substr(kFixedBytes);
  return hello;
}

std::optional<Difference> difference(const Hello& host, const Hello& guest) {
  if (guest.version != host.version) {
    constexpr const char* kRemedy = "install the same Tarpon on all hosts";
    return mismatch(fmt::format("rank {} speaks wire version {} where rank 0 speaks {}: {}",
                                guest.rank, guest.version, host.version, kRemedy),
                    fmt::format("rank {} speaks wire version {} and rank 0 another one: {}",
                                guest.rank, guest.version, kRemedy));
  }
  if (guest.world_size != host.world_size) {
    constexpr const char* kRemedy = "start all ranks with the same world size";
    return mismatch(fmt::format("rank {} expects {} ranks where rank 0 expects {}: {}", guest.rank,
                                guest.world_size, host.world_size, kRemedy),
                    fmt::format("rank {} expects {} ranks and rank 0 another number: {}",
                                guest.rank, guest.world_size, kRemedy));
  }
  if (guest.rank >= host.world_size) {
    const Error error =
        Error::make(Error::Code::invalid_argument,
                    fmt::format("rank {} is out of range: {} ranks are numbered 0 to {}",
                                guest.rank, host.world_size, host.world_size - 1));
    return Difference{error, error};
  }
  return options_difference(host, guest);
}

std::string encode(const Verdict& verdict) {
  std::string bytes;
  bytes.reserve(kVerdictBytes + sizeof(JobKey));
  append_u32(bytes, verdict.error ? static_cast<std::uint32_t>(verdict.error->code) + 1 : 0);
  append_u32(bytes, verdict.job);
  append_u32(bytes, verdict.public_id);
  if (verdict.error) {
    bytes += verdict.error->message;
  } else if (verdict.packet_key) {
    bytes.append(reinterpret_cast<const char*>(verdict.packet_key->data()),
                 verdict.packet_key->size());
  }
  return bytes;
}

std::optional<Verdict> decode_verdict(std::string_view body) {
  constexpr auto kLastCode = static_cast<std::uint32_t>(Error::Code::io);
  if (body.size() < kVerdictBytes) return std::nullopt;
  const std::uint32_t code = read_u32(body.data());
  if (code > kLastCode + 1) return std::nullopt;
  Verdict verdict;
  verdict.job = read_u32(body.data() + 4);
  verdict.public_id = read_u32(body.data() + 8);
  if (code > 0) {
    verdict.error = Error::make(static_cast<Error::Code>(code - 1),
                                printable(body.substr(kVerdictBytes), kLongestMessage));
  } else if (body.size() == kVerdictBytes + sizeof(JobKey)) {
    std::memcpy(verdict.packet_key.emplace().data(), body.data() + kVerdictBytes, sizeof(JobKey));
  }
  return verdict;
}

}  // namespace tarpon::rendezvous
