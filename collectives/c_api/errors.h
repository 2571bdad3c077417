// Errors of the C interface: a number, and the text of the last one per thread.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include "collectives/tarpon.h"
#include "xdp/base/result.h"

namespace tarpon::c_api {

/// The text of the last error of this thread.
const char* error_text();

/// Keeps the text as this thread's last error, and returns the number.
int failed(tarpon_error code, std::string_view text);
int failed(const Error& error);

/// Fails with TARPON_ERROR_INVALID_ARGUMENT: the pointer `argument` of `function` is NULL.
int failed_pointer(const char* function, const char* argument);

/// Why a handle of `owner`, a communicator or a call, cannot be used in this process: TARPON_OK, or
/// the error of `function` in a forked child.
template <typename Owner>
int check_process(const Owner& owner, const char* function) {
  auto here = owner.check_process();
  if (here) return TARPON_OK;
  here.error().message.insert(0, std::string(function) + ": ");
  return failed(here.error());
}

/// Runs `body`, which returns a tarpon_error, and turns an exception into one.
template <typename Body>
int guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return failed(TARPON_ERROR_NO_MEMORY, "no memory");
  } catch (const std::system_error& error) {  // no thread could be started
    return failed(TARPON_ERROR_UNAVAILABLE, error.what());
  } catch (const std::exception& error) {
    return failed(TARPON_ERROR_INTERNAL, error.what());
  } catch (...) {
    return failed(TARPON_ERROR_INTERNAL, "an unknown exception");
  }
}

}  // namespace tarpon::c_api
