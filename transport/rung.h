// The rule of `auto`: which data path a job takes on an interface, and why.
//
// A job attaches nothing by itself. AF_XDP is the fastest where our program is loaded and frames
// are not copied; where it would copy, UDP trains over io_uring carry more; without io_uring it is
// sendmmsg.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "xdp/helper_messages.h"

namespace tarpon {

enum class Rung : std::uint8_t { xdp, uring, mmsg };

/// "xdp", "uring", "mmsg".
std::string_view name(Rung rung);

/// The largest MTU whose frames fit one buffer: the lowest of the known drivers' limits (ena's).
inline constexpr std::uint32_t kSingleBufferMtu = 3498;

/// Buffers that a frame of this MTU takes in AF_XDP's memory.
constexpr std::uint32_t buffers_for_mtu(std::uint32_t mtu) {
  constexpr std::uint32_t kEthernet = 14;
  constexpr std::uint32_t kChunk = 4096 - 256;  // less the kernel's headroom
  return mtu <= kSingleBufferMtu ? 1 : std::max(2u, (mtu + kEthernet + kChunk - 1) / kChunk);
}

/// What rules out each data path: one clause, empty where nothing does.
struct RungFacts {
  std::string against_zero_copy;
  std::string against_uring;
  /// By tarpon xdp serve, where this process may not use AF_XDP itself.
  std::optional<xdp::ServedMode> served{};
};

/// How the reason begins where Rung::uring is chosen.
inline constexpr std::string_view kUringUsable = "io_uring is usable";

struct RungChoice {
  Rung rung = Rung::mmsg;
  std::string reason;  // one line: "io_uring is usable; not AF_XDP: ..." (kUringUsable)
};

/// Pure.
RungChoice choose_rung(const RungFacts& facts);

/// Asks the kernel about `interface` (a name in this network namespace) with this MTU. Changes
/// nothing. Any thread.
RungFacts read_rung_facts(const std::string& interface, std::uint32_t mtu);

}  // namespace tarpon
