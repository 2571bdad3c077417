// What the endpoint does when its caller breaks a contract.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace tarpon {

/// Ends the process when the caller has broken a contract: the state can no longer be trusted.
inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "tarpon: endpoint contract broken: %s\n", what);
  std::abort();
}

}  // namespace tarpon
