// Seeded jobs whose data path and control mesh fail independently: a host vanishes, control
// connections break beside a working data path, the data path is cut beside working connections.
// What must come out: nobody is dead without cause, deaths by silence come in time, exact calls
// end with them or by their deadlines, bounded calls go on. One seed: WHOLE_JOB_SEED=7; more:
// WHOLE_JOB_SEEDS=1000.
#include "tests/simulation/whole_job.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "tests/support/sanitized.h"

namespace tarpon::whole_job_test {
namespace {

using namespace testing_support;

constexpr Duration kBound = 20ms;
constexpr Duration kDeadAfter = MeshRank::kDeadAfter;
// A peer that is not heard is asked after 100 ms, every 50 ms, and silent after 300 ms.
constexpr Duration kSilent = 350ms;
// Exactly half of the ranks wait for more votes; then the fact takes its way.
constexpr Duration kVoting = 1s + 20ms;

enum : std::uint32_t { kExactTag, kBoundedTag, kTags };

/// Every rank makes exact calls on one tag and bounded ones on another, each some time after the
/// one before.
class Traffic {
 public:
  Traffic(std::uint64_t seed, Rank ranks) : job(seed, ranks), last_(ranks) {}

  WholeJob job;
  Duration deadline = 10s;  // of exact calls
  Duration pause = 40ms;    // shorter than what a proof of death takes without packets

  /// Told of each call that has ended.
  using Judge = std::function<void(Rank, std::uint32_t tag, const WholeJob::Call&)>;

  void run(Duration length, const Judge& judge) {
    for (const Time end = job.world.now + length; job.world.now < end; job.run(1ms)) {
      for (Rank rank = 0; rank < job.size(); ++rank) {
        for (std::uint32_t tag = 0; tag < kTags && job.runs(rank); ++tag) step(rank, tag, judge);
      }
    }
  }

  /// Each rank's last calls end, no new ones begin.
  void settle(const Judge& judge) {
    const auto over = [](const auto& calls) {
      return std::all_of(calls.begin(), calls.end(),
                         [](const auto* call) { return call == nullptr || call->ended != kNever; });
    };
    const Time limit = job.world.now + 2 * deadline;
    for (Rank rank = 0; rank < job.size(); ++rank) {
      if (!job.runs(rank)) continue;
      while (!over(last_[rank]) && job.world.now < limit) job.run(1ms);
      EXPECT_TRUE(over(last_[rank])) << "rank " << rank << " has a call that does not end";
      for (std::uint32_t tag = 0; tag < kTags; ++tag) {
        if (last_[rank][tag] != nullptr) judge(rank, tag, *last_[rank][tag]);
      }
      last_[rank] = {};
    }
  }

 private:
  void step(Rank rank, std::uint32_t tag, const Judge& judge) {
    const WholeJob::Call*& last = last_[rank][tag];
    if (last != nullptr && last->ended == kNever) return;
    if (last != nullptr) {
      const bool late = last->pending->report.status == Status::late_self;  // it catches up
      if (!late && job.world.now < last->ended + pause) return;
      judge(rank, tag, *last);
    }
    const Mode mode = tag == kExactTag ? Mode::exact : Mode::bounded;
    last = &job.submit(rank, tag, mode, deadline, kBound);
  }

  std::vector<std::array<const WholeJob::Call*, kTags>> last_;  // by rank
};

/// One seed: what its test draws, and what holds whatever fails.
class WholeJobTest : public testing::Test {
 protected:
  static void each_seed(const std::function<void(std::uint64_t)>& run) {
    const auto number = [](const char* variable) -> std::uint64_t {
      const char* const text = std::getenv(variable);
      return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
    };
    const std::uint64_t only = number("WHOLE_JOB_SEED"), many = number("WHOLE_JOB_SEEDS");
    const std::uint64_t first = only > 0 ? only : 1;
    const std::uint64_t last = only > 0 ? only : many > 0 ? many : kSanitizer ? 5 : 20;
    for (std::uint64_t seed = first; seed <= last && !HasFailure(); ++seed) {
      SCOPED_TRACE("again: WHOLE_JOB_SEED=" + std::to_string(seed));
      run(seed);
    }
  }

  static Duration up_to(Random& random, Duration most) {
    return Duration(random.below(static_cast<std::uint64_t>(most.count()) + 1));
  }

  static void expect_sum(const WholeJob& job, const WholeJob::Call& call) {
    const float sum = static_cast<float>(job.size() * (job.size() + 1)) / 2;
    for (const float got : call.buffer) ASSERT_EQ(got, sum);
  }

  /// Of a call that nothing disturbs.
  static void expect_complete(const WholeJob& job, const WholeJob::Call& call) {
    ASSERT_EQ(call.pending->report.status, Status::complete) << call.pending->report.detail;
    expect_sum(job, call);
  }

  static void expect_all_live(WholeJob& job) {
    for (Rank a = 0; a < job.size(); ++a) {
      for (Rank of = 0; of < job.size(); ++of) {
        EXPECT_EQ(job.mesh(a).member().facts().standing(of), Standing::live)
            << "rank " << a << " of " << of << ": " << job.mesh(a).member().facts().of(of).text();
      }
    }
  }

  /// A bounded call that may lack ranks ends by its bounds; once they are known to be silent, long
  /// before.
  static void expect_bounded(const WholeJob::Call& call, bool known_silent, bool alone = false) {
    const Status status = call.pending->report.status;
    EXPECT_TRUE(status == Status::complete || status == Status::partial) << name(status);
    // A rank that hears nobody begins when it knows that they are silent.
    const Duration hearing = alone ? kSilent : 2ms;
    EXPECT_LE(call.ended - call.submitted, known_silent ? kBound / 2 : hearing + 2 * kBound * 9 / 8)
        << "rank silent: " << known_silent;
  }
};

TEST_F(WholeJobTest, a_host_that_vanishes__is_dead_by_silence_in_time) {
  each_seed([](std::uint64_t seed) {
    Random random(seed);
    Traffic traffic(seed, static_cast<Rank>(2 + random.below(5)));
    WholeJob& job = traffic.job;
    traffic.pause = 20ms + up_to(random, 40ms);
    const auto victim = static_cast<Rank>(random.below(job.size()));
    traffic.run(500ms + up_to(random, 100ms),
                [&](Rank, std::uint32_t, const auto& call) { expect_complete(job, call); });
    const Time vanished = job.world.now;
    job.world.vanish(victim);
    const auto known_at = [&](Rank rank) {
      const auto found = job.mesh(rank).learned.find(victim);
      return found == job.mesh(rank).learned.end() ? kNever : found->second.second;
    };
    const auto judge = [&](Rank rank, std::uint32_t tag, const WholeJob::Call& call) {
      const Report& report = call.pending->report;
      if (call.ended < vanished || report.status == Status::complete) {
        return expect_complete(job, call);
      }
      if (tag == kBoundedTag) return expect_bounded(call, call.submitted > vanished + kSilent);
      EXPECT_EQ(report.status, Status::peer_dead) << report.detail;
      EXPECT_EQ(report.blamed, std::vector<Rank>{victim});
      EXPECT_LE(call.ended - std::max(known_at(rank), call.submitted), 1ms);
    };
    traffic.run(kSilent + kDeadAfter + kVoting + 500ms, judge);
    for (Rank rank = 0; rank < job.size(); ++rank) {
      if (rank == victim) continue;
      const Fact& row = job.mesh(rank).member().facts().of(victim);
      EXPECT_EQ(row.standing, Standing::dead) << "at rank " << rank;
      EXPECT_EQ(row.evidence.rfind("silent for", 0), 0u) << row.evidence;
      EXPECT_EQ(row.without_majority, job.size() == 2);
      EXPECT_GE(known_at(rank), vanished + kDeadAfter) << "silence is no proof";
      const Duration halves = job.size() == 2 ? kVoting : 20ms;
      EXPECT_LE(known_at(rank), vanished + traffic.pause + kSilent + kDeadAfter + halves);
      EXPECT_EQ(job.mesh(rank).learned.size(), 1u) << "only one rank is gone";
    }
    traffic.settle(judge);
  });
}

// One call after the other ends at its deadline, which is not above kDeadAfter, and above kSilent:
// shorter calls with pauses may not find a peer silent. At least three ranks: exactly half of them
// would need calls of more than a second.
TEST_F(WholeJobTest, a_host_that_vanishes__is_dead_though_deadlines_are_short) {
  each_seed([](std::uint64_t seed) {
    Random random(seed);
    Traffic traffic(seed, static_cast<Rank>(3 + random.below(4)));
    WholeJob& job = traffic.job;
    traffic.deadline = random.chance(0.2) ? kDeadAfter : 500ms + up_to(random, kDeadAfter - 500ms);
    traffic.pause = 1ms + up_to(random, random.chance(0.5) ? 40ms : 500ms);
    const auto victim = static_cast<Rank>(random.below(job.size()));
    traffic.run(500ms + up_to(random, 100ms), [](Rank, std::uint32_t, const auto&) {});
    const Time vanished = job.world.now;
    job.world.vanish(victim);
    const auto judge = [&](Rank, std::uint32_t tag, const WholeJob::Call& call) {
      const Status status = call.pending->report.status;
      if (tag != kExactTag || call.ended < vanished || status == Status::complete) return;
      const bool ended_late = status == Status::peer_late || status == Status::aborted;
      EXPECT_TRUE(ended_late || status == Status::peer_dead) << name(status);
      EXPECT_LE(call.ended - call.submitted, traffic.deadline + 1us);
    };
    // No more pauses than calls. Before a peer is silent it is not counted as needed.
    const auto calls = (kDeadAfter + traffic.deadline - 1ns) / traffic.deadline;
    const Duration most =
        2 * (traffic.pause + kSilent) + kDeadAfter + (calls + 1) * (traffic.pause + 3ms) + 20ms;
    traffic.run(most, judge);
    for (Rank rank = 0; rank < job.size(); ++rank) {
      if (rank == victim) continue;
      const Fact& row = job.mesh(rank).member().facts().of(victim);
      ASSERT_EQ(row.standing, Standing::dead) << "at rank " << rank;
      EXPECT_EQ(row.evidence.rfind("silent for", 0), 0u) << row.evidence;
      const Time known = job.mesh(rank).learned[victim].second;
      EXPECT_GE(known, vanished + kDeadAfter + (calls - 1) * traffic.pause)
          << "pauses do not count";
      EXPECT_EQ(job.mesh(rank).learned.size(), 1u) << "only one rank is gone";
    }
    traffic.settle(judge);
  });
}

TEST_F(WholeJobTest, control_connections_that_break__kill_nobody_while_packets_flow) {
  each_seed([](std::uint64_t seed) {
    Random random(seed);
    Traffic traffic(seed, static_cast<Rank>(2 + random.below(5)));
    WholeJob& job = traffic.job;
    const auto victim = static_cast<Rank>(random.below(job.size()));
    const auto judge = [&](Rank, std::uint32_t, const auto& call) { expect_complete(job, call); };
    traffic.run(200ms, judge);
    for (int turn = 0; turn < 3; ++turn) {
      // Its connections are reset and its door refuses, as by a firewall; or what it says over the
      // mesh gets lost, both ways.
      const bool refuses = random.chance(0.5);
      if (refuses) {
        job.world.refuse(victim, true);
        for (int i = 0; i < 20; ++i) job.world.break_one(static_cast<int>(random.below(3)));
      } else {
        job.world.set_group(victim, 1);
      }
      traffic.run(up_to(random, 3 * kDeadAfter), judge);
      job.world.refuse(victim, false);
      job.world.set_group(victim, 0);
      traffic.run(up_to(random, 500ms), judge);
      expect_all_live(job);
    }
    traffic.pause = 1s;
    traffic.run(World::kKeepalive + 5s, judge);
    traffic.settle(judge);
    expect_all_live(job);
    for (Rank rank = 0; rank < job.size(); ++rank) {
      EXPECT_EQ(job.mesh(rank).streams().up() | 1ull << rank, (1ull << job.size()) - 1)
          << "connections of rank " << rank << " come back";
    }
  });
}

TEST_F(WholeJobTest, a_data_path_that_is_cut_for_less_than_dead_after__kills_nobody) {
  each_seed([](std::uint64_t seed) {
    Random random(seed);
    Traffic traffic(seed, static_cast<Rank>(2 + random.below(5)));
    WholeJob& job = traffic.job;
    const bool expires = random.chance(0.5);
    if (expires) traffic.deadline = 1s;
    const auto victim = static_cast<Rank>(random.below(job.size()));
    Time cut = kNever, healed = kNever;
    const auto judge = [&](Rank rank, std::uint32_t tag, const WholeJob::Call& call) {
      // By then those that are behind have caught up.
      const bool calm = call.ended < cut || (healed != kNever && call.submitted > healed + 500ms);
      if (calm || call.pending->report.status == Status::complete) {
        return expect_complete(job, call);
      }
      const Status status = call.pending->report.status;
      if (tag == kBoundedTag) {
        const bool known = call.submitted > cut + kSilent && call.ended < healed;
        const bool late = status == Status::late_self || status == Status::peer_late;
        if (!late) expect_bounded(call, known, rank == victim);
        return;
      }
      EXPECT_TRUE(expires) << "an exact call waits: " << name(status);
      EXPECT_TRUE(status == Status::peer_late || status == Status::aborted) << name(status);
      EXPECT_LE(call.ended - call.submitted, traffic.deadline + 1us);
    };
    traffic.run(200ms + up_to(random, 50ms), judge);
    job.cut_data(victim, true);
    cut = job.world.now;
    traffic.run(kSilent + up_to(random, kDeadAfter - kSilent), judge);
    job.cut_data(victim, false);
    healed = job.world.now;
    traffic.run(3s, judge);
    traffic.settle(judge);
    expect_all_live(job);
  });
}

TEST_F(WholeJobTest, a_data_path_that_is_cut_for_good__kills_by_votes_alone) {
  each_seed([](std::uint64_t seed) {
    Random random(seed);
    Traffic traffic(seed, static_cast<Rank>(3 + random.below(4)));
    WholeJob& job = traffic.job;
    const auto victim = static_cast<Rank>(random.below(job.size()));
    const auto any = [](Rank, std::uint32_t, const auto&) {};
    traffic.run(200ms + up_to(random, 50ms), any);
    job.cut_data(victim, true);
    const Time cut = job.world.now;
    traffic.run(kSilent + kDeadAfter + 200ms, any);
    for (Rank rank = 0; rank < job.size(); ++rank) {
      EXPECT_EQ(job.mesh(rank).learned.size(), 1u) << "the victim's vote alone excludes nobody";
      const Fact& row = job.mesh(rank).member().facts().of(victim);
      EXPECT_EQ(row.standing, Standing::dead) << "at rank " << rank;
      EXPECT_EQ(row.evidence.rfind("silent for", 0), 0u) << row.evidence;
      EXPECT_FALSE(row.without_majority);
      EXPECT_GE(job.mesh(rank).learned[victim].second, cut + kDeadAfter);
    }
    traffic.run(100ms, any);
    const Time known = job.world.now;
    traffic.run(300ms, [&](Rank rank, std::uint32_t tag, const WholeJob::Call& call) {
      if (call.submitted < known) return;
      const Report& report = call.pending->report;
      if (rank == victim) {
        EXPECT_EQ(report.status, Status::evicted) << report.detail;
      } else if (tag == kExactTag) {
        EXPECT_EQ(report.status, Status::peer_dead) << report.detail;
        EXPECT_EQ(report.blamed, std::vector<Rank>{victim});
      } else {
        expect_bounded(call, true);
      }
    });
    traffic.settle(any);
  });
}

/// All ranks report the steps from `first` on, each when the one before has a verdict everywhere.
/// Returns how long the slowest one took.
Duration slowest_step(WholeJob& job, std::uint64_t first, std::uint64_t steps) {
  Duration slowest{};
  for (std::uint64_t step = first; step < first + steps; ++step) {
    const Time begun = job.world.now;
    for (Rank rank = 0; rank < job.size(); ++rank) {
      job.mesh(rank).member().report(step, {.lost_fraction = rank == 1 ? 0.2 : 0}, 10s, begun);
      job.mesh(rank).advance();
    }
    const auto lacks = [&](Rank rank) { return !job.mesh(rank).member().verdict(step); };
    for (Rank rank = 0; rank < job.size(); ++rank) {
      while (lacks(rank) && job.world.now < begun + 5s) job.run(100us);
      const auto verdict = job.mesh(rank).member().verdict(step);
      EXPECT_TRUE(verdict) << "rank " << rank << " step " << step;
      if (!verdict) return kNever - begun;
      EXPECT_EQ(verdict->verdict, Verdict::skip);
      EXPECT_EQ(verdict->reporters, ~0ull >> (64 - job.size()));
      EXPECT_EQ(verdict->detail, job.mesh(0).member().verdict(step)->detail);
    }
    slowest = std::max(slowest, job.world.now - begun);
  }
  return slowest;
}

/// As a lost packet stops a stream until TCP sends it again.
TEST_F(WholeJobTest, verdicts__need_no_stream) {
  each_seed([](std::uint64_t seed) {
    WholeJob job(seed, static_cast<Rank>(2 + seed % 5));
    job.run(500ms);
    for (Rank rank = 0; rank < job.size(); ++rank) job.world.set_group(rank, rank);
    EXPECT_LE(slowest_step(job, 0, 20), 1ms);
    job.loss = 0.01;
    EXPECT_LE(slowest_step(job, 100, 100), 20ms);
    job.loss = 0.3;
    EXPECT_LE(slowest_step(job, 200, 3), 1s);
  });
}

TEST_F(WholeJobTest, verdicts__need_no_data_path) {
  each_seed([](std::uint64_t seed) {
    WholeJob job(seed, static_cast<Rank>(2 + seed % 5));
    job.run(500ms);
    for (Rank rank = 0; rank < job.size(); ++rank) job.cut_data(rank, true);
    EXPECT_LE(slowest_step(job, 0, 20), 100ms);
  });
}

}  // namespace
}  // namespace tarpon::whole_job_test
