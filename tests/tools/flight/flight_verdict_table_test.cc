// Scripted faults in jobs of real engines, and the verdict that must come out of their recordings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/sanitized.h"
#include "tests/support/scripted_job.h"
#include "tools/flight/flight_report.h"
#include "tools/flight/verdict.h"
#include "tools/simulation/simulation.h"

namespace tarpon {
namespace {

using testing_support::ScriptedJob;
using Ranks = std::vector<Rank>;
using Links = std::vector<FlightLink>;

// Long enough for every deadline to pass; operations before it are good.
constexpr Duration kFaultAt = 50ms;
constexpr Duration kLong = 1600ms;

struct Row {
  const char* name;
  std::function<void(ScriptedJob&)> script;
  FlightCause cause;
  Ranks guilty = {};
  Links links = {};
  Ranks lost = {};  // ranks that leave no recording
};

void PrintTo(const Row& row, std::ostream* out) {
  *out << row.name;
}

void stop_at(ScriptedJob& job, Rank rank, std::uint8_t stage) {
  job.at_stage(rank, 5, stage, [&job, rank] { job.stop(rank, kLong); });
}

void kill_at(ScriptedJob& job, Rank rank, std::uint8_t stage) {
  job.at_stage(rank, 5, stage, [&job, rank] { job.kill(rank); });
}

void bound_calls(ScriptedJob& job) {
  job.change_calls([](AllreduceArguments& call) {
    call.mode = Mode::bounded;
    call.bound = 20ms;
  });
}

std::vector<Row> rows() {
  using Job = ScriptedJob;
  using Cause = FlightCause;
  return {
      {"stopped_between_calls",
       [](Job& job) { job.at(kFaultAt, [&] { job.stop(2, kLong); }); },
       Cause::late,
       {2}},
      {"stopped_in_scatter", [](Job& job) { stop_at(job, 1, 0); }, Cause::paused, {1}},
      {"stopped_in_gather", [](Job& job) { stop_at(job, 3, 1); }, Cause::paused, {3}},
      {"stopped_for_good",
       [](Job& job) { job.at(kFaultAt, [&] { job.stop(2, 1h); }); },
       Cause::silent,
       {2}},
      {"stopped_in_bounded_call",
       [](Job& job) {
         bound_calls(job);
         stop_at(job, 1, 0);
       },
       Cause::paused,
       {1}},
      {"slow_application", [](Job& job) { job.think(1, 4, 700ms); }, Cause::late, {1}},
      {"wrong_count",
       [](Job& job) { job.change_call(2, 3, [](AllreduceArguments& call) { call.count = 99; }); },
       Cause::mismatch,
       {2}},
      {"wrong_type",
       [](Job& job) {
         job.change_call(0, 3, [](AllreduceArguments& call) { call.type = DataType::int32; });
       },
       Cause::mismatch,
       {0}},
      {"wrong_function",
       [](Job& job) {
         job.change_call(3, 0, [](AllreduceArguments& call) { call.function = ReduceOp::max; });
       },
       Cause::mismatch,
       {3}},
      {"two_counts_of_two_ranks_each",
       [](Job& job) {
         for (const Rank rank : Ranks{1, 2}) {
           job.change_call(rank, 3, [](AllreduceArguments& call) { call.count = 99; });
         }
       },
       Cause::undecided},
      {"one_way_cut",
       [](Job& job) { job.at(kFaultAt, [&] { job.lose(1, 0, 1); }); },
       Cause::link_cut,
       {},
       {{1, 0}}},
      {"two_ranks_cut_from_each_other",
       [](Job& job) {
         job.at(kFaultAt, [&] {
           job.lose(1, 2, 1);
           job.lose(2, 1, 1);
         });
       },
       Cause::link_cut,
       {},
       {{1, 2}, {2, 1}}},
      {"full_cut",
       [](Job& job) { job.at(kFaultAt, [&] { job.cut_off(2); }); },
       Cause::cut_off,
       {2},
       {{0, 2}, {1, 2}, {2, 0}, {2, 1}, {2, 3}, {3, 2}}},
      {"nothing_it_sends_arrives",
       [](Job& job) {
         job.at(kFaultAt, [&] {
           for (Rank to = 0; to < 3; ++to) job.lose(3, to, 1);
         });
       },
       Cause::cut_off,
       {3},
       {{3, 0}, {3, 1}, {3, 2}}},
      {"killed_in_scatter", [](Job& job) { kill_at(job, 2, 0); }, Cause::died, {2}},
      {"killed_in_gather", [](Job& job) { kill_at(job, 0, 1); }, Cause::died, {0}},
      {"killed_before_the_first_call", [](Job& job) { job.kill(1); }, Cause::died, {1}},
      {"orderly_leave",
       [](Job& job) {
         job.leave(3, 4);
         job.at(35ms, [&] { job.tell_left(3); });
       },
       Cause::left,
       {3},
       {},
       {3}},
      {"eviction", [](Job& job) { job.at(kFaultAt, [&] { job.evict(1); }); }, Cause::evicted, {1}},
      {"callers_abort",
       [](Job& job) { job.at_stage(2, 5, 0, [&job] { job.abort(2); }); },
       Cause::aborted,
       {2}},
      {"port_broken",
       [](Job& job) { job.at_stage(1, 5, 0, [&job] { job.break_port(1); }); },
       Cause::port_failed,
       {1}},
      {"heavy_loss_on_one_link",
       [](Job& job) { job.at(kFaultAt, [&] { job.lose(1, 2, 0.9); }); },
       Cause::loss,
       {},
       {{1, 2}}},
      {"full_size_packets_are_lost_between_two_ranks",
       [](Job& job) {
         job.at(kFaultAt, [&] { job.limit_packets(0, 1, 300); });
         job.at(kFaultAt, [&] { job.limit_packets(1, 0, 300); });
       },
       Cause::mtu,
       {},
       {{1, 0}, {0, 1}}},
      {"all_slow", [](Job& job) { job.at(kFaultAt, [&] { job.slow_down(300ms); }); }, Cause::slow},
      {"all_slow__a_rank_leaves_after_the_failure",
       [](Job& job) {
         job.at(kFaultAt, [&] { job.slow_down(300ms); });
         job.leave_after_failure(0);
       },
       Cause::slow},
      {"one_way_cut__a_rank_leaves_after_the_failure",
       [](Job& job) {
         job.at(kFaultAt, [&] { job.lose(1, 0, 1); });
         job.leave_after_failure(3);
       },
       Cause::link_cut,
       {},
       {{1, 0}}},
      {"stopped_for_good__a_rank_leaves_after_the_failure",
       [](Job& job) {
         job.at(kFaultAt, [&] { job.stop(2, 1h); });
         job.leave_after_failure(1);
       },
       Cause::silent,
       {2}},
      {"heavy_loss_on_one_link__a_rank_leaves_after_the_failure",
       [](Job& job) {
         job.at(kFaultAt, [&] { job.lose(1, 2, 0.9); });
         job.leave_after_failure(0);
       },
       Cause::loss,
       {},
       {{1, 2}}},
      {"hosts_with_other_clocks",
       [](Job& job) {
         job.set_clock(1, 777s, 80);
         job.set_clock(2, 10h, -60);
         job.set_clock(3, 5ms, 100);
         job.set_pace(100ms);
         job.at_stage(2, 50, 0, [&job] { job.stop(2, kLong); });
       },
       Cause::paused,
       {2}},
      {"recording_of_a_healthy_rank_is_missing",
       [](Job& job) { stop_at(job, 2, 0); },
       Cause::paused,
       {2},
       {},
       {3}},
      {"stopped_in_scatter__its_recording_is_missing",
       [](Job& job) { job.at_stage(2, 5, 0, [&job] { job.stop(2, 400ms); }); },
       Cause::undecided,
       {},
       {},
       {2}},
      {"two_stopped__the_first",
       [](Job& job) {
         job.at_stage(1, 5, 0, [&] {
           job.stop(1, kLong);
           job.at(kFaultAt + 200ms, [&] { job.stop(3, kLong); });
         });
       },
       Cause::paused,
       {1}},
      {"two_stopped_together__both",
       [](Job& job) {
         job.at_stage(1, 5, 0, [&] {
           job.stop(1, kLong);
           job.stop(3, kLong);
         });
       },
       Cause::paused,
       {1, 3}},
      {"three_of_four_stopped__nobody",
       [](Job& job) {
         job.at_stage(1, 5, 0, [&] {
           for (const Rank rank : Ranks{0, 1, 3}) job.stop(rank, kLong);
         });
       },
       Cause::stalled},
      {"stopped_then_another_killed__the_death_ends_the_call",
       [](Job& job) {
         job.at(kFaultAt, [&] { job.stop(1, kLong); });
         job.at(kFaultAt + 100ms, [&] { job.kill(3); });
       },
       Cause::died,
       {3}},
      {"nan_in_a_bounded_call",
       [](Job& job) {
         bound_calls(job);
         static std::vector<float> input(ScriptedJob::kCount,
                                         std::numeric_limits<float>::quiet_NaN());
         job.change_call(1, 3, [](AllreduceArguments& call) { call.input = input.data(); });
       },
       Cause::nonfinite,
       {1}},
      {"all_good", [](Job&) {}, Cause::none},
  };
}

class FlightVerdictTable : public ::testing::TestWithParam<Row> {};

TEST_P(FlightVerdictTable, verdict) {
  const Row& row = GetParam();
  ScriptedJob job;
  row.script(job);
  job.run(row.name == std::string("hosts_with_other_clocks") ? 8s : 3s);
  const auto merged = merge_flights(job.recordings(row.lost), std::nullopt);
  ASSERT_TRUE(merged);
  const FlightVerdict verdict = judge_flight(*merged);
  const std::string told = flight_text(*merged, verdict, false);
  EXPECT_EQ(row_of(verdict.cause).keyword, row_of(row.cause).keyword) << told;
  Ranks guilty;
  for (const FlightBlame& one : verdict.guilty) guilty.push_back(one.rank);
  EXPECT_EQ(guilty, row.guilty) << told;
  EXPECT_EQ(verdict.links == row.links, true) << told;
  EXPECT_EQ(verdict.evidence.empty(), row.cause == FlightCause::none) << told;
  EXPECT_NE(verdict.next, "");
  if (::testing::Test::HasFailure()) return;
  // It fits a terminal, with the verdict at the end.
  EXPECT_LT(std::count(told.begin(), told.end(), '\n'), 70) << told;
  const std::size_t next = told.rfind("# next: ");
  if (verdict.operation) {
    EXPECT_EQ(told.find('\n', next), told.size() - 1) << told;
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, FlightVerdictTable, ::testing::ValuesIn(rows()),
                         [](const auto& info) { return std::string(info.param.name); });

// -- any seed of the simulation

/// Ranks that the plan of a seed does harm to, of which a verdict may name any.
Ranks harmed(const SimulationPlan& plan) {
  Ranks ranks{plan.victim};
  for (const auto& [rank, window] : plan.pauses) ranks.push_back(rank);
  return ranks;
}

TEST(FlightVerdictSeeds, verdict__never_names_a_healthy_rank) {
  constexpr std::uint64_t kFirstSeed = 1, kSeeds = testing_support::kSanitizer ? 100 : 500;
  FaultSet allowed = all_faults();
  // Forged packets are recorded like others, and CLOCK_MONOTONIC does not jump.
  allowed.reset(static_cast<std::size_t>(FaultKind::hostile));
  allowed.reset(static_cast<std::size_t>(FaultKind::clock_jump));
  std::printf("seeds %llu to %llu\n", static_cast<unsigned long long>(kFirstSeed),
              static_cast<unsigned long long>(kFirstSeed + kSeeds - 1));
  std::size_t named = 0, undecided = 0;
  for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + kSeeds; ++seed) {
    SimulationPlan plan = plan_simulation(seed, allowed);
    if (plan.restarts) continue;      // two processes would share a recorder
    plan.skew = plan.lateness = 0ms;  // nobody else is late
    std::vector<Recorder> recorders(plan.ranks);
    SimulationHooks hooks;
    hooks.recorder = [&](Rank rank) { return &recorders[rank]; };
    (void)run_simulation(plan, hooks);
    std::vector<FlightDump> dumps;
    for (Rank rank = 0; rank < plan.ranks; ++rank) {
      Time last{};
      FlightDump dump = testing_support::dump_of(recorders[rank], rank, plan.ranks, last);
      for (const Record& record : dump.records) last = std::max(last, record.time);
      dump.header.dumped_monotonic = last.time_since_epoch().count();
      if (rank == plan.victim && plan.drift_ppm != 0) dump.header.boot_id[0] = 'b';
      if (plan.crashes() && rank == plan.victim) continue;  // it leaves none
      dumps.push_back(std::move(dump));
    }
    const auto merged = merge_flights(std::move(dumps), std::nullopt);
    ASSERT_TRUE(merged);
    const FlightVerdict verdict = judge_flight(*merged);
    undecided += verdict.cause == FlightCause::undecided ? 1 : 0;
    const Ranks may_be = harmed(plan);
    for (const FlightBlame& one : verdict.guilty) {
      ++named;
      EXPECT_THAT(may_be, ::testing::Contains(one.rank))
          << "seed " << seed << ": " << describe(plan) << "\n"
          << flight_text(*merged, verdict, false);
    }
  }
  std::printf("%zu ranks named, %zu verdicts undecided\n", named, undecided);
  EXPECT_GT(named, 10u);
}

}  // namespace
}  // namespace tarpon
