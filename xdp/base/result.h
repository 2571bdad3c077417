// Errors of set-up work: what failed, on which thing, and what to do about it.
//
// The lowest C++ folder owns this type so that every other folder can use it. The data path does
// not use it: it returns small enums and counts.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <cstring>
#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace tarpon {

/// Why something could not be done. Copyable value.
struct Error {
  enum class Code {
    invalid_argument,  // the caller or the user asked for something impossible
    mismatch,          // ranks do not agree
    timeout,           // a bound passed; the message names what we waited for
    permission,        // the remedy needs privileges
    unavailable,       // the system lacks something: a kernel feature, a device, a peer
    io,                // a system call failed
  };

  Code code = Code::io;
  int system_errno = 0;  // 0 when no system call is behind it
  std::string message;   // one line: the thing, the value, the remedy

  /// An error with a text made by the caller.
  static Error make(Code code, std::string message) { return {code, 0, std::move(message)}; }

  /// A failed system call: "WHAT: strerror". EPERM and EACCES become `permission`.
  static Error system(int error, const std::string& what) {
    const Code code = error == 1 || error == 13 ? Code::permission : Code::io;
    return {code, error, what + ": " + std::strerror(error)};
  }
};

template <typename T>
using Result = tl::expected<T, Error>;

/// Shorthand for `return fail(...)` in a function that returns a Result.
inline tl::unexpected<Error> fail(Error error) {
  return tl::unexpected<Error>(std::move(error));
}
inline tl::unexpected<Error> fail(Error::Code code, std::string message) {
  return fail(Error::make(code, std::move(message)));
}
inline tl::unexpected<Error> fail_system(int error, const std::string& what) {
  return fail(Error::system(error, what));
}

}  // namespace tarpon
