// What carries a rank's packets.
#pragma once

#include <cstdint>
#include <string_view>

namespace tarpon {

/// automatic: AF_XDP where it is loaded and zero-copy, else io_uring, else (forbidden) mmsg.
enum class Datapath : std::uint8_t { automatic, xdp, uring, mmsg };

std::string_view name(Datapath datapath);

}  // namespace tarpon
