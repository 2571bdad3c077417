// The handles of the C interface, and the way from a communicator's handle to the library.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "collectives/c_api/errors.h"
#include "collectives/communicator.h"
#include "collectives/tarpon.h"

struct tarpon_communicator {
  std::unique_ptr<tarpon::Communicator> communicator;
  std::string exposed;  // tarpon_exposed()
};

struct tarpon_call {
  std::optional<tarpon::AsyncAllreduce> async;
};

struct tarpon_report {
  tarpon::Report report;
  mutable std::once_flag written;
  mutable std::string text;
};

namespace tarpon::c_api {

inline constexpr int kOk = TARPON_OK;

/// Runs `body` with the job of `handle`, as guarded() does. `function`: the name that a refusal of
/// NULL, and of a communicator of another process, begins with.
template <typename Body>
int with_job(tarpon_communicator* handle, const char* function, Body body) noexcept {
  return guarded([&] {
    if (handle == nullptr) return failed_pointer(function, "communicator");
    if (const int error = check_process(*handle->communicator, function); error != kOk)
      return error;
    return body(*handle->communicator);
  });
}

}  // namespace tarpon::c_api
