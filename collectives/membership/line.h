// The line of a communicator: it sends and receives the communicator's frames over the streams of
// the job, and numbers ranks as the communicator does.
//
// The line of the job (JobLine) is up wherever a stream works. That of a communicator which is
// split from the job (PartLine) has to be opened by each of its ranks: they tell each other so in
// frames of kind `line`.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
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
  virtual ~Line() = default;

  /// Sends a frame. Does nothing if the line to `to` is not up.
  virtual void send(Rank to, FrameKind kind, std::string_view body) = 0;

  /// Ranks to which it is up. Bit r: rank r.
  virtual std::uint64_t up() const = 0;

  /// When the last packet of `rank` came on the data path, as far as the streams know.
  virtual Time last_heard(Rank rank) const = 0;

  /// Events, with this line's ranks.
  std::optional<Streams::Event> next_event();

 protected:
  void tell(Streams::Event event) { events_.push_back(std::move(event)); }

 private:
  std::deque<Streams::Event> events_;
};

class JobLine final : public Line {
 public:
  /// `streams` outlives the line.
  explicit JobLine(Streams& streams) : streams_(streams) {}

  void send(Rank to, FrameKind kind, std::string_view body) override;
  std::uint64_t up() const override { return streams_.up(); }
  Time last_heard(Rank rank) const override { return streams_.last_heard(rank); }

  /// Takes an event of the streams.
  void take(Streams::Event event);

 private:
  Streams& streams_;
};

/// A line is up between two ranks once each knows that the other has opened it; frames that were
/// sent before are lost. When a stream breaks, its lines are up again after both ranks have said so
/// once more. When a rank closes a line, the other members take it for gone from that line.
class PartLine final : public Line {
 public:
  /// Of the rank `own` of the job. `ranks`: of the line in the job. `streams` outlives the line,
  /// which is not open yet.
  PartLine(Streams& streams, std::uint16_t communicator, Rank own, RankMap ranks);

  /// Tells the members that this rank has opened the line.
  void open();
  /// Tells the members that it is closed, if it is open. No event comes afterwards.
  void close();

  void send(Rank to, FrameKind kind, std::string_view body) override;
  std::uint64_t up() const override;
  Time last_heard(Rank rank) const override { return streams_.last_heard(ranks_.in_job(rank)); }

  /// Ranks that have opened the line, also if they have closed it since. Bit r: rank r.
  std::uint64_t met() const { return met_; }
  /// The first rank, of the job, that has opened a line of this number with other members.
  std::optional<Rank> conflict() const { return conflict_; }
  /// The ranks of the job, by rank of the line.
  const std::vector<Rank>& members() const { return ranks_.members(); }

  /// Takes an event of the streams, with the job's rank.
  void take(Streams::Event event);

 private:
  std::string member_list() const;
  void announce(Rank to, LineState state) const;
  void announce_all(LineState state);
  void tell_about(Streams::Event::Kind kind, Rank rank, std::string evidence = {});
  void take_state(Rank from, std::string_view body);

  Streams& streams_;
  const std::uint16_t communicator_;
  const Rank own_;            // of the job
  const RankMap ranks_;       // of the line in the job
  bool open_ = false;         // here
  std::uint64_t opened_ = 0;  // ranks that have opened it too, since their `up`
  std::uint64_t met_ = 0;
  std::optional<Rank> conflict_;
};

}  // namespace tarpon::mesh
