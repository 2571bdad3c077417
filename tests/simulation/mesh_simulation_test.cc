// Seeded jobs over a simulated control mesh: streams break, hosts vanish, processes stop or are
// killed, strangers come, and the ranks agree, leave, shrink, evict and wait in rejoin() meanwhile.
// What must come out: equal rows on all live ranks after healing, nobody dead without cause, the
// same verdicts, ends by their deadlines, bounded memory. More seeds: MESH_SEEDS=50000.
#include <gtest/gtest.h>

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "tests/simulation/mesh_job.h"
#include "tests/support/sanitized.h"

namespace tarpon::mesh_simulation_test {
namespace {

using namespace testing_support;
using mesh::StreamId;

/// Seeds of one test. A sanitizer makes a seed seven times as long: 0.11 s.
std::uint64_t seeds() {
  const char* const wanted = std::getenv("MESH_SEEDS");
  if (wanted != nullptr) return std::strtoull(wanted, nullptr, 10);
  return kSanitizer ? 150 : 500;
}

/// A stranger that connects to a door and sends well-formed bytes, with the job's cookie or
/// without, or garbage.
class Stranger final : public Host {
 public:
  Stranger(World& world, std::uint32_t job, Rank as, bool garbage)
      : world_(world), job_(job), as_(as), garbage_(garbage), index_(world.add(*this)) {}

  void call(Rank rank) { (void)world_.connect(index_, rank); }

  void accepted(StreamId) override {}
  void writable(StreamId) override {}
  void ended(StreamId, const std::string&, bool) override {}
  void received(StreamId stream, std::string) override { talk(stream); }
  void connected(StreamId stream) override {
    std::string bytes;
    for (const std::uint32_t word : {0x4d505454u, 1u, job_, std::uint32_t{as_}}) {
      for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(word >> shift));
    }
    if (garbage_) {
      for (char& byte : bytes) byte = static_cast<char>(world_.random.next());
    }
    if (!world_.random.chance(0.2)) (void)world_.write(stream, bytes);  // else it is silent
  }

 private:
  /// Valid frames with random bodies, once it has been let in.
  void talk(StreamId stream) {
    if (said_++ > 20) return;
    std::string bytes;
    const auto kind = static_cast<mesh::FrameKind>(
        1 + world_.random.below(static_cast<std::uint64_t>(mesh::kLastKind)));
    std::string body(world_.random.below(120), '\0');
    for (char& byte : body) {
      byte = world_.random.chance(0.7) ? '\0' : static_cast<char>(world_.random.next());
    }
    mesh::append_frames(bytes, kind, body);
    (void)world_.write(stream, bytes);
  }

  World& world_;
  const std::uint32_t job_;
  const Rank as_;
  const bool garbage_;
  std::size_t index_;
  int said_ = 0;
};

/// One seed: what happens is drawn first, and said when an oracle fails.
class Scenario {
 public:
  explicit Scenario(std::uint64_t seed)
      : draw_(seed * 2 + 1),
        cuts_(seed ^ 0x63757473),
        losses_(seed ^ 0x6c6f7373),
        outs_(seed ^ 0x6f757473),
        job_(seed, static_cast<Rank>(2 + Random(seed).below(6))) {}

  void run() {
    job_.run(1s);
    check(job_.connected(), "the mesh does not open");
    job_.busy = draw_.chance(0.7);
    for (int turn = 0; turn < 12; ++turn) {
      act();
      if (cuts_.chance(0.1)) cut_data();
      if (outs_.chance(0.1)) agree_without_one();
      if (outs_.chance(0.02)) evict_one();
      // Often so soon that messages of the last act are still under way.
      job_.run(Duration(draw_.below(draw_.chance(0.5) ? 3'000'000 : 400'000'000)));
      check_always();
    }
    heal();
    job_.run(20s);
    finish_steps();
    job_.run(5s);
    check_always();
    check_healed();
    shrink_all();
    rejoin_all();
  }

  const std::string& failure() const { return failure_; }
  const std::string& story() const { return story_; }

 private:
  void check(bool condition, const std::string& what) {
    if (!condition && failure_.empty()) failure_ = what;
  }
  void tell(const std::string& what) {
    story_ += std::to_string((job_.world.now - Time{1s}) / 1ms) + " ms: " + what + "\n";
  }
  Rank any() { return static_cast<Rank>(draw_.below(job_.size())); }
  bool live(Rank rank) { return job_[rank].member().facts().is_live(rank); }

  void act() {
    const Rank rank = any();
    const std::string name = std::to_string(rank);
    switch (draw_.below(15)) {
      case 0:
        if (job_.runs(rank) && crashes_ + 1 < job_.size()) {
          tell("crash of " + name);
          crashed_[rank] = job_.world.now;
          ++crashes_;
          job_.world.crash(rank);
          if (draw_.chance(0.2)) {
            job_.world.reuse_door(rank);
            reused_ |= bit(rank);
          }
        }
        return;
      case 1:
        if (job_.runs(rank) && draw_.chance(0.3)) {
          tell("host of " + name + " vanishes");
          vanished_ |= bit(rank);
          job_.world.vanish(rank);
        }
        return;
      case 2: {
        const Duration length(draw_.chance(0.5) ? draw_.below(1'000'000'000)
                                                : draw_.below(8'000'000'000));
        tell("partition for " + std::to_string(length / 1ms) + " ms, " + name + " alone or more");
        if (length > MeshRank::kDeadAfter / 2) excused_ = true;
        const std::uint64_t group = bit(rank) | (draw_.chance(0.5) ? bit(any()) : 0);
        for (Rank one = 0; one < job_.size(); ++one) {
          if ((group & bit(one)) != 0) job_.world.set_group(one, 1);
        }
        calm_ = false;
        job_.run(length);
        for (Rank one = 0; one < job_.size(); ++one) job_.world.set_group(one, 0);
        return;
      }
      case 3: {
        if (!job_.runs(rank)) return;
        const Duration length(draw_.below(4'000'000'000));
        tell(name + " is stopped for " + std::to_string(length / 1ms) + " ms");
        if (length > MeshRank::kDeadAfter / 2) excused_ = true;
        calm_ = false;
        job_.stop(rank);
        job_.run(length);
        if (job_.world.runs(rank)) job_.resume(rank);
        return;
      }
      case 4:
      case 5:
      case 6:
        tell("a stream breaks");
        calm_ = false;
        for (std::uint64_t i = 1 + draw_.below(4); i > 0; --i) {
          job_.world.break_one(static_cast<int>(draw_.below(3)));
        }
        return;
      case 7:
        return strangers();
      case 8:
        return leave(rank);
      case 9:
        tell("all need all");
        for (Rank one = 0; one < job_.size(); ++one) job_[one].needs_all = draw_.chance(0.9);
        return;
      case 10:
        if (!job_.runs(rank) || draw_.chance(0.5)) return;
        tell(name + " enters shrink()");
        job_[rank].member().plans(Regroup::shrink).enter();
        return job_[rank].advance();
      case 11: {
        const Duration length(draw_.below(2'000'000'000));
        tell("the door of " + name + " refuses for " + std::to_string(length / 1ms) + " ms");
        if (!job_.busy) excused_ = refused_quietly_ = true;  // no packet says that it lives
        calm_ = false;
        refused_ = true;
        job_.world.refuse(rank, true);
        for (int i = 0; i < 10; ++i) job_.world.break_one(static_cast<int>(draw_.below(3)));
        job_.run(length);
        job_.world.refuse(rank, false);
        return;
      }
      default:
        return report_step();
    }
  }

  /// Packets of a rank are lost, and its streams work: votes may exclude it, no proof.
  void cut_data() {
    const auto rank = static_cast<Rank>(cuts_.below(job_.size()));
    const Duration length(cuts_.below(cuts_.chance(0.5) ? 1'000'000'000 : 5'000'000'000));
    tell("the data path of " + std::to_string(rank) + " is cut for " +
         std::to_string(length / 1ms) + " ms");
    if (refused_) excused_ = refused_quietly_ = true;  // the refusal may have been a moment ago
    if (length > MeshRank::kDeadAfter / 2) excused_ = true;
    job_.data_cut = bit(rank);
    job_.run(length);
    job_.data_cut = 0;
  }

  /// A running rank, every second time one that some rank takes for the decider.
  std::optional<Rank> any_out() {
    Rank rank = static_cast<Rank>(outs_.below(job_.size()));
    if (job_.runs(rank) && outs_.chance(0.5)) rank = job_[rank].member().decider();
    if (rank >= job_.size() || !job_.runs(rank) || job_[rank].left) return std::nullopt;
    return rank;
  }

  /// A rank waits in rejoin() while the others agree on a step, and goes on without it.
  void agree_without_one() {
    const std::optional<Rank> out = any_out();
    if (!out) return;
    const std::uint64_t step = ++steps_;
    tell(std::to_string(*out) + " waits in rejoin() for a while; the others take step " +
         std::to_string(step));
    job_[*out].member().wait_for_plan(Regroup::rejoin, job_.world.now);
    job_[*out].advance();
    job_.run(Duration(outs_.below(50'000'000)));
    for (Rank rank = 0; rank < job_.size(); ++rank) {
      if (rank == *out || !job_.runs(rank) || !outs_.chance(0.9)) continue;
      if (!job_[rank].reported.insert(step).second) continue;
      job_[rank].member().report(step, {}, 500ms, job_.world.now);
      job_[rank].advance();
    }
    job_.run(Duration(outs_.below(outs_.chance(0.5) ? 3'000'000 : 600'000'000)));
    if (!job_.runs(*out)) return;
    job_[*out].member().stop_waiting(Regroup::rejoin, job_.world.now);
    job_[*out].advance();
  }

  /// The others have no room to retain results for a rank: they evict it.
  void evict_one() {
    const std::optional<Rank> out = any_out();
    if (!out || crashes_ + 2 > job_.size()) return;
    tell(std::to_string(*out) + " is evicted");
    evicted_ |= bit(*out);
    for (Rank rank = 0; rank < job_.size(); ++rank) {
      if (rank == *out || !job_.runs(rank)) continue;
      job_[rank].member().wish_eviction(bit(*out), job_.world.now);
      job_[rank].advance();
    }
    job_.run(Duration(outs_.below(100'000'000)));
  }

  void report_step() {
    const std::uint64_t step = ++steps_;
    tell("step " + std::to_string(step));
    for (Rank rank = 0; rank < job_.size(); ++rank) {
      if (job_.runs(rank) && draw_.chance(0.9)) report(rank, step);
      if (draw_.chance(0.3)) change_loss(rank);
    }
  }
  /// So many calls that the level of `rank` changes, and with it the epoch.
  void change_loss(Rank rank) {
    if (!job_.runs(rank)) return;
    const double lost = losses_.chance(0.6) ? 0.1 : 0;
    for (int call = 0; call < 50; ++call) {
      job_[rank].member().note_call({.lost = lost}, job_.world.now);
    }
    job_[rank].advance();
  }
  void report(Rank rank, std::uint64_t step) {
    if (!job_[rank].reported.insert(step).second) return;
    const double lost = static_cast<double>(draw_.below(100)) / 100;
    job_[rank].member().report(step, {.lost_fraction = lost}, 500ms, job_.world.now);
    job_[rank].advance();
  }

  void leave(Rank rank) {
    if (!job_.runs(rank) || job_[rank].left) return;
    tell(std::to_string(rank) + " closes");
    job_[rank].left = job_.world.now;
    std::vector<NextNumber> numbers(draw_.chance(0.1) ? 20'000 : draw_.below(5));
    job_[rank].member().leave(std::move(numbers), job_.world.now);
    job_[rank].advance();
    const Time end = job_.world.now + 150ms;  // passing takes up to 50 ms, a way 2 ms
    if (!calm_ || strangers_.size() > 0) return;
    while (job_.world.step(end)) continue;
    check(running(job_[rank].member().not_passed()) == 0,
          "close() of rank " + std::to_string(rank) + " is not done after 150 calm ms");
  }

  void strangers() {
    const bool knows = draw_.chance(0.3);
    tell(knows ? "a liar with the cookie" : "strangers");
    if (knows) liar_ = true;
    const std::size_t count = knows ? 1 : 1 + draw_.below(150);
    for (std::size_t i = 0; i < count; ++i) {
      strangers_.push_back(std::make_unique<Stranger>(job_.world, knows ? 7 : 8, any(),
                                                      !knows && draw_.chance(0.5)));
      strangers_.back()->call(any());
    }
  }

  void heal() {
    tell("healed");
    for (Rank rank = 0; rank < job_.size(); ++rank) {
      job_[rank].needs_all = true;
      job_[rank].member().plans(Regroup::shrink).leave();
    }
    job_.busy = true;
  }

  /// The ranks that are live by their own row report all steps, so that each has its verdict.
  void finish_steps() {
    for (std::uint64_t step = 1; step <= steps_; ++step) {
      for (Rank rank = 0; rank < job_.size(); ++rank) {
        if (job_.runs(rank) && live(rank)) report(rank, step);
      }
    }
  }

  /// All live ranks come to shrink(), one after the other.
  void shrink_all() {
    if (liar_) return;
    std::map<Rank, std::size_t> before;
    for (Rank rank = 0; rank < job_.size(); ++rank) {
      if (!job_.runs(rank) || !live(rank)) continue;
      if (running(live_to(rank)) != live_to(rank)) return;  // one cannot come
      before[rank] = job_[rank].plans.size();
      job_[rank].member().plans(Regroup::shrink).enter();
      job_[rank].advance();
      job_.run(Duration(draw_.below(5'000'000)));
    }
    job_.run(2s);
    for (const auto& [rank, count] : before) {
      const auto& plans = job_[rank].plans;
      const std::string where = "rank " + std::to_string(rank) + " in shrink(): ";
      check(plans.size() == count + 1, where + std::to_string(plans.size() - count) + " plans");
      if (plans.size() == count) continue;
      check(plans.back().members == live_to(rank), where + "wrong members");
      // A job that a partition cut into halves goes on as two.
      const auto planner = static_cast<Rank>(std::countr_zero(live_to(rank)));
      const auto& decided = job_[planner].plans;
      check(!decided.empty() && plans.back().address == decided.back().address,
            where + "another address");
    }
  }

  /// All running ranks that have not left come to rejoin(), those that are out of the job first.
  void rejoin_all() {
    if (liar_) return;
    std::uint64_t all = 0, dead = 0;
    std::map<Rank, std::size_t> before;  // plans, of a rank that waited alone
    // Otherwise the plan may wait for a rank that does not come, or ranks with proof are apart.
    bool whole = (vanished_ | reused_) == 0 && !refused_quietly_;
    for (Rank rank = 0; rank < job_.size(); ++rank) {
      const bool row_is_left = job_[rank].member().facts().standing(rank) == Standing::left;
      if (job_.runs(rank) && job_[rank].left && !row_is_left) whole = false;  // it was dead before
    }
    // A planner that is evicted or live does not wait for dead ranks that come later.
    for (const Standing standing : {Standing::dead, Standing::evicted, Standing::live}) {
      for (Rank rank = 0; rank < job_.size(); ++rank) {
        if (!job_.runs(rank) || job_[rank].left) continue;
        if (job_[rank].member().facts().standing(rank) != standing) continue;
        all |= bit(rank);
        if (standing == Standing::dead) dead |= bit(rank);
        before[rank] = job_[rank].rejoin_plans.size();
        job_[rank].member().plans(Regroup::rejoin).enter();
        job_[rank].advance();
        job_.run(Duration(draw_.below(5'000'000)));
      }
      job_.run(100ms);
    }
    job_.run(2s);
    for (Rank rank = 0; rank < job_.size(); ++rank) {
      if ((all & bit(rank)) == 0) continue;
      const std::string where = "rank " + std::to_string(rank) + " in rejoin(): ";
      const auto& plans = job_[rank].rejoin_plans;
      const std::size_t count = plans.size() - before[rank];
      check(count == 1 || (count == 0 && !whole),
            where + std::to_string(count) + " plans, " +
                job_[rank].member().plans(Regroup::rejoin).lacking());
      if (count == 0) continue;
      const ShrinkPlan& plan = plans.back();
      check(plan.members == all || !whole, where + "wrong members " + std::to_string(plan.members) +
                                               ", not " + std::to_string(all));
      const auto& decided = job_[plan.planner].rejoin_plans;
      check(!decided.empty() && plan.address == decided.back().address &&
                plan.members == decided.back().members && plan.planner == decided.back().planner,
            where + "another plan");
      check(plan.planner == std::countr_zero(all & ~dead) || !whole || all == dead,
            where + "planned by " + std::to_string(plan.planner));
      check(plan.new_rank(plan.planner) == 0, where + "wrong ranks");
    }
  }

  void check_always() {
    check(!job_.livelock, "livelock");
    for (Rank rank = 0; rank < job_.size(); ++rank) {
      check(job_[rank].most_buffered < (8u << 20), "a rank holds too many bytes");
    }
  }

  void check_healed() {
    if (liar_) return;  // it can say anything of anybody: no crash, no livelock, bounded memory
    check(job_.connected(), "ranks that run are not connected after healing");
    for (Rank a = 0; a < job_.size(); ++a) {
      if (!job_.runs(a)) continue;
      for (Rank of = 0; of < job_.size(); ++of) check_row(a, of);
      if (job_[a].left) {
        check(running(job_[a].member().not_passed()) == 0,
              "close() of rank " + std::to_string(a) + " is not done long after healing");
      }
    }
    for (std::uint64_t step = 1; step <= steps_; ++step) check_verdicts(step);
    check_epochs();
  }

  void check_row(Rank a, Rank of) {
    const Fact& row = job_[a].member().facts().of(of);
    const std::string where =
        "rank " + std::to_string(a) + " of " + std::to_string(of) + " (" + row.text() + "): ";
    for (Rank b = 0; b < a; ++b) {
      // Two ranks with proof against each other do not connect again.
      if (!job_.runs(b) || (job_[a].streams().up() & bit(b)) == 0) continue;
      const Fact& other = job_[b].member().facts().of(of);
      check(other.standing == row.standing,
            where + "rank " + std::to_string(b) + " says " + other.text());
    }
    if (job_.runs(of)) {
      const Standing due = job_[of].left ? Standing::left : Standing::live;
      const bool voted_out = excused_ && row.standing == Standing::dead;
      const bool put_out = (evicted_ & bit(of)) != 0 && row.standing == Standing::evicted;
      check(row.standing == due || voted_out || put_out, where + "without cause");
      const bool by_votes = row.evidence.starts_with("silent for");
      check(row.standing != Standing::dead || by_votes || refused_quietly_,
            where + "a proof though it runs");
      return;
    }
    const bool silent_only = ((vanished_ | reused_) & bit(of)) != 0;
    if (!silent_only) {
      const bool gone =
          row.standing == Standing::dead || (row.standing == Standing::left && !row.serves);
      check(gone, where + "but it crashed");
      const auto learned = job_[a].learned.find(of);
      if (calm_ && strangers_.empty() && learned != job_[a].learned.end()) {
        check(learned->second.second - crashed_[of] <= 300ms, where + "known too late");
      }
    } else if (row.standing == Standing::live) {
      // Only live ranks vote.
      const bool too_few = 2 * std::popcount(running(live_to(a))) < std::popcount(live_to(a));
      check(too_few, where + "but its host vanished");
    }
  }
  /// Ranks that are live in the rows of `a`, and those of them that run.
  std::uint64_t live_to(Rank a) { return job_[a].member().facts().live(); }
  std::uint64_t running(std::uint64_t ranks) {
    for (Rank rank = 0; rank < job_.size(); ++rank) {
      if (!job_.runs(rank)) ranks &= ~bit(rank);
    }
    return ranks;
  }

  void check_verdicts(std::uint64_t step) {
    std::optional<StepVerdict> first;
    for (Rank rank = 0; rank < job_.size(); ++rank) {
      if (!job_.runs(rank) || !live(rank)) continue;
      const auto verdict = job_[rank].member().verdict(step);
      const std::string where =
          "rank " + std::to_string(rank) + ", step " + std::to_string(step) + ": ";
      check(verdict.has_value() || running(live_to(rank)) != live_to(rank), where + "no verdict");
      if (!verdict) continue;
      check(verdict->detail.find("replicas differ") == std::string::npos, where + verdict->detail);
      if (!first) first = verdict;
      check(verdict->same(*first), where + "another verdict");
    }
  }

  /// All live ranks know the same last record.
  void check_epochs() {
    std::optional<Rank> first;
    for (Rank rank = 0; rank < job_.size(); ++rank) {
      if (!job_.runs(rank) || !live(rank)) continue;
      if (!first) first = rank;
      const auto& own = job_[rank].epochs;
      const auto& other = job_[*first].epochs;
      const bool same = own.empty() == other.empty() && (own.empty() || own.back() == other.back());
      check(same, "ranks " + std::to_string(*first) + " and " + std::to_string(rank) +
                      " know different epoch records");
    }
  }

  Random draw_;
  Random cuts_, losses_, outs_;  // apart, so that the rest of a seed stays as it was
  MeshJob job_;
  std::string failure_, story_;
  std::vector<std::unique_ptr<Stranger>> strangers_;
  std::map<Rank, Time> crashed_;
  std::uint64_t vanished_ = 0, reused_ = 0;
  std::uint64_t evicted_ = 0;  // by the wish of others
  std::uint32_t crashes_ = 0;
  std::uint64_t steps_ = 0;
  bool excused_ = false;          // a rank was away for so long that votes may have excluded it
  bool refused_ = false;          // a door has refused
  bool refused_quietly_ = false;  // a door refused while no packets flowed
  bool calm_ = true;              // no stream has broken but by a crash
  bool liar_ = false;
};

TEST(MeshSimulation, seeds__keep_every_promise) {
  const char* const only = std::getenv("MESH_SEED");
  const std::uint64_t first = only == nullptr ? 1 : std::strtoull(only, nullptr, 10);
  const std::uint64_t last = only == nullptr ? seeds() : first;
  int failures = 0;
  for (std::uint64_t seed = first; seed <= last && failures < 5; ++seed) {
    Scenario scenario(seed);
    scenario.run();
    if (only != nullptr) std::printf("%s", scenario.story().c_str());
    if (scenario.failure().empty()) continue;
    ++failures;
    ADD_FAILURE() << "seed " << seed << ": " << scenario.failure() << "\n"
                  << scenario.story() << "again: MESH_SEED=" << seed << " mesh_simulation_test";
  }
}

}  // namespace
}  // namespace tarpon::mesh_simulation_test
