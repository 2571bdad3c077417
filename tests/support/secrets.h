// Secrets of jobs, for tests.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "collectives/job_secret.h"

namespace tarpon::testing_support {

/// Different ones are different secrets.
inline std::shared_ptr<const JobSecret> secret(int number = 1) {
  return std::make_shared<const JobSecret>(
      std::vector<std::byte>(JobSecret::kMinBytes, static_cast<std::byte>(number)));
}

}  // namespace tarpon::testing_support
