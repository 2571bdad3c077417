#include "tools/check/pair_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "tools/job/foreign_json.h"

namespace tarpon {
namespace {

using nlohmann::json;

tl::unexpected<Error> invalid() {
  return fail(Error::Code::mismatch, "a rank sent no valid probe results");
}

std::optional<RoundLog> round_from(const json& object) {
  if (!object.is_object()) return std::nullopt;
  RoundLog round;
  PairProbe& pair = round.pair;
  const bool good =
      take(object, "sent", pair.sent) && take(object, "answered", pair.answered) &&
      take(object, "small_sent", pair.small_sent) &&
      take(object, "small_answered", pair.small_answered) &&
      take(object, "send_error", pair.send_error) && take(object, "rtt_us", pair.rtt_us) &&
      take(object, "flood_sent", pair.flood_sent) && take(object, "fragmented", pair.fragmented) &&
      take(object, "flood_seconds", round.flood_seconds) &&
      take(object, "heard_full", round.heard_full) &&
      take(object, "heard_small", round.heard_small) &&
      take(object, "heard_flood", round.heard_flood) && take(object, "overrun", round.overrun);
  if (!good || pair.send_error < 0 || pair.rtt_us < 0) return std::nullopt;
  return round;
}

/// The rounds of one rank. Empty: the text has no result of each round.
std::vector<RoundLog> rounds_from(const std::string& text, std::size_t rounds) {
  const auto value = parse_foreign_json(text);
  if (!value || !value->is_array() || value->size() != rounds) return {};
  std::vector<RoundLog> all;
  for (const json& object : *value) {
    const auto round = round_from(object);
    if (!round) return {};
    all.push_back(*round);
  }
  return all;
}

/// The result of a pair: `sent` by the rank that probed, `seen` by the rank that was probed.
PairProbe joined(const RoundLog& sent, const RoundLog& seen, std::uint32_t slot_bytes) {
  PairProbe pair = sent.pair;
  pair.arrived = seen.heard_full;
  pair.small_arrived = seen.heard_small;
  pair.flood_arrived = seen.heard_flood;
  pair.flood_overrun = seen.overrun;
  if (sent.flood_seconds > 0) {
    pair.rate_gbps =
        static_cast<double>(pair.flood_arrived) * slot_bytes * 8 / sent.flood_seconds / 1e9;
  }
  return pair;
}

}  // namespace

std::string encode(const SliceCounts& counts) {
  return json(counts).dump();
}

Result<SliceCounts> decode_slices(const std::string& text) {
  const auto value = parse_foreign_json(text);
  std::vector<std::uint64_t> numbers;
  if (!value || !take(*value, numbers) || numbers.size() != kSlices) return invalid();
  SliceCounts counts{};
  std::copy(numbers.begin(), numbers.end(), counts.begin());
  return counts;
}

std::string encode(const std::vector<RoundLog>& rounds) {
  json all = json::array();
  for (const RoundLog& round : rounds) {
    const PairProbe& pair = round.pair;
    all.push_back({{"sent", pair.sent},
                   {"answered", pair.answered},
                   {"small_sent", pair.small_sent},
                   {"small_answered", pair.small_answered},
                   {"send_error", pair.send_error},
                   {"rtt_us", pair.rtt_us},
                   {"flood_sent", pair.flood_sent},
                   {"fragmented", pair.fragmented},
                   {"flood_seconds", round.flood_seconds},
                   {"heard_full", round.heard_full},
                   {"heard_small", round.heard_small},
                   {"heard_flood", round.heard_flood},
                   {"overrun", round.overrun}});
  }
  return all.dump();
}

Result<std::vector<PairProbe>> joined_pairs(const std::vector<std::string>& texts,
                                            std::uint32_t slot_bytes) {
  const std::size_t world = texts.size();
  if (world < 2) return std::vector<PairProbe>();
  std::vector<std::vector<RoundLog>> logs;
  for (const std::string& text : texts) {
    logs.push_back(rounds_from(text, world - 1));
    if (logs.back().empty()) return invalid();
  }
  std::vector<PairProbe> pairs;
  for (std::size_t from = 0; from < world; ++from) {
    for (std::size_t round = 1; round < world; ++round) {
      const std::size_t to = (from + round) % world;
      PairProbe pair = joined(logs[from][round - 1], logs[to][round - 1], slot_bytes);
      pair.from = static_cast<Rank>(from);
      pair.to = static_cast<Rank>(to);
      pair.reply_error = logs[to][world - round - 1].pair.send_error;
      pairs.push_back(pair);
    }
  }
  return pairs;
}

}  // namespace tarpon
