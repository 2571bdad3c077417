#include "tools/namespaces/testbed_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <vector>

#include "tools/cli/units.h"

namespace tarpon {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

tl::unexpected<Error> refuse(std::string_view text, std::string_view form) {
  return fail(Error::Code::invalid_argument, fmt::format("\"{}\": write {}", text, form));
}

/// "3=1gbit": the rank, and what is behind the sign.
Result<std::pair<Rank, std::string_view>> split_rank(std::string_view text) {
  const std::size_t at = text.find('=');
  const char* end = text.data() + std::min(at, text.size());
  Rank rank = 0;
  const auto parsed = std::from_chars(text.data(), end, rank);
  if (at == std::string_view::npos || parsed.ec != std::errc() || parsed.ptr != end) {
    return refuse(text, "RANK=RATE, for example 3=1gbit");
  }
  return std::pair(rank, text.substr(at + 1));
}

/// RANK=VALUE, for several ranks.
template <typename T>
cli::Value for_ranks(std::map<Rank, T>& target, Result<T> (*parse)(std::string_view)) {
  cli::Value value;
  value.notation = "RANK=RATE";
  value.times = cli::Times::each;
  value.read = [&target, parse](const std::string& text) -> Result<void> {
    const auto parts = split_rank(text);
    if (!parts) return fail(parts.error());
    auto parsed = parse(parts->second);
    if (!parsed) return fail(parsed.error());
    target[parts->first] = *parsed;
    return {};
  };
  return value;
}

/// N[/round-robin].
Result<TestbedPlaces> parse_places(std::string_view text) {
  const std::string_view form = "N or N/round-robin, for example 4";
  const auto parts = split(text, '/');
  TestbedPlaces places;
  const char* const end = parts[0].data() + parts[0].size();
  const auto parsed = std::from_chars(parts[0].data(), end, places.per_host);
  const bool good = parsed.ec == std::errc() && parsed.ptr == end && places.per_host >= 1;
  places.round_robin = parts.size() == 2 && parts[1] == "round-robin";
  if (!good || parts.size() > 2 || (parts.size() == 2 && !places.round_robin)) {
    return refuse(text, form);
  }
  return places;
}

/// Both kinds of loss set the same TestbedLoss, which exists if one of them is given.
cli::Value single_losses(std::optional<TestbedLoss>& target) {
  cli::Value value;
  value.notation = "SHARE";
  value.read = [&target](const std::string& text) -> Result<void> {
    const auto share = parse_probability(text);
    if (!share) return fail(share.error());
    if (!target) target.emplace();
    target->probability = *share;
    return {};
  };
  return value;
}

cli::Value burst_losses(std::optional<TestbedLoss>& target) {
  cli::Value value;
  value.notation = "SHARE[/N]";
  value.read = [&target](const std::string& text) -> Result<void> {
    const auto loss = parse_burst_loss(text);
    if (!loss) return fail(loss.error());
    if (!target) target.emplace();
    target->burst_share = loss->burst_share;
    target->burst_packets = loss->burst_packets;
    return {};
  };
  return value;
}

}  // namespace

Result<TestbedRate> parse_testbed_rate(std::string_view text) {
  const auto parts = split(text, '/');
  if (parts.size() > 3) return refuse(text, "RATE/BURST/LIMIT, for example 2gbit/128K/400K");
  TestbedRate rate;
  const auto bits = parse_rate(parts[0]);
  if (!bits) return fail(bits.error());
  rate.bits_per_second = *bits;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const auto bytes = parse_bytes(parts[i]);
    if (!bytes) return fail(bytes.error());
    (i == 1 ? rate.burst_bytes : rate.limit_bytes) = *bytes;
  }
  return rate;
}

Result<TestbedLimit> parse_testbed_limit(std::string_view text) {
  const auto parts = split(text, '/');
  if (parts.size() > 2) return refuse(text, "RATE/BURST, for example 1gbit/64K");
  TestbedLimit limit;
  const auto bits = parse_rate(parts[0]);
  if (!bits) return fail(bits.error());
  limit.bits_per_second = *bits;
  if (parts.size() == 1) return limit;
  const auto bytes = parse_bytes(parts[1]);
  if (!bytes) return fail(bytes.error());
  limit.burst_bytes = *bytes;
  return limit;
}

Result<TestbedLoss> parse_burst_loss(std::string_view text) {
  const auto parts = split(text, '/');
  if (parts.size() > 2) return refuse(text, "SHARE/PACKETS, for example 1%/8");
  TestbedLoss loss;
  const auto share = parse_probability(parts[0]);
  if (!share) return fail(share.error());
  loss.burst_share = *share;
  if (parts.size() == 1) return loss;
  const char* end = parts[1].data() + parts[1].size();
  const auto parsed = std::from_chars(parts[1].data(), end, loss.burst_packets);
  if (parsed.ec != std::errc() || parsed.ptr != end) {
    return refuse(text, "SHARE/PACKETS, for example 1%/8");
  }
  return loss;
}

void add_shape_options(cli::OptionTable& table, const std::string& group, TestbedOptions& options) {
  const char* const limit = "RATE[/BURST]";
  table.add(
      group,
      {{"--per-host", cli::parsed(options.places, "N[/round-robin]", parse_places),
        "veth: ranks on each host, which share its link; round-robin: rank r is on host r % hosts "
        "(default 1)"},
       {"--mtu", cli::whole(options.mtu, 576, 65535), "veth: MTU in bytes, 576 to 65535"},
       {"--rate", cli::parsed(options.rate, "RATE[/BURST[/LIMIT]]", parse_testbed_rate),
        "veth: rate of every link to a rank, burst and queue, as 2gbit or 2gbit/128K/400K"},
       {"--rate-of", for_ranks(options.rate_of, parse_testbed_rate),
        "veth: that of one rank's link, as 3=1gbit; may be repeated"},
       {"--uplink", cli::parsed(options.uplink, "RATE[/BURST[/LIMIT]]", parse_testbed_rate),
        "veth: rate of every link from a rank, as --rate"},
       {"--loss", single_losses(options.loss), "veth: share of packets lost at the bridge, as 1%"},
       {"--burst-loss", burst_losses(options.loss),
        "veth: share of packets lost there in bursts, and their mean length, as 1%/8"},
       {"--police", cli::parsed(options.police, limit, parse_testbed_limit),
        "veth: rate above which packets to a rank are lost, without a queue, as 1gbit/128K"},
       {"--police-of", for_ranks(options.police_of, parse_testbed_limit),
        "veth: that of packets to one rank, as 3=1gbit; may be repeated"},
       {"--flow-limit", cli::parsed(options.flow_limit, limit, parse_testbed_limit),
        "veth: rate above which packets of a UDP flow are lost, as 500mbit/128K"},
       {"--tcp-congestion", cli::text(options.tcp_congestion, "NAME"),
        "veth: congestion control of TCP between ranks, as cubic; else the system's"}});
}

bool is_shaped(const TestbedOptions& options) {
  return options.places.per_host != 1 || options.mtu != TestbedOptions().mtu || options.rate ||
         !options.rate_of.empty() || options.uplink || options.loss || options.police ||
         !options.police_of.empty() || options.flow_limit || !options.tcp_congestion.empty();
}

}  // namespace tarpon
