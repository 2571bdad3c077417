// Decides how large packets may be that every pair of ranks carries in both directions, from counts
// of probes that have arrived. Pure; path_probe.h sends and counts them.
//
// DESIGN NOTES
// 1. A lost probe is no evidence: networks lose packets. A size counts as not carried when a
//    smaller one has arrived, the size itself has not, and chance does not explain that at the loss
//    which the carried sizes show (judge()).
// 2. All ranks decide from the same counts, and so alike.
// 3. Probes alone decide: no ICMP message makes slots smaller.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/rank_info.h"
#include "transport/port.h"

namespace tarpon::rendezvous {

/// Bytes of the IPv4 packet that carries a slot of `payload` bytes: slots and their tags, if they
/// have some, fill steps of kPayloadStep bytes.
constexpr std::uint32_t packet_bytes(std::uint32_t payload) {
  return 20 + 8 + TARPON_HEADER_BYTES + (payload + kPayloadStep - 1) / kPayloadStep * kPayloadStep;
}

/// Payloads to try, descending: `full`, the slots of usual MTUs below it down to that of MTU 576,
/// less a tag where `full` is, and 0, which tells a small MTU from a blocked path.
std::vector<std::uint32_t> path_candidates(std::uint32_t full);

/// Probes of one ordered pair that have arrived, by candidate.
struct PathTally {
  Rank from = 0;
  Rank to = 0;
  std::vector<std::uint32_t> arrived;

  bool operator==(const PathTally&) const = default;
};

/// What one rank tells the others.
struct PathReport {
  std::vector<PathTally> tallies;  // pairs to this rank whose full-size probes were all lost
  std::string send_error = {};     // why its kernel refused probes; empty: it refused none

  bool operator==(const PathReport&) const = default;
};

/// A report as text for the control channel: "!ERROR" in a line of its own where there is one, then
/// a line "FROM COUNT COUNT ..." for each tally.
std::string encode(const PathReport& report);
/// `to`: the rank that sent the text. Errors: mismatch, unless each tally has `candidates` counts,
/// of which the first is 0, and a rank below `world`.
Result<PathReport> decode_path_report(const std::string& text, Rank to, std::uint32_t world,
                                      std::size_t candidates);

struct PathVerdict {
  std::optional<std::size_t> carried;  // the largest candidate that has arrived
  bool certain = false;                // chance does not explain that no larger one has

  bool operator==(const PathVerdict&) const = default;
};

/// Judges one pair. `arrived` and `sent`: counts by candidate, descending in size.
PathVerdict judge(std::span<const std::uint32_t> arrived, std::span<const std::uint32_t> sent);

struct PathSize {
  std::uint32_t slot_bytes = 0;
  std::string reason = {};  // one line that names the pair; empty: every pair carries full packets
};

/// The largest candidate that every pair carries. `tallies`: of the pairs that lack the full size,
/// ascending by sender, then receiver. `send_errors`: by rank (PathReport). Errors: unavailable: a
/// pair carries not even TARPON_MIN_PAYLOAD; names the pair, its direction and the remedy.
Result<PathSize> decide(const std::vector<std::uint32_t>& candidates,
                        const std::vector<PathTally>& tallies, const std::vector<RankInfo>& ranks,
                        const std::vector<std::string>& send_errors);

}  // namespace tarpon::rendezvous
