// What limits the traffic of a rank: the rule of its receivers, and that of its senders.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <cstdint>

namespace tarpon {

/// How a receiver limits what is sent to it.
enum class InflowRule : std::uint8_t {
  window,  // credit over all senders, adapted and paced by loss, delivery and delay
  incast,  // OptiReduce: a number of senders at once, +1 after a clean round, half after loss
};

/// What limits a sender besides credit.
enum class SendRule : std::uint8_t {
  credit,  // nothing
  timely,  // OptiReduce: a rate per peer that follows the round trip
};

}  // namespace tarpon
