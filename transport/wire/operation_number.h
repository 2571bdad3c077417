// The order of operation numbers.
#pragma once

#include <cstdint>

namespace tarpon {

/// Whether `a` comes before `b` in the numbering of operations, which wraps.
inline bool before(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b) < 0;
}

}  // namespace tarpon
