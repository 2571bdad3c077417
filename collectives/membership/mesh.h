// The connections of a job, shared by its communicators: each communicator has a line (line.h).
//
// The line of communicator 0 is that of the job. Ranks open further lines by number, with the same
// members. A number is used once in a job.
//
// Not thread-safe.
#pragma once

#include <bitset>
#include <cstdint>
#include <map>
#include <vector>

#include "collectives/membership/line.h"
#include "collectives/membership/streams.h"

namespace tarpon::mesh {

class Mesh {
 public:
  /// `network` outlives the mesh.
  Mesh(Rank rank, std::uint32_t world_size, std::uint32_t job, Network& network);
  /// REQUIRES: its lines are used no more.
  ~Mesh() = default;

  Streams& streams() { return streams_; }
  const Streams& streams() const { return streams_; }
  JobLine& job_line() { return job_line_; }

  /// Adds a line, which is not open yet. `members`: ranks of the job, this one among them; rank i
  /// of the line is members[i]. Returns null if a line had this number before, else a line that is
  /// valid until remove(). REQUIRES: communicator > 0.
  PartLine* add(std::uint16_t communicator, std::vector<Rank> members);
  /// REQUIRES: it was added, and is not open.
  void remove(std::uint16_t communicator);

  /// Acts upon deadlines that have passed, and sorts the events of the streams into the lines.
  void tick(Time now);
  Time next_deadline() const { return streams_.next_deadline(); }

 private:
  void take_frame(Streams::Event event);
  void answer_removed(const Streams::Event& event);

  Streams streams_;
  const Rank rank_;
  JobLine job_line_;
  std::map<std::uint16_t, PartLine> lines_;
  std::bitset<1 << 16> used_;  // numbers of lines, also of those that are gone
};

}  // namespace tarpon::mesh
