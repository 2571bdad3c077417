// How a stage of an operation ended.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <cstdint>

namespace tarpon {

enum class Closing : std::uint8_t {
  complete,  // nothing is missing
  given_up,  // every peer that could still send has passed the operation
  early,     // what is missing is known to be lost, or all tails came, then nothing for a while
  bound,     // time was up
};

}  // namespace tarpon
