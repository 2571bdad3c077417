#include "collectives/membership/line.h"

#include <utility>

#include "transport/rank_mask.h"

namespace tarpon::mesh {

std::optional<Streams::Event> Line::next_event() {
  if (events_.empty()) return std::nullopt;
  Streams::Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void JobLine::send(Rank to, FrameKind kind, std::string_view body) {
  streams_.send(to, kind, body);
}

void JobLine::take(Streams::Event event) {
  const bool is_frame = event.kind == Streams::Event::Kind::frame;
  if (is_frame && event.frame.kind == FrameKind::line) return;  // no rank opens this line
  tell(std::move(event));
}

PartLine::PartLine(Streams& streams, std::uint16_t communicator, Rank own, RankMap ranks)
    : streams_(streams), communicator_(communicator), own_(own), ranks_(std::move(ranks)) {}

void PartLine::open() {
  open_ = true;
  announce_all(LineState::opened);
  for (const Rank member : members()) {
    if ((streams_.gone() & bit(member)) == 0) continue;
    tell_about(Streams::Event::Kind::gone, ranks_.own(member), "it has left the job");
  }
}

void PartLine::close() {
  if (!std::exchange(open_, false)) return;
  announce_all(LineState::closed);
  opened_ = 0;
}

void PartLine::send(Rank to, FrameKind kind, std::string_view body) {
  if ((opened_ & bit(to)) == 0) return;
  streams_.send(ranks_.in_job(to), kind, body, communicator_);
}

std::uint64_t PartLine::up() const {
  std::uint64_t ranks = 0;
  for (const Rank rank : ranks_of(opened_)) {
    if ((streams_.up() & bit(ranks_.in_job(rank))) != 0) ranks |= bit(rank);
  }
  return ranks;
}

void PartLine::tell_about(Streams::Event::Kind kind, Rank rank, std::string evidence) {
  tell({.kind = kind, .rank = rank, .frame = {}, .evidence = std::move(evidence)});
}

std::string PartLine::member_list() const {
  std::string list;
  for (const Rank member : members()) {
    list += static_cast<char>(member & 0xff);
    list += static_cast<char>(member >> 8);
  }
  return list;
}

/// `to`: a rank of the job.
void PartLine::announce(Rank to, LineState state) const {
  std::string body(1, static_cast<char>(state));
  body += member_list();
  streams_.send(to, FrameKind::line, body, communicator_);
}

void PartLine::announce_all(LineState state) {
  for (const Rank member : members()) {
    if (member != own_) announce(member, state);
  }
}

void PartLine::take(Streams::Event event) {
  if (!open_) return;
  const Rank of_job = event.rank;
  const bool is_frame = event.kind == Streams::Event::Kind::frame;
  if (is_frame && event.frame.kind == FrameKind::line) {
    return take_state(of_job, event.frame.body);
  }
  event.rank = ranks_.own(of_job);
  if (event.rank == kUnknownRank) return;
  if (event.kind == Streams::Event::Kind::up) {
    opened_ &= ~bit(event.rank);
    return announce(of_job, LineState::opened);
  }
  if (is_frame && (opened_ & bit(event.rank)) == 0) return;
  tell(std::move(event));
}

/// `from`: a rank of the job.
void PartLine::take_state(Rank from, std::string_view body) {
  if (body.empty() || body[0] < 0 || body[0] > static_cast<char>(LineState::closed)) return;
  const auto state = static_cast<LineState>(body[0]);
  const Rank rank = ranks_.own(from);
  const bool same = rank != kUnknownRank && body.substr(1) == member_list();
  if (state == LineState::closed) {
    // A rank that has no line of this number any more sends no list.
    if (rank == kUnknownRank || (!same && body.size() > 1)) return;
    opened_ &= ~bit(rank);
    return tell_about(Streams::Event::Kind::gone, rank,
                      "it has destroyed its communicator without close()");
  }
  if (!same) {
    if (!conflict_) conflict_ = from;
    if (state == LineState::opened)
      announce(from, LineState::answered);  // it sees the conflict too
    return;
  }
  const bool fresh = (opened_ & bit(rank)) == 0;
  opened_ |= bit(rank);
  met_ |= bit(rank);
  if (state == LineState::opened) announce(from, LineState::answered);
  if (fresh) tell_about(Streams::Event::Kind::up, rank);
}

}  // namespace tarpon::mesh
