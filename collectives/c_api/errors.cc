#include "collectives/c_api/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tarpon::c_api {
namespace {

constexpr std::size_t kErrorText = 1024;

char* text_of_thread() {
  thread_local char text[kErrorText] = "";
  return text;
}

}  // namespace

const char* error_text() {
  return text_of_thread();
}

int failed(tarpon_error code, std::string_view text) {
  char* const place = text_of_thread();
  const std::size_t length = std::min(text.size(), kErrorText - 1);
  std::memcpy(place, text.data(), length);
  place[length] = '\0';
  return code;
}

int failed(const Error& error) {
  const auto code = [&] {
    switch (error.code) {
      case Error::Code::invalid_argument:
        return TARPON_ERROR_INVALID_ARGUMENT;
      case Error::Code::mismatch:
        return TARPON_ERROR_MISMATCH;
      case Error::Code::timeout:
        return TARPON_ERROR_TIMEOUT;
      case Error::Code::permission:
        return TARPON_ERROR_PERMISSION;
      case Error::Code::unavailable:
        return TARPON_ERROR_UNAVAILABLE;
      case Error::Code::io:
        return TARPON_ERROR_IO;
    }
    return TARPON_ERROR_INTERNAL;
  }();
  return failed(code, error.message);
}

int failed_pointer(const char* function, const char* argument) {
  return failed(TARPON_ERROR_INVALID_ARGUMENT, fmt::format("{}: {} is NULL", function, argument));
}

}  // namespace tarpon::c_api
