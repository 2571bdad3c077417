// What ranks tell each other of the probes that have arrived, and the slot size that follows. The
// first two bytes are the job: its ranks and the largest payload.
#include <algorithm>
#include <vector>

#include "collectives/rendezvous/path_size.h"
#include "tests/fuzz/fuzz.h"

using namespace tarpon;
using namespace tarpon::rendezvous;
using fuzz::require;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::uint32_t world = 2 + data[0] % 63;
  const auto to = static_cast<Rank>(data[0] % world);
  const std::vector<std::uint32_t> candidates = path_candidates(64u + data[1] * 32u);
  const std::string text(fuzz::text_of(data + 2, size - 2));
  const auto report = decode_path_report(text, to, world, candidates.size());
  if (!report) {
    require(report.error().message.find('\n') == std::string::npos, "a refusal is one line");
    return 0;
  }
  require(report->tallies.size() < world, "one tally a pair");
  for (const PathTally& tally : report->tallies) {
    require(tally.from < world && tally.from != to && tally.to == to, "a pair of the job");
    require(tally.arrived.size() == candidates.size(), "a count for each size");
  }
  require(report->send_error.find('\n') == std::string::npos, "an error is one line");
  const auto again = decode_path_report(encode(*report), to, world, candidates.size());
  require(again && *again == *report, "decode inverts encode");

  const std::vector<RankInfo> ranks(world);
  std::vector<std::string> errors(world);
  errors[to] = report->send_error;
  const auto decided = decide(candidates, report->tallies, ranks, errors);
  require(!decided || std::find(candidates.begin(), candidates.end(), decided->slot_bytes) !=
                          candidates.end(),
          "slots have a size that was tried");
  return 0;
}
