#include "collectives/membership/mesh.h"

#include <utility>

namespace tarpon::mesh {
Line::Line(Streams& streams, std::uint16_t communicator, Rank own, RankMap ranks)
    : streams_(streams), communicator_(communicator), own_(own), ranks_(std::move(ranks)) {}

void Line::open() {
  open_ = true;
  announce_all(LineState::opened);
  for (const Rank member : members()) {
    if ((streams_.gone() & bit(member)) == 0) continue;
    tell(Streams::Event::Kind::gone, ranks_.own(member), "it has left the job");
  }
}

void Line::close() {
  if (!std::exchange(open_, false)) return;
  announce_all(LineState::closed);
  opened_ = 0;
}

void Line::send(Rank to, FrameKind kind, std::string_view body) {
  if (communicator_ != 0 && (opened_ & bit(to)) == 0) return;
  streams_.send(ranks_.in_job(to), kind, body, communicator_);
}

std::uint64_t Line::up() const {
  if (communicator_ == 0) return streams_.up();
  std::uint64_t ranks = 0;
  for (const Rank rank : ranks_of(opened_)) {
    if ((streams_.up() & bit(ranks_.in_job(rank))) != 0) ranks |= bit(rank);
  }
  return ranks;
}

std::optional<Streams::Event> Line::next_event() {
  if (events_.empty()) return std::nullopt;
  Streams::Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void Line::tell(Streams::Event::Kind kind, Rank rank, std::string evidence) {
  Streams::Event& event = events_.emplace_back();
  event.kind = kind;
  event.rank = rank;
  event.evidence = std::move(evidence);
}

std::string Line::member_list() const {
  std::string list;
  for (const Rank member : members()) {
    list += static_cast<char>(member & 0xff);
    list += static_cast<char>(member >> 8);
  }
  return list;
}

/// `to`: a rank of the job.
void Line::announce(Rank to, LineState state) const {
  std::string body(1, static_cast<char>(state));
  body += member_list();
  streams_.send(to, FrameKind::line, body, communicator_);
}

void Line::announce_all(LineState state) {
  for (const Rank member : members()) {
    if (member != own_) announce(member, state);
  }
}

/// Takes an event with the job's rank.
void Line::take(Streams::Event event) {
  if (communicator_ != 0 && !open_) return;
  const Rank of_job = event.rank;
  const bool is_frame = event.kind == Streams::Event::Kind::frame;
  if (communicator_ != 0 && is_frame && event.frame.kind == FrameKind::line) {
    return take_state(of_job, event.frame.body);
  }
  event.rank = ranks_.own(of_job);
  if (event.rank == kUnknownRank) return;
  if (communicator_ != 0 && event.kind == Streams::Event::Kind::up) {
    opened_ &= ~bit(event.rank);
    return announce(of_job, LineState::opened);
  }
  if (communicator_ != 0 && is_frame && (opened_ & bit(event.rank)) == 0) return;
  events_.push_back(std::move(event));
}

/// `from`: a rank of the job.
void Line::take_state(Rank from, std::string_view body) {
  if (body.empty() || body[0] < 0 || body[0] > static_cast<char>(LineState::closed)) return;
  const auto state = static_cast<LineState>(body[0]);
  const Rank rank = ranks_.own(from);
  const bool same = rank != kUnknownRank && body.substr(1) == member_list();
  if (state == LineState::closed) {
    // A rank that has no line of this number any more sends no list.
    if (rank == kUnknownRank || (!same && body.size() > 1)) return;
    opened_ &= ~bit(rank);
    return tell(Streams::Event::Kind::gone, rank,
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
  if (fresh) tell(Streams::Event::Kind::up, rank);
}

Mesh::Mesh(Rank rank, std::uint32_t world_size, std::uint32_t job, Network& network)
    : streams_(rank, world_size, job, network),
      rank_(rank),
      job_line_(streams_, 0, rank, RankMap::of_job(world_size)) {}

Line& Mesh::add(std::uint16_t communicator, std::vector<Rank> members) {
  return lines_
      .emplace(communicator, Line(streams_, communicator, rank_, RankMap(std::move(members))))
      .first->second;
}

void Mesh::remove(std::uint16_t communicator) {
  lines_.erase(communicator);
  removed_.set(communicator);
}

/// Tells a rank that opens a line which this rank has closed: it may have missed that.
void Mesh::answer_removed(const Streams::Event& event) {
  const Frame& frame = event.frame;
  if (frame.kind != FrameKind::line || frame.body.empty() ||
      static_cast<LineState>(frame.body[0]) != LineState::opened) {
    return;
  }
  const std::string closed(1, static_cast<char>(LineState::closed));
  streams_.send(event.rank, FrameKind::line, closed, frame.communicator);
}

void Mesh::tick(Time now) {
  streams_.tick(now);
  while (auto event = streams_.next_event()) {
    if (event->kind == Streams::Event::Kind::frame) {
      if (event->frame.communicator == 0) {
        if (event->frame.kind != FrameKind::line) job_line_.take(*std::move(event));
        continue;
      }
      const auto found = lines_.find(event->frame.communicator);
      if (found != lines_.end()) {
        found->second.take(*std::move(event));
      } else if (removed_.test(event->frame.communicator)) {
        answer_removed(*event);
      }
      continue;
    }
    for (auto& [communicator, line] : lines_) line.take(*event);
    job_line_.take(*std::move(event));
  }
}

}  // namespace tarpon::mesh
