#include "collectives/port_range.h"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <optional>

namespace tarpon {
namespace {

std::optional<std::uint16_t> parse_port(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port == 0) return std::nullopt;
  return port;
}

}  // namespace

Result<PortRange> parse_port_range(std::string_view text) {
  const std::size_t dash = text.find('-');
  const auto first = parse_port(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : parse_port(text.substr(dash + 1));
  if (first && last && *first <= *last) return PortRange{*first, *last};
  return fail(Error::Code::invalid_argument,
              fmt::format("\"{}\" is not a range of ports from 1 to 65535: write for example "
                          "29600-29699",
                          text));
}

bool is_port_in_use(const Error& error) {
  return error.system_errno == EADDRINUSE;
}

Error no_port_left(const PortRange& range, const std::string& what) {
  return Error::make(
      Error::Code::unavailable,
      fmt::format(
          "no {} of {}-{} is free: each rank of a host needs 4 UDP ports (as many as it has "
          "flows) and 1 TCP port, rank 0 one more: widen the range (--ports, TARPON_PORTS "
          "or the option ports)",
          what, range.first, range.last));
}

}  // namespace tarpon
