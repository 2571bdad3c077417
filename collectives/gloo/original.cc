#include "collectives/gloo/original.h"

#include <dlfcn.h>

namespace tarpon::gloo_shim {
namespace {

/// Whether `address` lies in this very library.
bool is_own(const void* address) {
  Dl_info there{}, here{};
  return ::dladdr(address, &there) != 0 &&
         ::dladdr(reinterpret_cast<const void*>(&find_original), &here) != 0 &&
         there.dli_fbase == here.dli_fbase;
}

}  // namespace

void* find_original(const char* symbol, const void* caller) {
  if (void* next = ::dlsym(RTLD_NEXT, symbol)) return next;
  Dl_info info{};
  if (::dladdr(caller, &info) == 0 || info.dli_fname == nullptr) return nullptr;
  void* const library = ::dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr) return nullptr;
  void* const found = ::dlsym(library, symbol);
  ::dlclose(library);  // it stays loaded: the caller runs in it
  return found == nullptr || is_own(found) ? nullptr : found;
}

}  // namespace tarpon::gloo_shim
