#include "collectives/membership/epochs.h"

#include <algorithm>
#include <bit>

#include "collectives/rendezvous/control_frame.h"
#include "transport/endpoint.h"

namespace tarpon::mesh {
namespace {

using rendezvous::append_u32;
using rendezvous::read_u32;

constexpr std::size_t kStartBytes = 8;
constexpr std::size_t kHeadBytes = 8;  // of an answer: round, epoch; of a record: epoch, setting
// Of a record's setting.
constexpr std::uint32_t kCoded = 1, kFlat = 2;
constexpr std::size_t kMostStarts = (kMaxBody - kHeadBytes) / kStartBytes;
constexpr std::uint32_t kRankBits = 6;  // low bits of an epoch's number: unique for each decider

void append(std::string& body, const std::vector<EpochRecord::Start>& starts) {
  for (std::size_t i = 0; i < std::min(starts.size(), kMostStarts); ++i) {
    append_u32(body, starts[i].tag);
    append_u32(body, starts[i].from);
  }
}

std::vector<EpochRecord::Start> read_starts(std::string_view body) {
  std::vector<EpochRecord::Start> starts;
  for (std::size_t at = kHeadBytes; at < body.size(); at += kStartBytes) {
    starts.push_back({read_u32(body.data() + at), read_u32(body.data() + at + 4)});
  }
  return starts;
}

bool well_formed(std::string_view body) {
  return body.size() >= kHeadBytes && (body.size() - kHeadBytes) % kStartBytes == 0;
}

bool by_tag(const EpochRecord::Start& a, const EpochRecord::Start& b) {
  return a.tag < b.tag;
}

/// REQUIRES: ordered by tag.
const EpochRecord::Start* find(const std::vector<EpochRecord::Start>& starts, std::uint32_t tag) {
  const auto found =
      std::lower_bound(starts.begin(), starts.end(), EpochRecord::Start{tag, 0}, by_tag);
  return found == starts.end() || found->tag != tag ? nullptr : &*found;
}

/// Adds `more` to `into`, and keeps the furthest number of each tag, ordered by tag.
void merge(std::vector<EpochRecord::Start>& into, const std::vector<EpochRecord::Start>& more) {
  into.insert(into.end(), more.begin(), more.end());
  std::stable_sort(into.begin(), into.end(), by_tag);
  std::size_t last = 0;
  for (std::size_t i = 1; i < into.size(); ++i) {
    if (into[i].tag != into[last].tag) {
      into[++last] = into[i];
    } else if (static_cast<std::int32_t>(into[i].from - into[last].from) > 0) {
      into[last].from = into[i].from;
    }
  }
  if (!into.empty()) into.resize(last + 1);
}

/// Returns the first epoch number of `rank` after `latest`. No record has the number 0.
std::uint16_t next_epoch(std::uint16_t latest, Rank rank) {
  constexpr std::uint32_t kRanks = 1u << kRankBits;
  const std::uint32_t step = (rank + kRanks - latest % kRanks) % kRanks;
  const auto next = static_cast<std::uint16_t>(latest + (step == 0 ? kRanks : step));
  return next == 0 ? kRanks : next;
}

}  // namespace

Epochs::Epochs(Rank rank, const Facts& facts, bool coded, bool automatic)
    : rank_(rank),
      facts_(facts),
      automatic_(automatic),
      decider_(facts.decider()),
      levels_(facts.world_size(), Level::calm),
      setting_{0, coded} {}

void Epochs::send(Rank to, FrameKind kind, std::string body) {
  outbox_.emplace_back(to, Frame{kind, std::move(body)});
}

void Epochs::note_cost(const CallEvidence& call) {
  if (call.coded) {
    const double overran = call.took > call.bound * kOverrun ? 1 : 0;
    overruns_ += (overran - overruns_) * kWeight;
    if (overruns_ > kMostly) costly_bound_ = std::max(costly_bound_, call.bound);
  } else if (call.bound > 2 * costly_bound_) {
    overruns_ = 0;
    costly_bound_ = Duration{};
  }
}

Epochs::Level Epochs::level() const {
  if (costly_bound_ > Duration{}) return Level::costly;
  return loss_ > kLossy ? Level::lossy : loss_ < kCalm ? Level::calm : Level::between;
}

void Epochs::note_call(const CallEvidence& call, Time now) {
  if (call.over_hosts && !std::exchange(over_hosts_, true)) consider(now);
  if (!automatic_) return;
  if (call.lost && !call.over_hosts) loss_ += (*call.lost - loss_) * kWeight;
  note_cost(call);
  if (level() == levels_[rank_] || !live(rank_)) return;
  levels_[rank_] = level();
  tell_level();
  consider(now);
}

void Epochs::tell_level() {
  if (decider_ == rank_ || decider_ >= levels_.size()) return;
  std::string body;
  append_u32(body, static_cast<std::uint32_t>(levels_[rank_]));
  send(decider_, FrameKind::epoch_level, std::move(body));
}

void Epochs::facts_changed(Time now) {
  const Rank before = std::exchange(decider_, facts_.decider());
  if (!live(rank_)) {
    question_.reset();
    asking_.reset();
    return;
  }
  if (!live(heeded_)) heeded_ = decider_;
  if (before != decider_) {
    question_.reset();
    if (decider_ == rank_) {
      inherited_ = is_active();
      // The other ranks told their levels to the last decider. They tell them again, or already
      // have: a fact may reach them first.
      for (Rank other = 0; other < levels_.size(); ++other) {
        if (other != rank_ && (told_ >> other & 1) == 0) levels_[other] = Level::between;
      }
    } else if (automatic_) {
      tell_level();
    }
  }
  if (decider_ != rank_) return;
  if (asking_ && (asking_->answered & facts_.live()) == facts_.live()) all_answered(now);
  consider(now);
}

void Epochs::greet(Rank rank) {
  if (!live(rank_) || !live(rank)) return;
  if (automatic_ && rank == decider_) tell_level();
  if (decider_ != rank_) return;
  if (!decided_.empty()) send(rank, FrameKind::epoch_record, decided_);
}

void Epochs::take(Rank from, const Frame& frame, Time now) {
  if (!live(rank_) || !live(from)) return;
  switch (frame.kind) {
    case FrameKind::epoch_level:
      if (frame.body.size() != 4 || read_u32(frame.body.data()) > 3) return;
      levels_[from] = static_cast<Level>(read_u32(frame.body.data()));
      told_ |= bit(from);
      return consider(now);
    case FrameKind::epoch_question:
      if (frame.body.size() != 4 || from < heeded_) return;
      heeded_ = from;
      question_ = {from, read_u32(frame.body.data())};
      return;
    case FrameKind::epoch_answer:
      return take_answer(from, frame.body, now);
    case FrameKind::epoch_record:
      if (from >= heeded_) take_decided(frame.body);
      return;
    default:
      return;
  }
}

/// Whether calls should be coded from now on.
bool Epochs::wants_coded() const {
  if (!automatic_) return setting_.coded;
  bool calm = true, lossy = false;
  for (Rank rank = 0; rank < levels_.size(); ++rank) {
    if (!live(rank)) continue;
    if (levels_[rank] == Level::costly) return false;
    lossy |= levels_[rank] == Level::lossy;
    calm &= levels_[rank] == Level::calm;
  }
  return lossy || calm ? lossy : setting_.coded;
}

bool Epochs::wants_flat() const {
  if (setting_.flat || !over_hosts_) return setting_.flat;
  for (Rank rank = 0; rank < levels_.size(); ++rank) {
    if (!live(rank)) return true;
  }
  return false;
}

/// Whether this rank has something to ask.
bool Epochs::curious() const {
  if (!live(rank_) || decider_ != rank_) return false;
  return inherited_ || wants_coded() != setting_.coded || wants_flat() != setting_.flat;
}

void Epochs::consider(Time now) {
  if (asking_ || now < rest_until_ || !curious()) return;
  asking_.emplace();
  asking_->latest = setting_.number;
  ask(now);
}

void Epochs::ask(Time now) {
  asking_->round = ++rounds_;
  asking_->answered = 0;
  asking_->next_round = kNever;
  asking_->until = now + kPatience;
  question_ = {rank_, asking_->round};
  for (Rank rank = 0; rank < levels_.size(); ++rank) {
    if (rank == rank_ || !live(rank)) continue;
    std::string body;
    append_u32(body, asking_->round);
    send(rank, FrameKind::epoch_question, std::move(body));
  }
}

void Epochs::answer(const std::vector<EpochRecord::Start>& next_numbers, Time now) {
  if (!question_) return;
  const Question question = *std::exchange(question_, std::nullopt);
  std::string body;
  append_u32(body, question.round);
  append_u32(body, setting_.number);
  append(body, next_numbers);
  if (question.from == rank_) {
    take_answer(rank_, body, now);
  } else {
    send(question.from, FrameKind::epoch_answer, std::move(body));
  }
}

void Epochs::take_answer(Rank from, std::string_view body, Time now) {
  if (!well_formed(body) || !asking_ || read_u32(body.data()) != asking_->round) return;
  asking_->answered |= bit(from);
  const auto known = static_cast<std::uint16_t>(read_u32(body.data() + 4));
  if (later_epoch(known, asking_->latest)) asking_->latest = known;
  asking_->apart |= known != setting_.number;
  merge(asking_->numbers, read_starts(body));
  if ((asking_->answered & facts_.live()) == facts_.live()) all_answered(now);
}

void Epochs::all_answered(Time now) {
  if (asking_->next_round != kNever) return;
  if (asking_->second) return decide(now);
  asking_->first = asking_->numbers;
  asking_->second = true;
  asking_->next_round = now + kBetweenRounds;
}

void Epochs::decide(Time now) {
  const EpochInquiry asked = *std::exchange(asking_, std::nullopt);
  const bool coded = wants_coded();
  const bool flat = wants_flat();
  inherited_ = false;
  rest_until_ = now + kRest;
  if (!asked.apart && coded == setting_.coded && flat == setting_.flat) return;
  EpochRecord record;
  record.setting = {next_epoch(asked.latest, rank_), coded, flat};
  for (const EpochRecord::Start& now_at : asked.numbers) {
    const EpochRecord::Start* const before = find(asked.first, now_at.tag);
    const std::uint32_t went = before == nullptr ? now_at.from : now_at.from - before->from;
    record.starts.push_back({now_at.tag, now_at.from + kMargin + kAhead * went});
  }
  std::string body;
  append_u32(body, record.setting.number);
  append_u32(body, (coded ? kCoded : 0) | (flat ? kFlat : 0));
  append(body, record.starts);
  for (Rank rank = 0; rank < levels_.size(); ++rank) {
    if (rank != rank_ && live(rank)) send(rank, FrameKind::epoch_record, body);
  }
  decided_ = body;
  take_decided(body);
}

void Epochs::take_decided(std::string_view body) {
  if (!well_formed(body)) return;
  const std::uint32_t what = read_u32(body.data() + 4);
  const EpochSetting setting{static_cast<std::uint16_t>(read_u32(body.data())),
                             (what & kCoded) != 0, (what & kFlat) != 0};
  if (!later_epoch(setting.number, setting_.number)) return;
  setting_ = setting;
  record_ = {setting, read_starts(body)};
}

void Epochs::tick(Time now) {
  if (asking_ && now >= asking_->next_round) ask(now);
  if (asking_ && asking_->next_round == kNever && now >= asking_->until) {
    asking_.reset();
    rest_until_ = now + kRest;
  }
  consider(now);
}

Time Epochs::next_deadline() const {
  if (asking_) return asking_->next_round != kNever ? asking_->next_round : asking_->until;
  return curious() ? rest_until_ : kNever;
}

std::optional<EpochRecord> Epochs::take_record() {
  return std::exchange(record_, std::nullopt);
}

std::vector<std::pair<Rank, Frame>> Epochs::take_outbox() {
  return std::exchange(outbox_, {});
}

}  // namespace tarpon::mesh
