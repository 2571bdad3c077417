#include "tools/job/host_trouble.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "tools/cli/wrapped_text.h"
#include "tools/job/rank_names.h"

namespace tarpon {
namespace {

constexpr std::uint64_t kSmallBuffer = 64 << 10;
constexpr const char* kBufferRemedy = "sysctl -w net.core.rmem_max=16777216";

std::string refusal_remedy(int error, std::uint32_t mtu) {
  switch (error) {
    case EPERM:
    case EACCES:
      return "open outgoing UDP in its own firewall";
    case EMSGSIZE:
      return fmt::format(
          "its interface or route has an MTU below {}, which it had when the job "
          "began: raise it again, or start the job anew",
          mtu);
    default:
      return "mend its interface or route";
  }
}

}  // namespace

std::string small_buffers_line(const std::vector<RankInfo>& ranks) {
  std::vector<Rank> small;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].receive_bytes < kSmallBuffer) small.push_back(static_cast<Rank>(rank));
  }
  if (small.empty()) return "";
  return wrapped(fmt::format(
             "# warning: the receive buffer of {} holds only {} bytes: packets will be lost there, "
             "not in the network; on that host: {}",
             rank_names(small), ranks[small.front()].receive_bytes, kBufferRemedy)) +
         "\n";
}

std::string host_trouble(const PortStatistics& before, const PortStatistics& after,
                         std::uint32_t mtu) {
  std::string text;
  if (const std::uint64_t refused = after.tx_dropped - before.tx_dropped;
      refused > 0 && after.send_error != 0) {
    text = fmt::format("this host itself refused to send {} packets ({}): {}", refused,
                       std::strerror(after.send_error), refusal_remedy(after.send_error, mtu));
  }
  if (const std::uint64_t lost = after.rx_overruns - before.rx_overruns; lost > 0) {
    text += fmt::format("{}{} packets were lost in this host's own full receive buffer: {}",
                        text.empty() ? "" : "; ", lost, kBufferRemedy);
  }
  return text;
}

}  // namespace tarpon
