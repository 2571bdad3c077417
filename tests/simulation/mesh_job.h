// The ranks of a job over a simulated World: each a Member with a data path that is one number,
// when a packet of each other rank last came.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collectives/membership/member.h"
#include "collectives/membership/mesh.h"
#include "tests/simulation/mesh_world.h"

namespace tarpon::testing_support {

class MeshRank final : public Host, public mesh::Network {
 public:
  static constexpr Duration kDeadAfter = 2s;

  /// Takes the place of the one number.
  class DataPath {
   public:
    virtual ~DataPath() = default;
    /// When the last packet of `peer` came.
    virtual Time last_heard(Rank peer) = 0;
    virtual void learn(const Fact& fact) = 0;
    virtual void send(const std::vector<AgreementPacket>& packets) = 0;
  };

  MeshRank(World& world, Rank rank, std::uint32_t ranks)
      : world_(world), rank_(rank), heard_(ranks), index_(world.add(*this)) {
    mesh_ = std::make_unique<mesh::Mesh>(rank, ranks, 7, static_cast<mesh::Network&>(*this));
    member_ = std::make_unique<mesh::Member>(MembershipOptions{.rank = rank,
                                                               .world_size = ranks,
                                                               .job = 7,
                                                               .budgets = {{0, 0.1, 0.5}},
                                                               .codec_adapts = true,
                                                               .dead_after = kDeadAfter},
                                             mesh_->job_line());
  }

  const mesh::Streams& streams() const { return mesh_->streams(); }
  mesh::Member& member() { return *member_; }
  const mesh::Member& member() const { return *member_; }

  // -- Host
  void accepted(mesh::StreamId stream) override {
    mesh_->streams().accepted(stream, world_.now);
    advance();
  }
  void connected(mesh::StreamId stream) override {
    mesh_->streams().connected(stream, world_.now);
    advance();
  }
  void received(mesh::StreamId stream, std::string bytes) override {
    mesh_->streams().received(stream, bytes, world_.now);
    advance();
  }
  void writable(mesh::StreamId stream) override {
    mesh_->streams().writable(stream);
    advance();
  }
  void ended(mesh::StreamId stream, const std::string& why, bool refused) override {
    mesh_->streams().ended(stream, why, refused, world_.now);
    advance();
  }

  // -- mesh::Network
  mesh::StreamId connect(Rank peer) override { return world_.connect(index_, peer); }
  std::size_t write(mesh::StreamId stream, std::string_view bytes) override {
    return world_.write(stream, bytes);
  }
  void close(mesh::StreamId stream) override { world_.close(stream); }

  /// What the live driver does after each event.
  void advance() {
    if (!world_.runs(index_) || stopped) return;
    const std::uint64_t doubted = mesh_->streams().doubted();
    for (Rank peer = 0; peer < heard_.size(); ++peer) {
      if ((doubted >> peer & 1) != 0)
        mesh_->streams().set_last_heard(peer, heard(peer), world_.now);
    }
    drive();
    most_buffered = std::max(most_buffered, mesh_->streams().buffered());
    while (auto news = member_->next_news()) take(*news);
    if (const auto datagrams = member_->take_datagrams(); !datagrams.empty()) send(datagrams);
    if (member_->numbers_wanted()) {
      member_->answer_numbers({{0, 5}}, world_.now);
      return advance();
    }
    follow_plan(Regroup::shrink, plans);
    follow_plan(Regroup::rejoin, rejoin_plans);
    tick_at(std::min(mesh_->next_deadline(), member_->next_deadline()));
  }

  void drive() {
    mesh_->tick(world_.now);
    member_->advance(world_.now);
  }

  void follow_plan(Regroup what, std::vector<ShrinkPlan>& followed) {
    mesh::Shrinking& rules = member_->plans(what);
    if (rules.ready()) {
      rules.decide(std::to_string(rank_) + "-" + std::to_string(++decided_));
      drive();
    }
    if (auto plan = rules.take_plan()) {
      followed.push_back(*std::move(plan));
      drive();
    }
  }

  void take(const mesh::Member::News& news) {
    if (news.kind == mesh::Member::News::Kind::aborted) aborted_by.insert(news.rank);
    if (news.kind == mesh::Member::News::Kind::epoch) epochs.push_back(news.epoch);
    if (news.kind != mesh::Member::News::Kind::fact) return;
    learned[news.fact.rank] = {news.fact, world_.now};
    if (data_path != nullptr) return data_path->learn(news.fact);
    if (news.fact.standing != Standing::left || !news.fact.serves) return;
    const std::uint64_t mask = std::uint64_t{1} << news.fact.rank;
    // Its operations are over here now, or a little later.
    const Duration later = world_.random.chance(0.5) ? Duration{} : Duration(pass_delay);
    world_.at(world_.now + later, [this, mask] {
      if (!world_.runs(index_)) return;
      member_->passed(mask);
      advance();
    });
  }

  void send(const std::vector<AgreementPacket>& datagrams) {
    if (data_path != nullptr) return data_path->send(datagrams);
    for (const AgreementPacket& one : datagrams) carry(one);
  }

  void tick_at(Time when) {
    if (when >= tick_due_ || when == kNever) return;
    tick_due_ = std::max(when, world_.now + 1us);
    world_.at(tick_due_, [this, due = tick_due_] {
      if (due != tick_due_) return;
      tick_due_ = kNever;
      advance();
    });
  }

  void resume() {
    stopped = false;
    tick_due_ = kNever;
    world_.resume(index_);
    advance();
  }

  void hear(Rank peer) { heard_[peer] = world_.now; }
  Time heard(Rank peer) const {
    return data_path != nullptr ? data_path->last_heard(peer) : heard_[peer];
  }

  DataPath* data_path = nullptr;
  std::function<void(const AgreementPacket&)> carry;  // without a data path: of datagrams
  bool stopped = false;
  Duration pass_delay = 50ms;
  bool needs_all = false;     // it is in an exact call that needs everybody
  std::uint64_t deaf_to = 0;  // ranks whose packets do not reach this one
  std::uint64_t silent = 0;   // ranks that were needed and not heard, until they are heard
  std::map<Rank, std::pair<Fact, Time>> learned;
  std::set<Rank> aborted_by;
  std::optional<Time> left;
  std::size_t most_buffered = 0;
  std::set<std::uint64_t> reported;      // steps
  std::vector<EpochRecord> epochs;       // in the order in which they came
  std::vector<ShrinkPlan> plans;         // of shrink()
  std::vector<ShrinkPlan> rejoin_plans;  // of rejoin()

 private:
  World& world_;
  const Rank rank_;
  std::vector<Time> heard_;
  std::size_t index_;
  int decided_ = 0;
  Time tick_due_ = kNever;
  std::unique_ptr<mesh::Mesh> mesh_;
  std::unique_ptr<mesh::Member> member_;
};

class MeshJob {
 public:
  MeshJob(std::uint64_t seed, Rank ranks) : world(seed), fates_(seed ^ 0x66617465) {
    for (Rank rank = 0; rank < ranks; ++rank) {
      ranks_.push_back(std::make_unique<MeshRank>(world, rank, ranks));
      ranks_[rank]->carry = [this, rank](const AgreementPacket& one) { carry(rank, one); };
    }
    for (auto& rank : ranks_) rank->advance();
    world.at(world.now, [this] { data_path(); });
  }

  World world;
  bool busy = true;            // packets flow all the time
  std::uint64_t data_cut = 0;  // ranks without a data path; their streams work
  MeshRank& operator[](Rank rank) { return *ranks_[rank]; }
  Rank size() const { return static_cast<Rank>(ranks_.size()); }
  bool runs(Rank rank) const { return world.runs(rank) && !ranks_[rank]->stopped; }

  void run(Duration length) {
    const Time end = world.now + length;
    for (std::uint64_t steps = 0; world.step(end); ++steps) {
      if (steps > 3'000'000) {
        livelock = true;
        return;
      }
    }
  }
  void stop(Rank rank) {
    ranks_[rank]->stopped = true;
    world.stop(rank);
  }
  void resume(Rank rank) { ranks_[rank]->resume(); }

  /// All ranks that run have streams to each other.
  bool connected() const {
    for (Rank a = 0; a < size(); ++a) {
      for (Rank b = 0; b < size(); ++b) {
        if (a == b || !runs(a) || !runs(b)) continue;
        // Those that take each other for dead need no connection.
        if (ranks_[a]->member().facts().standing(b) == Standing::dead) continue;
        if (ranks_[b]->member().facts().standing(a) == Standing::dead) continue;
        if ((ranks_[a]->streams().up() >> b & 1) == 0) return false;
      }
    }
    return true;
  }
  bool livelock = false;

 private:
  bool cut(Rank from, Rank to) const {
    return ((data_cut >> from | data_cut >> to | ranks_[to]->deaf_to >> from) & 1) != 0 ||
           !world.reaches(from, to);
  }

  /// A datagram is lost, or comes at any time, perhaps twice.
  void carry(Rank from, const AgreementPacket& one) {
    if (fates_.chance(0.3) || cut(from, one.peer)) return;
    for (int copies = fates_.chance(0.1) ? 2 : 1; copies > 0; --copies) {
      const std::uint64_t most = fates_.chance(0.1) ? 10'000'000'000 : 5'000'000;
      const Duration delay(fates_.below(most));
      world.at(world.now + delay, [this, from, one] {
        if (!runs(one.peer) || cut(from, one.peer)) return;
        ranks_[one.peer]->member().receive({from, one.payload}, world.now);
        ranks_[one.peer]->advance();
      });
    }
  }

  /// Packets between ranks that reach each other, and what exact calls make of their absence.
  void data_path() {
    for (Rank a = 0; a < size(); ++a) {
      if (!runs(a)) continue;
      std::uint64_t& silent = ranks_[a]->silent;
      for (Rank b = 0; b < size(); ++b) {
        if (a == b) continue;
        const std::uint64_t mask = std::uint64_t{1} << b;
        const bool reaches = !cut(b, a);
        // A silent rank is asked until it is heard.
        const bool packets = busy || ranks_[a]->needs_all || (silent & mask) != 0;
        if (packets && runs(b) && reaches) ranks_[a]->hear(b);
        const bool heard = world.now - ranks_[a]->heard(b) <= 300ms;
        if (heard) silent &= ~mask;
        if (!heard && ranks_[a]->needs_all) silent |= mask;
      }
      const std::uint64_t needed = ranks_[a]->needs_all ? silent : 0;
      ranks_[a]->member().set_silent(silent, needed, world.now);
      ranks_[a]->advance();
    }
    world.at(world.now + 20ms, [this] { data_path(); });
  }

  Random fates_;  // of datagrams
  std::vector<std::unique_ptr<MeshRank>> ranks_;
};

}  // namespace tarpon::testing_support
