#include "collectives/rank_info.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <sstream>
#include <utility>

#include "bpf/wire.h"
#include "xdp/base/printable.h"
#include "xdp/base/system_limits.h"

namespace tarpon {
namespace {

std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

template <typename T>
bool number(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

constexpr auto kLastErrorCode = static_cast<unsigned>(Error::Code::io);

/// "1,2,3"; none: "".
template <typename T>
bool numbers(const std::string& text, std::vector<T>& values) {
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    if (!number(part, values.emplace_back())) return false;
  }
  return values.size() < TARPON_MAX_FLOWS;
}

/// Whether an IPv4 address is of loopback, of a link (RFC 3927), or private (RFC 1918, RFC 6598).
bool is_private(const std::string& text) {
  in_addr parsed{};
  if (inet_pton(AF_INET, text.c_str(), &parsed) != 1) return false;
  const std::uint32_t address = ntohl(parsed.s_addr);
  constexpr std::pair<std::uint32_t, int> kNetworks[] = {{0x7f000000, 8},  {0x0a000000, 8},
                                                         {0xac100000, 12}, {0xc0a80000, 16},
                                                         {0xa9fe0000, 16}, {0x64400000, 10}};
  return std::any_of(std::begin(kNetworks), std::end(kNetworks), [address](const auto& network) {
    return (address ^ network.first) >> (32 - network.second) == 0;
  });
}

}  // namespace

void RankInfo::refuse(const Error& why) {
  error = with_limit(why).message;
  error_code = why.code;
}

std::pair<Rank, Rank> extreme_mtus(const std::vector<RankInfo>& ranks) {
  const auto by_mtu = [](const RankInfo& a, const RankInfo& b) { return a.mtu < b.mtu; };
  const auto number_of = [&](auto place) { return static_cast<Rank>(place - ranks.begin()); };
  return {number_of(std::min_element(ranks.begin(), ranks.end(), by_mtu)),
          number_of(std::max_element(ranks.begin(), ranks.end(), by_mtu))};
}

std::string exposed_text(const std::vector<RankInfo>& ranks) {
  const auto is_at_first = [&](const RankInfo& rank) { return rank.address == ranks[0].address; };
  if (std::all_of(ranks.begin(), ranks.end(), is_at_first)) return "";  // no packet leaves the host
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].address.empty() || is_private(ranks[rank].address)) continue;
    return fmt::format(
        "rank {} is at {}, no private address, and the job has no secret: strangers on the way can "
        "read and change what the ranks send; give all ranks the same --secret-file "
        "(TARPON_SECRET_FILE)",
        rank, ranks[rank].address);
  }
  return "";
}

std::string encode(const RankInfo& info) {
  return fmt::format(
      "host {}\nuser {}\nnetwork {}\naddress {}\nport {}\nflow_ports {}\ncontrol_port "
      "{}\ninterface "
      "{}\ndriver {}\nmtu "
      "{}\ndatapath "
      "{}\ndatapath_reason "
      "{}\nlanes {}\n"
      "queues {}\nmax_payload {}\nreceive_bytes {}\nchecksums {}\ndoor {}\nshares_nothing "
      "{}\nwants_network {}\n"
      "error {}\nerror_code {}\n",
      one_line(info.host), info.user, info.network, info.address, info.port,
      fmt::join(info.flow_ports, ","), info.control_port, info.interface, one_line(info.driver),
      info.mtu, info.datapath, one_line(info.datapath_reason), info.lanes, info.queues,
      info.max_payload, info.receive_bytes, info.checksums ? 1 : 0, info.door,
      one_line(info.shares_nothing), one_line(info.wants_network), one_line(info.error),
      static_cast<unsigned>(info.error_code));
}

Result<RankInfo> decode_rank_info(const std::string& text) {
  std::map<std::string, std::string> fields;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t space = line.find(' ');
    if (space != std::string::npos) fields[line.substr(0, space)] = line.substr(space + 1);
  }
  RankInfo info;
  int checksums = 0;
  unsigned error_code = 0;
  const bool good = fields.size() == 22 && number(fields["lanes"], info.lanes) &&
                    number(fields["user"], info.user) && number(fields["port"], info.port) &&
                    numbers(fields["flow_ports"], info.flow_ports) &&
                    number(fields["control_port"], info.control_port) &&
                    number(fields["mtu"], info.mtu) && number(fields["queues"], info.queues) &&
                    number(fields["max_payload"], info.max_payload) &&
                    number(fields["receive_bytes"], info.receive_bytes) &&
                    number(fields["checksums"], checksums) &&
                    number(fields["error_code"], error_code) && error_code <= kLastErrorCode;
  if (!good) {
    return fail(Error::Code::mismatch, "a rank described itself in a form this version lacks");
  }
  info.host = printable(fields["host"]);
  info.network = printable(fields["network"]);
  info.address = printable(fields["address"]);
  info.interface = printable(fields["interface"]);
  info.driver = printable(fields["driver"]);
  info.datapath = printable(fields["datapath"]);
  info.datapath_reason = printable(fields["datapath_reason"], kLongestMessage);
  info.checksums = checksums != 0;
  info.door = printable(fields["door"]);
  info.shares_nothing = printable(fields["shares_nothing"], kLongestMessage);
  info.wants_network = printable(fields["wants_network"], kLongestMessage);
  info.error = printable(fields["error"], kLongestMessage);
  info.error_code = static_cast<Error::Code>(error_code);
  return info;
}

}  // namespace tarpon
