#include "collectives/rendezvous/path_size.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <sstream>

#include "xdp/base/printable.h"

namespace tarpon::rendezvous {
namespace {

// The slots of MTUs in use: 9001 (jumbo frames), 8896 and 8500 (clouds), 8192, 4096 and 3900
// (clouds), 2048, 1500, 1460 to 1436 (clouds, VXLAN, Geneve), 1400 and 1380 (VPNs), 1350, 1280
// (IPv6's least), 1100, 800, 576 (IPv4's least).
constexpr std::array<std::uint32_t, 15> kUsualSlots{8896, 8768, 8384, 8064, 3968,
                                                    3776, 1920, 1408, 1344, 1280,
                                                    1216, 1152, 960,  704,  TARPON_MIN_PAYLOAD};

// A size is called not carried when chance explains its absence with at most this probability: some
// thousand pairs and a dozen sizes are judged at once.
constexpr double kChance = 1e-6;

constexpr char kErrorMark = '!';

template <typename T>
bool number(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

std::string place(Rank rank, const std::vector<RankInfo>& ranks) {
  return fmt::format("rank {} ({}, {})", rank, ranks[rank].host, ranks[rank].address);
}

std::optional<std::size_t> largest(const PathTally& tally) {
  const auto arrived = std::find_if(tally.arrived.begin(), tally.arrived.end(),
                                    [](std::uint32_t count) { return count > 0; });
  if (arrived == tally.arrived.end()) return std::nullopt;
  return static_cast<std::size_t>(arrived - tally.arrived.begin());
}

std::string silence(const PathTally& worst, const std::string& more, const std::string& refused) {
  if (!refused.empty()) {
    return fmt::format("nothing arrives{}: rank {} cannot send: {}", more, worst.from, refused);
  }
  return fmt::format("nothing arrives{}: open UDP to rank {} in its firewall or security group",
                     more, worst.to);
}

Error too_small(const PathTally& worst, std::size_t others, const std::vector<RankInfo>& ranks,
                const std::string& refused) {
  const std::string more =
      others == 0 ? "" : fmt::format(" ({} more pair{} alike)", others, others == 1 ? "" : "s");
  const std::string pair = place(worst.from, ranks) + " -> " + place(worst.to, ranks);
  const std::string why =
      largest(worst) ? fmt::format(
                           "only packets below {} bytes arrive, and Tarpon needs an MTU of 576{}: "
                           "raise the path's MTU",
                           packet_bytes(TARPON_MIN_PAYLOAD), more)
                     : silence(worst, more, refused);
  return Error::make(
      Error::Code::unavailable,
      fmt::format("{}: {}; `tarpon check` with the same options looks at every pair", pair, why));
}

std::string shrunk(const std::vector<std::uint32_t>& candidates, const PathTally& worst,
                   std::size_t others, const std::vector<RankInfo>& ranks) {
  const std::size_t at = *largest(worst);
  std::string text = fmt::format(
      "slots shrink to {} bytes: rank {} -> rank {} carries packets of {} bytes and none of {} "
      "(interface MTU {})",
      candidates[at], worst.from, worst.to, packet_bytes(candidates[at]),
      packet_bytes(candidates[at - 1]), std::min(ranks[worst.from].mtu, ranks[worst.to].mtu));
  if (others > 0) {
    text += fmt::format("; {} more pair{} no full packets", others,
                        others == 1 ? " carries" : "s carry");
  }
  return text;
}

}  // namespace

std::vector<std::uint32_t> path_candidates(std::uint32_t full) {
  const std::uint32_t tag_bytes = (kPayloadStep - full % kPayloadStep) % kPayloadStep;
  std::vector<std::uint32_t> candidates{full};
  for (const std::uint32_t slot : kUsualSlots) {
    if (slot < full + tag_bytes) candidates.push_back(slot - tag_bytes);
  }
  candidates.push_back(0);
  return candidates;
}

std::string encode(const PathReport& report) {
  std::string text;
  if (!report.send_error.empty()) {
    text = fmt::format("{}{}\n", kErrorMark, printable(report.send_error, kLongestMessage));
  }
  for (const PathTally& tally : report.tallies) {
    text += std::to_string(tally.from);
    for (const std::uint32_t count : tally.arrived) text += fmt::format(" {}", count);
    text += '\n';
  }
  return text;
}

Result<PathReport> decode_path_report(const std::string& text, Rank to, std::uint32_t world,
                                      std::size_t candidates) {
  PathReport report;
  std::vector<PathTally>& tallies = report.tallies;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kErrorMark) && tallies.empty() && report.send_error.empty()) {
      report.send_error = printable(line.substr(1), kLongestMessage);
      continue;
    }
    PathTally tally{.from = 0, .to = to, .arrived = {}};
    std::istringstream words(line);
    std::string word;
    bool good = words >> word && number(word, tally.from);
    while (words >> word) good = good && number(word, tally.arrived.emplace_back());
    good = good && tally.from < world && tally.from != to && tally.arrived.size() == candidates &&
           tally.arrived[0] == 0 && tallies.size() + 1 < world;
    if (!good) {
      return fail(Error::Code::mismatch,
                  fmt::format("rank {} told its probes in a form this version lacks", to));
    }
    tallies.push_back(std::move(tally));
  }
  return report;
}

PathVerdict judge(std::span<const std::uint32_t> arrived, std::span<const std::uint32_t> sent) {
  const auto first =
      std::find_if(arrived.begin(), arrived.end(), [](std::uint32_t count) { return count > 0; });
  if (first == arrived.end()) return {};
  const auto carried = static_cast<std::size_t>(first - arrived.begin());
  if (carried == 0) return {carried, true};
  // The lost share of the sizes that arrive, never quite 0. Duplicates may arrive.
  double lost = 1;
  double all = 2;
  for (std::size_t i = carried; i < arrived.size(); ++i) {
    all += sent[i];
    lost += sent[i] - std::min(sent[i], arrived[i]);
  }
  return {carried, std::pow(lost / all, sent[carried - 1]) <= kChance};
}

Result<PathSize> decide(const std::vector<std::uint32_t>& candidates,
                        const std::vector<PathTally>& tallies, const std::vector<RankInfo>& ranks,
                        const std::vector<std::string>& send_errors) {
  if (tallies.empty()) return PathSize{candidates.front()};
  const auto rung = [&](const PathTally& tally) {
    return largest(tally).value_or(candidates.size());
  };
  const PathTally& worst =
      *std::max_element(tallies.begin(), tallies.end(),
                        [&](const PathTally& a, const PathTally& b) { return rung(a) < rung(b); });
  const std::size_t last = candidates.size() - 2;  // the one behind it is 0
  if (rung(worst) > last) {
    const auto failing = std::count_if(tallies.begin(), tallies.end(),
                                       [&](const PathTally& one) { return rung(one) > last; });
    return fail(
        too_small(worst, static_cast<std::size_t>(failing) - 1, ranks, send_errors[worst.from]));
  }
  return PathSize{candidates[rung(worst)], shrunk(candidates, worst, tallies.size() - 1, ranks)};
}

}  // namespace tarpon::rendezvous
