#include "tools/job/connect_cost.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "transport/clock.h"

namespace tarpon {
namespace {

double milliseconds(Duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace

ConnectCost ConnectCost::since(const ProcessHoldings& before, Time start) {
  const Duration time = monotonic_now() - start;
  const ProcessHoldings now = ProcessHoldings::read();
  return {{now.descriptors - before.descriptors, now.threads - before.threads,
           now.resident_bytes - before.resident_bytes},
          time};
}

std::string ConnectCost::text() const {
  return fmt::format(
      "connected in {:.1f} ms, with {} descriptors, {} threads and {:.1f} MiB of memory",
      milliseconds(time), holdings.descriptors, holdings.threads,
      static_cast<double>(holdings.resident_bytes) / (1 << 20));
}

nlohmann::json ConnectCost::json() const {
  return {{"ms", milliseconds(time)},
          {"descriptors", holdings.descriptors},
          {"threads", holdings.threads},
          {"resident_bytes", holdings.resident_bytes}};
}

}  // namespace tarpon
