// Hadamard transforms of a whole vector at once, recursive, with AVX2: what the codec's blocks are
// compared with. In place, unscaled, in Sylvester's order.
#pragma once

#include <cstddef>

namespace tarpon {

/// Three distances at a time, pass by pass where that stays in the first cache.
/// REQUIRES: n a power of two from 64 on; AVX2 and FMA. The same for the other one.
void full_length_hadamard(float* x, std::size_t n);

/// One distance after the other, down to 64 elements in registers.
void plain_full_length_hadamard(float* x, std::size_t n);

}  // namespace tarpon
