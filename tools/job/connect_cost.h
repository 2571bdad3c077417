// What a communicator costs the process that connects it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tools/system/process_usage.h"
#include "transport/time.h"

namespace tarpon {

struct ConnectCost {
  ProcessHoldings holdings;  // more than before connect()
  Duration time{};

  /// `before`: read at `start`, when connect() was called.
  static ConnectCost since(const ProcessHoldings& before, Time start);

  /// "connected in 5.2 ms, with 17 descriptors, 3 threads and 4.1 MiB of memory".
  std::string text() const;
  nlohmann::json json() const;
};

}  // namespace tarpon
