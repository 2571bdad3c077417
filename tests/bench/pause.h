// What both contenders do between two looks at an empty ring.
#pragma once

namespace tarpon::bench {

/// Some 200 ns. Each look takes the ring's cache line from the processor that fills it: without a
/// pause a receiver that waits slows its sender by 4 %.
inline void pause_a_little() {
  for (int i = 0; i < 5; ++i) __builtin_ia32_pause();
}

}  // namespace tarpon::bench
