#include "tools/check/pair_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tarpon {

bool PairProbe::good() const {
  constexpr std::uint32_t kTolerated = 2;  // however few the probes are
  return works() && (probes_lost() <= kTolerated || loss() < 0.05);
}

std::uint32_t PairProbe::probes_lost() const {
  return sent - std::min(sent, arrived);  // duplicates may arrive
}

double PairProbe::loss() const {
  return sent == 0 ? 0 : static_cast<double>(probes_lost()) / sent;
}

double PairProbe::flood_loss() const {
  if (flood_sent == 0) return 0;
  const std::uint64_t found = std::min(flood_sent, flood_arrived + flood_overrun);
  return 1 - static_cast<double>(found) / static_cast<double>(flood_sent);
}

namespace {

constexpr const char* kMtuRemedy = "lower the interface's MTU or raise the path's";

/// Why the host of `from` does not send to `to`.
std::string own_refusal(Rank from, Rank to, int error, std::uint32_t mtu, std::uint16_t port) {
  const std::string refused =
      fmt::format("the host of rank {} itself refuses to send ({}): ", from, std::strerror(error));
  switch (error) {
    case EPERM:
    case EACCES:
      return refused + fmt::format(
                           "open outgoing UDP to rank {} (port {} in this run) in its own "
                           "firewall or routing rules",
                           to, port);
    case EMSGSIZE:
      return refused + fmt::format("its route's MTU is below {}; {}", mtu, kMtuRemedy);
    default:
      return refused + fmt::format("mend its route to rank {}", to);
  }
}

}  // namespace

std::string fragments_warning(const PairProbe& pair, const std::string& interface,
                              std::uint32_t mtu) {
  return fmt::format(
      "the host of rank {} cut {} packets to rank {} into fragments: the network below {} (a "
      "tunnel?) has a smaller MTU than {}; lower the MTU of {}, since fragments cost several times "
      "the time",
      pair.from, pair.fragmented, pair.to, interface, mtu, interface);
}

std::string likely_cause(const PairProbe& pair, const PairPlaces& places) {
  if (pair.arrived == 0 && pair.send_error != 0) {
    return own_refusal(pair.from, pair.to, pair.send_error, places.mtu, places.to_port);
  }
  if (pair.arrived == 0 && pair.small_arrived > 0) {
    return fmt::format("small packets pass, full ones do not: the path's MTU is below {}; {}",
                       places.mtu, kMtuRemedy);
  }
  if (pair.arrived == 0) {
    return fmt::format(
        "nothing arrives: open UDP to rank {} (port {} in this run) in its "
        "firewall or security group",
        pair.to, places.to_port);
  }
  if (pair.answered == 0 && pair.reply_error != 0) {
    return "probes arrive and no reply comes back: " +
           own_refusal(pair.to, pair.from, pair.reply_error, places.mtu, places.from_port);
  }
  if (pair.answered == 0 && pair.small_answered > 0) {
    return fmt::format(
        "probes arrive, of the replies only small ones come back: the MTU of the path from rank {} "
        "to rank {} is below {}; {}",
        pair.to, pair.from, places.mtu, kMtuRemedy);
  }
  if (pair.answered == 0) {
    return fmt::format(
        "probes arrive and no reply comes back: UDP from rank {} to rank {} is "
        "blocked",
        pair.to, pair.from);
  }
  return fmt::format("{} of {} probes were lost: a congested or faulty link", pair.probes_lost(),
                     pair.sent);
}

}  // namespace tarpon
