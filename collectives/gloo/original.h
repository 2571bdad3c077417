// Gloo's own functions, behind those that the shim puts in front of them.
#pragma once

namespace tarpon::gloo_shim {

/// The function named `symbol` that a call from `caller`, an address in the calling code, would
/// reach without the shim; null where there is none. The library of Python's torch is loaded with
/// RTLD_LOCAL, so that RTLD_NEXT does not find what it links: its own dependencies are searched.
void* find_original(const char* symbol, const void* caller);

template <typename Function>
Function* original(const char* symbol, const void* caller) {
  return reinterpret_cast<Function*>(find_original(symbol, caller));
}

}  // namespace tarpon::gloo_shim
