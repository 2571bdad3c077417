// What `tarpon info` says: rows in sections, from which both the screen and the JSON are made.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "collectives/environment.h"

namespace tarpon {

struct InfoRow {
  std::string id;     // the key in JSON; empty: the row is on the screen only
  std::string title;  // on the screen; empty: the row is in the JSON only
  std::string text;
  nlohmann::json value;
};

struct InfoSection {
  std::string id;
  std::string title;
  std::vector<InfoRow> rows;
};

/// Versions and build, instruction sets, data paths, limits, paths, environment. Asks the kernel
/// about the interface that a job would take and changes nothing. Never fails: what cannot be read
/// is a row that says why.
std::vector<InfoSection> read_info(const Environment& environment);

/// At most 100 columns, but for words that are longer.
std::string info_text(const std::vector<InfoSection>& sections);

/// {SECTION: {ROW: VALUE}}
nlohmann::json info_results(const std::vector<InfoSection>& sections);

/// What a communicator of `world` ranks opens at most: descriptors of one rank.
std::uint32_t descriptors_of_rank(std::uint32_t world);

/// Threads of one rank beside its caller: progress, control mesh, flight recorder.
inline constexpr std::uint32_t kThreadsOfRank = 3;

}  // namespace tarpon
