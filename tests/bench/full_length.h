// The Hadamard transform of a whole vector at once, recursive, with AVX2: what the codec's blocks
// are compared with.
#pragma once

#include <cstddef>

namespace tarpon {

/// In place, unscaled, in Sylvester's order. REQUIRES: n a power of two from 64 on; AVX2 and FMA.
void full_length_hadamard(float* x, std::size_t n);

}  // namespace tarpon
