// The ports that the sockets of a rank take: any that are free, or those of a range that a firewall
// or a security group lets through.
//
// With flows by trial, a rank binds four UDP ports (one for each flow) and one TCP port (the
// control mesh). Rank 0 binds one TCP port more, unless its address names one. The ranks of a host
// share the range: each takes the next free ports.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <cstdint>
#include <string>
#include <string_view>

#include "xdp/base/result.h"

namespace tarpon {

struct PortRange {
  std::uint16_t first = 0;  // 0: the kernel chooses
  std::uint16_t last = 0;

  bool operator==(const PortRange&) const = default;
};

/// "29600-29699", or "29600" for one port. Errors (invalid_argument) name the value.
Result<PortRange> parse_port_range(std::string_view text);

/// Whether `error` is of a port that another socket has.
bool is_port_in_use(const Error& error);

/// Names the range, and what each rank needs of it. `what`: "TCP port".
Error no_port_left(const PortRange& range, const std::string& what);

/// Returns what `open(port)`, a function that returns a Result, makes of the first port of `range`
/// that is not in use; `open(0)` without a range. Errors: those of `open`; unavailable, if all
/// ports are in use.
template <typename Open>
auto open_in(const PortRange& range, const std::string& what, Open open)
    -> decltype(open(std::uint16_t{})) {
  if (range.first == 0) return open(std::uint16_t{0});
  for (std::uint32_t port = range.first; port <= range.last; ++port) {
    auto opened = open(static_cast<std::uint16_t>(port));
    if (opened || !is_port_in_use(opened.error())) return opened;
  }
  return fail(no_port_left(range, what));
}

}  // namespace tarpon
