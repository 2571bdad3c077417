// The connections of a job, shared by its communicators: each communicator has a line, which sends
// and receives its frames and speaks of its ranks.
//
// The line of communicator 0 is that of the job. Ranks open further lines by number, with the same
// members. A rank that opens one says so to the members. A line is up between two ranks once each
// knows that the other has opened it; frames that were sent before are lost. When a stream breaks,
// its lines are up again after both ranks have said so once more. When a rank closes a line, the
// other members take it for gone from that line.
//
// Not thread-safe.
#pragma once

#include <bitset>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/membership/frame.h"
#include "collectives/membership/streams.h"
#include "transport/rank_map.h"

namespace tarpon::mesh {

/// What a frame of kind `line` says.
enum class LineState : std::uint8_t {
  opened,    // the sender has opened the line
  answered,  // the same, and it knows that the receiver has
  closed,
};

class Line {
 public:
  /// Tells the members that this rank has opened the line. REQUIRES: it is not that of the job.
  void open();
  /// Tells the members that it is closed, if it is open. No event comes afterwards.
  void close();

  /// Sends a frame. Does nothing if the line to `to` is not up.
  void send(Rank to, FrameKind kind, std::string_view body);

  /// Ranks to which it is up. Bit r: rank r.
  std::uint64_t up() const;
  /// Ranks that have opened the line, also if they have closed it since. Bit r: rank r.
  /// REQUIRES: it is not that of the job.
  std::uint64_t met() const { return met_; }

  /// The ranks of the job, by rank of the line.
  const std::vector<Rank>& members() const { return ranks_.members(); }

  /// When the last packet of `rank` came on the data path, as far as the streams know.
  Time last_heard(Rank rank) const { return streams_.last_heard(ranks_.in_job(rank)); }

  /// Events, with this line's ranks.
  std::optional<Streams::Event> next_event();

  /// The first rank, of the job, that has opened a line of this number with other members.
  std::optional<Rank> conflict() const { return conflict_; }

 private:
  friend class Mesh;
  Line(Streams& streams, std::uint16_t communicator, Rank own, RankMap ranks);
  std::string member_list() const;
  void announce(Rank to, LineState state) const;
  void announce_all(LineState state);
  void take(Streams::Event event);
  void tell(Streams::Event::Kind kind, Rank rank, std::string evidence = {});
  void take_state(Rank from, std::string_view body);

  Streams& streams_;
  const std::uint16_t communicator_;
  const Rank own_;            // of the job
  const RankMap ranks_;       // of the line in the job
  bool open_ = false;         // here
  std::uint64_t opened_ = 0;  // ranks that have opened it too, since their `up`
  std::uint64_t met_ = 0;
  std::deque<Streams::Event> events_;
  std::optional<Rank> conflict_;
};

class Mesh {
 public:
  /// `network` outlives the mesh.
  Mesh(Rank rank, std::uint32_t world_size, std::uint32_t job, Network& network);
  /// REQUIRES: its lines are used no more.
  ~Mesh() = default;

  Streams& streams() { return streams_; }
  const Streams& streams() const { return streams_; }
  /// The line of communicator 0: up wherever a stream works.
  Line& job_line() { return job_line_; }

  /// Adds a line, which is not open yet. `members`: ranks of the job, this one among them; rank i
  /// of the line is members[i]. Returns a reference that is valid until remove(). REQUIRES:
  /// communicator > 0, and no line had this number before.
  Line& add(std::uint16_t communicator, std::vector<Rank> members);
  /// REQUIRES: it was added, and is not open.
  void remove(std::uint16_t communicator);

  /// Acts upon deadlines that have passed, and sorts the events of the streams into the lines.
  void tick(Time now);
  Time next_deadline() const { return streams_.next_deadline(); }

 private:
  void answer_removed(const Streams::Event& event);

  Streams streams_;
  const Rank rank_;
  Line job_line_;
  std::map<std::uint16_t, Line> lines_;
  std::bitset<1 << 16> removed_;  // numbers of lines that are gone
};

}  // namespace tarpon::mesh
