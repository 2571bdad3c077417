// What carries a rank's packets.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <cstdint>
#include <string_view>

namespace tarpon {

/// automatic: AF_XDP if it is loaded and zero-copy, else io_uring, or mmsg if that is forbidden.
enum class Datapath : std::uint8_t { automatic, xdp, uring, mmsg };

std::string_view name(Datapath datapath);

}  // namespace tarpon
