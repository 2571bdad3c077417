// What `tarpon info` says: rows in sections, from which both the screen and the JSON are made.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "collectives/environment.h"
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

/// At most 100 columns, but for words that are longer.
std::string info_text(const std::vector<InfoSection>& sections);

/// {SECTION: {ROW: VALUE}}
nlohmann::json info_results(const std::vector<InfoSection>& sections);

/// Descriptors that a communicator of `world` ranks has at most, by io_uring and up to four flows.
/// A ring opens with the first wait, so that it may be two less. Rank 0 holds a connection to each
/// other rank twice: for control and for the mesh.
std::uint32_t descriptors_of_rank(Rank rank, std::uint32_t world);

/// Threads of one rank beside its caller: progress, control mesh, flight recorder.
inline constexpr std::uint32_t kThreadsOfRank = 3;

}  // namespace tarpon
