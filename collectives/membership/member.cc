#include "collectives/membership/member.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tarpon::mesh {
namespace {

// Limit of the news that the driver has not taken yet: ranks that abort endlessly cannot exceed it.
constexpr std::size_t kMaxNews = 4096;

// Limit of the datagrams that the driver has not taken yet. Repeats make up for others.
constexpr std::size_t kMaxDatagrams = 256;

}  // namespace

Member::Member(const MembershipOptions& options, Line& line)
    : rank_(options.rank),
      split_(options.communicator != 0),
      facts_(options.world_size),
      line_(line),
      votes_(options.rank, facts_, options.dead_after),
      agreement_(options.rank, facts_, options.budgets),
      shrinking_(options.rank, facts_, Regroup::shrink),
      rejoining_(options.rank, facts_, Regroup::rejoin),
      epochs_(options.rank, facts_, options.coded, options.codec_adapts) {}

// -- facts
// -----------------------------------------------------------------------------------------

/// Raises the row here, floods it, and tells everything that depends on it.
void Member::learn(const Fact& fact, Time now) {
  if (!facts_.learn(fact)) return;
  const Fact& row = facts_.of(fact.rank);
  send_all(FrameKind::fact, encode(row));
  agreement_.facts_changed(now);
  note_rejoin(now);
  epochs_.facts_changed(now);
  news_.push_back({News::Kind::fact, row, row.rank, {}, {}, 0});
}

/// Acts upon the proof that the process of `rank` is gone.
void Member::lose(Rank rank, const std::string& evidence, Time now) {
  Fact fact{.rank = rank, .standing = Standing::dead, .evidence = evidence, .next_numbers = {}};
  if (facts_.standing(rank) == Standing::left) {
    fact.standing = Standing::left;
    fact.evidence.clear();
  } else {
    agreement_.note_gone(rank);
  }
  learn(fact, now);
}

std::string Member::excluded() const {
  switch (facts_.standing(rank_)) {
    case Standing::live:
      return {};
    case Standing::left:
      return "this rank left the communicator";
    case Standing::evicted:
    case Standing::dead:
      break;
  }
  const Fact& own = facts_.of(rank_);
  return fmt::format("this rank is {} to the others: {}: {}",
                     own.standing == Standing::dead ? "dead" : "evicted", own.evidence,
                     split_ ? "split() the job anew, with a new number" : "rejoin()");
}

// -- leaving
// ---------------------------------------------------------------------------------------

void Member::leave(std::vector<NextNumber> next_numbers, Time now) {
  const Fact fact{.rank = rank_,
                  .standing = Standing::left,
                  .evidence = {},
                  .serves = true,
                  .next_numbers = std::move(next_numbers)};
  learn(fact, now);
}

std::uint64_t Member::not_passed() const {
  // The others do not wait for an excluded rank's operations, and need none of them.
  if (facts_.standing(rank_) > Standing::left) return 0;
  return facts_.live() & ~passed_by_ & ~bit(rank_);
}

void Member::passed(std::uint64_t ranks) {
  const std::uint64_t fresh = ranks & ~std::exchange(passed_here_, passed_here_ | ranks);
  for (Rank rank = 0; rank < facts_.world_size(); ++rank) {
    if ((fresh & bit(rank)) != 0 && rank != rank_) line_.send(rank, FrameKind::passed, {});
  }
}

// -- aborts and verdicts
// ---------------------------------------------------------------------------

void Member::abort(const std::string& reason, bool peers_too) {
  end_agreeing("this rank aborted: " + reason);
  // The others go on without a rank that is out of the job.
  if (!peers_too || !own_abort_.empty() || !facts_.is_live(rank_)) return;
  own_abort_ = reason.empty() ? "no reason given" : reason.substr(0, kMaxFrameBody);
  send_all(FrameKind::abort, own_abort_);
}

void Member::end_agreeing(std::string why) {
  if (aborted_.empty()) aborted_ = std::move(why);
}

std::optional<StepVerdict> Member::verdict(std::uint64_t step) const {
  std::string why = excluded();
  if (why.empty()) why = aborted_;
  if (why.empty()) return agreement_.verdict(step);
  StepVerdict halted;
  halted.step = step;
  halted.detail = std::move(why);
  return halted;
}

/// Tells the agreement, and as news the engine, which ranks wait in rejoin(). News that nobody has
/// taken yet is brought up to date, so that a peer which comes and goes does not make it grow.
void Member::note_rejoin(Time now) {
  const std::uint64_t ranks = rejoining_.waiting();
  agreement_.set_rejoin(ranks, now);
  if (ranks == rejoin_told_) return;
  rejoin_told_ = ranks;
  const auto pending = std::find_if(news_.begin(), news_.end(),
                                    [](const News& one) { return one.kind == News::Kind::rejoin; });
  if (pending != news_.end()) {
    pending->ranks = ranks;
  } else {
    news_.push_back({News::Kind::rejoin, {}, rank_, {}, {}, ranks});
  }
}

void Member::wait_for_plan(Regroup what, Time now) {
  plans(what).enter();
  note_rejoin(now);
}

void Member::stop_waiting(Regroup what, Time now) {
  plans(what).leave();
  note_rejoin(now);
}

void Member::take_agreement(Rank from, const std::string& body, Time now) {
  const auto message = decode_agreement(body, facts_.world_size());
  if (!message) return;
  if (message->kind == AgreementMessage::Kind::verdict) {
    rejoining_.told_of(message->verdict.rejoin);
    note_rejoin(now);
  }
  agreement_.receive(from, *message, Agreement::Carrier::stream, now);
}

void Member::receive(const AgreementPacket& packet, Time now) {
  const auto message = unpack(packet.payload, facts_.world_size());
  if (!message || packet.peer >= facts_.world_size() || packet.peer == rank_) return;
  // One that has come by the stream before may be older than what the stream said since.
  const bool fresh = agreement_.may_lack(message->step);
  if (message->kind == AgreementMessage::Kind::verdict && fresh && facts_.is_live(packet.peer)) {
    rejoining_.told_of(message->verdict.rejoin);
    note_rejoin(now);
  }
  agreement_.receive(packet.peer, *message, Agreement::Carrier::datagram, now);
}

// -- frames
// ----------------------------------------------------------------------------------------

void Member::take_frame(Rank from, const Frame& frame, Time now) {
  votes_.heard(from, now);
  switch (frame.kind) {
    case FrameKind::fact: {
      const auto fact = decode_fact(frame.body);
      // Only this rank itself can say that it has left.
      if (fact && (fact->rank != rank_ || fact->standing != Standing::left)) learn(*fact, now);
      return;
    }
    case FrameKind::passed:
      if (facts_.standing(rank_) == Standing::left) passed_by_ |= bit(from);
      return;
    case FrameKind::abort:
      // The abort of a rank that left counts: it aborted before, and the fact came first.
      if (facts_.standing(from) > Standing::left) return;
      if (aborted_.empty() && news_.size() < kMaxNews) {
        news_.push_back({News::Kind::aborted, {}, from, frame.body, {}, 0});
      }
      return end_agreeing(fmt::format("rank {} aborted: {}", from, frame.body));
    case FrameKind::agreement:
      return take_agreement(from, frame.body, now);
    case FrameKind::shrink:
      return shrinking_.receive(from, frame.body);
    case FrameKind::shrink_plan:
      return shrinking_.planned(from, frame.body);
    case FrameKind::votes:
      if (votes_.receive(from, frame.body, now)) line_.send(from, FrameKind::here, {});
      return;
    case FrameKind::here:
      return;  // votes_.heard() was all
    case FrameKind::line:
      return;  // the line takes it
    case FrameKind::rejoin:
      rejoining_.receive(from, frame.body);
      return note_rejoin(now);
    case FrameKind::rejoin_plan:
      return rejoining_.planned(from, frame.body);
    case FrameKind::epoch_level:
    case FrameKind::epoch_question:
    case FrameKind::epoch_answer:
    case FrameKind::epoch_record:
      return epochs_.take(from, frame, now);
  }
}

/// Sends everything that `rank` may have missed while no stream worked.
void Member::greet(Rank rank) {
  for (Rank other = 0; other < facts_.world_size(); ++other) {
    if (!facts_.is_live(other)) line_.send(rank, FrameKind::fact, encode(facts_.of(other)));
  }
  if ((passed_here_ & bit(rank)) != 0) line_.send(rank, FrameKind::passed, {});
  if (!own_abort_.empty()) line_.send(rank, FrameKind::abort, own_abort_);
  line_.send(rank, FrameKind::votes, votes_.body());
  agreement_.greet(rank);
  shrinking_.greet(rank);
  rejoining_.greet(rank);
  epochs_.greet(rank);
}

void Member::take(const Streams::Event& event, Time now) {
  switch (event.kind) {
    case Streams::Event::Kind::up:
      return greet(event.rank);
    case Streams::Event::Kind::frame:
      return take_frame(event.rank, event.frame, now);
    case Streams::Event::Kind::gone:
      rejoining_.gone(event.rank);
      return lose(event.rank, event.evidence, now);
  }
}

void Member::send_all(FrameKind kind, std::string_view body) {
  for (Rank rank = 0; rank < facts_.world_size(); ++rank) {
    if (rank != rank_) line_.send(rank, kind, body);
  }
}

void Member::send_agreement() {
  using Carrier = Agreement::Carrier;
  for (const auto& [to, carrier, message] : agreement_.take_outbox()) {
    if (carrier != Carrier::datagram) line_.send(to, FrameKind::agreement, encode(message));
    if (carrier == Carrier::stream || datagrams_.size() == kMaxDatagrams) continue;
    datagrams_.push_back({to, pack(message)});
  }
}

void Member::send_outboxes() {
  send_agreement();
  for (auto* const frames : {&shrinking_, &rejoining_}) send(frames->take_outbox());
  send(epochs_.take_outbox());
}

void Member::send(const std::vector<std::pair<Rank, Frame>>& frames) {
  for (const auto& [to, frame] : frames) line_.send(to, frame.kind, frame.body);
}

// -- time
// ------------------------------------------------------------------------------------------

void Member::advance(Time now) {
  while (auto event = line_.next_event()) take(*event, now);
  agreement_.tick(now);
  epochs_.tick(now);
  votes_.set_connected(line_.up());
  votes_.set_needed(shrinking_.needed(), now);
  for (Rank rank = 0; rank < facts_.world_size(); ++rank) {
    votes_.heard(rank, line_.last_heard(rank));
  }
  votes_.tick(now);
  while (const auto fact = votes_.next_fact()) {
    learn(*fact, now);
    votes_.tick(now);
  }
  if (const auto body = votes_.take_body()) send_all(FrameKind::votes, *body);
  if (auto record = epochs_.take_record()) {
    news_.push_back({News::Kind::epoch, {}, rank_, {}, *std::move(record), 0});
  }
  send_outboxes();
}

Time Member::next_deadline() const {
  return std::min({agreement_.next_deadline(), epochs_.next_deadline(), votes_.next_deadline()});
}

std::optional<Member::News> Member::next_news() {
  if (news_.empty()) return std::nullopt;
  News news = std::move(news_.front());
  news_.pop_front();
  return news;
}

}  // namespace tarpon::mesh
