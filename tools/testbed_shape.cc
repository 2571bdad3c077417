#include "tools/testbed_shape.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <functional>
#include <string>
#include <vector>

#include "tools/units.h"

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

using Take = std::function<Result<void>(const std::string& text)>;

CLI::Option* add(CLI::App& app, const char* name, const Take& take, const char* description) {
  return app.add_option_function<std::vector<std::string>>(
      name,
      [name, take](const std::vector<std::string>& texts) {
        for (const std::string& text : texts) {
          const auto good = take(text);
          if (!good) throw CLI::ValidationError(name, good.error().message);
        }
      },
      description);
}

/// An option that may be given once.
template <typename T>
void add_one(CLI::App& app, const char* name, std::optional<T>& target,
             Result<T> (*parse)(std::string_view), const char* description) {
  const auto take = [&target, parse](const std::string& text) -> Result<void> {
    auto value = parse(text);
    if (!value) return fail(value.error());
    target = *value;
    return {};
  };
  add(app, name, take, description)->expected(1)->type_name("TEXT");
}

/// An option that may be given for several ranks.
template <typename T>
void add_for_ranks(CLI::App& app, const char* name, std::map<Rank, T>& target,
                   Result<T> (*parse)(std::string_view), const char* description) {
  const auto take = [&target, parse](const std::string& text) -> Result<void> {
    const auto parts = split_rank(text);
    if (!parts) return fail(parts.error());
    auto value = parse(parts->second);
    if (!value) return fail(value.error());
    target[parts->first] = *value;
    return {};
  };
  add(app, name, take, description)->expected(1, -1)->allow_extra_args(false)->type_name("TEXT");
}

void add_loss_options(CLI::App& app, TestbedOptions& options) {
  const auto take_loss = [&options](const std::string& text) -> Result<void> {
    const auto value = parse_probability(text);
    if (!value) return fail(value.error());
    if (!options.loss) options.loss.emplace();
    options.loss->probability = *value;
    return {};
  };
  add(app, "--loss", take_loss, "veth: share of packets lost at the bridge, as 1%")
      ->expected(1)
      ->type_name("TEXT");
  const auto take_bursts = [&options](const std::string& text) -> Result<void> {
    const auto value = parse_burst_loss(text);
    if (!value) return fail(value.error());
    if (!options.loss) options.loss.emplace();
    options.loss->burst_share = value->burst_share;
    options.loss->burst_packets = value->burst_packets;
    return {};
  };
  add(app, "--burst-loss", take_bursts,
      "veth: share of packets lost there in bursts, and their mean length, as 1%/8")
      ->expected(1)
      ->type_name("TEXT");
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

void add_shape_options(CLI::App& app, TestbedOptions& options) {
  app.add_option("--mtu", options.mtu, "veth: MTU in bytes, 576 to 65535")
      ->check(CLI::Range(576, 65535))
      ->capture_default_str();
  add_one(app, "--rate", options.rate, parse_testbed_rate,
          "veth: rate of every link to a rank, burst and queue, as 2gbit or 2gbit/128K/400K");
  add_for_ranks(app, "--rate-of", options.rate_of, parse_testbed_rate,
                "veth: that of one rank's link, as 3=1gbit; may be repeated");
  add_loss_options(app, options);
  add_one(app, "--police", options.police, parse_testbed_limit,
          "veth: rate above which packets to a rank are lost, without a queue, as 1gbit/128K");
  add_for_ranks(app, "--police-of", options.police_of, parse_testbed_limit,
                "veth: that of packets to one rank, as 3=1gbit; may be repeated");
  add_one(app, "--flow-limit", options.flow_limit, parse_testbed_limit,
          "veth: rate above which packets of a UDP flow are lost, as 500mbit/128K");
  app.add_option("--tcp-congestion", options.tcp_congestion,
                 "veth: congestion control of TCP between ranks, as cubic; else the system's");
}

bool is_shaped(const TestbedOptions& options) {
  return options.mtu != TestbedOptions().mtu || options.rate || !options.rate_of.empty() ||
         options.loss || options.police || !options.police_of.empty() || options.flow_limit ||
         !options.tcp_congestion.empty();
}

}  // namespace tarpon
