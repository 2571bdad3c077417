// Finds the functions of Gloo that the shim replaces.
#pragma once

namespace tarpon::gloo_shim {

/// The function named `symbol` that a call from `caller`, an address in the calling code, would
/// reach without the shim; null where there is none. Python loads torch's libraries with
/// RTLD_LOCAL, where RTLD_NEXT does not find their dependencies: the caller's own dependencies are
/// searched then.
void* find_original(const char* symbol, const void* caller);

template <typename Function>
Function* original(const char* symbol, const void* caller) {
  return reinterpret_cast<Function*>(find_original(symbol, caller));
}

}  // namespace tarpon::gloo_shim
