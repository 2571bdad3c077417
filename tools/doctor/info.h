// What `tarpon info` says: rows in sections, from which both the screen and the JSON are made.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "collectives/environment/environment.h"
#include "transport/port.h"

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

/// The screen text, in lines of at most 100 columns unless a word is longer.
std::string info_text(const std::vector<InfoSection>& sections);

/// {SECTION: {ROW: VALUE}}
nlohmann::json info_results(const std::vector<InfoSection>& sections);

/// The most descriptors that a communicator of `world` ranks holds, with io_uring and up to four
/// flows, where its ranks share no memory. There may be two fewer before the first wait, which
/// opens a ring. Rank 0 holds two connections to each other rank: for control and for the mesh.
std::uint32_t descriptors_of_rank(Rank rank, std::uint32_t world);

/// Threads of one rank beside its caller: progress, control mesh, flight recorder.
inline constexpr std::uint32_t kThreadsOfRank = 3;

}  // namespace tarpon
