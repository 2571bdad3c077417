// What the ranks of `tarpon check` tell each other of their probes. Texts of other ranks are
// checked here.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/check/pair_probe.h"
#include "xdp/base/result.h"

namespace tarpon {

/// Slices of a burst; a burst probe carries the number of its slice.
inline constexpr std::size_t kSlices = 11;

/// Packets of each slice that arrived.
using SliceCounts = std::array<std::uint64_t, kSlices>;

std::string encode(const SliceCounts& counts);
/// Inverts encode(). Errors: mismatch.
Result<SliceCounts> decode_slices(const std::string& text);

/// What a rank counted in one round.
struct RoundLog {
  PairProbe pair;            // of the rank that it probed: what the prober counts
  double flood_seconds = 0;  // that its flood took
  // Of the rank that probed it.
  std::uint32_t heard_full = 0;
  std::uint32_t heard_small = 0;
  std::uint64_t heard_flood = 0;
  std::uint64_t overrun = 0;  // during the flood
};

/// `rounds`: of all rounds, in order.
std::string encode(const std::vector<RoundLog>& rounds);

/// Joins the texts of all ranks, by rank, into the results of all pairs. In round k, from 1 on,
/// rank r has probed rank r + k, modulo the number of ranks. `slot_bytes`: payload of a probe of
/// the flood. Errors: mismatch, where a text has no result of each round.
Result<std::vector<PairProbe>> joined_pairs(const std::vector<std::string>& texts,
                                            std::uint32_t slot_bytes);

}  // namespace tarpon
