// Statistics and joining of the ranks' logs; what of it does not fit one message.
#include "tools/collective/measurement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sstream>

#include "tools/collective/timed_calls.h"

namespace tarpon::measurement_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

IterationLog log_of(std::vector<double> time_us, std::vector<std::uint64_t> late,
                    std::uint32_t bit = 0) {
  IterationLog log;
  log.bit = bit;
  log.time_us = std::move(time_us);
  log.late = std::move(late);
  return log;
}

TEST(Merge, time__the_slowest_rank_that_was_not_late) {
  Measurement measurement;
  merge({log_of({10, 90, 30}, {0, 0, 0}), log_of({20, 50, 10}, {0, 0b001, 0}, 1),
         log_of({15, 80, 20}, {0, 0, 0b010}, 2)},
        measurement);
  EXPECT_THAT(measurement.time_us, ElementsAre(20, 80, 30));
  EXPECT_EQ(to_json(measurement, 3)["time_us"]["ranks"][2], nlohmann::json({15.0, 80.0, 20.0}));
}

TEST(Merge, time__of_all_when_all_were_late) {
  Measurement measurement;
  merge({log_of({10, 10}, {0b11, 0b10}), log_of({20, 20}, {0b11, 0}, 1)}, measurement);
  EXPECT_THAT(measurement.time_us, ElementsAre(20, 10));
}

TEST(Merge, late__union_over_ranks_and_iterations) {
  Measurement measurement;
  merge({log_of({1, 1}, {0b0100, 0}), log_of({1, 1}, {0, 0b0001}), log_of({1, 1}, {0, 0}),
         log_of({1, 1}, {0, 0})},
        measurement);
  EXPECT_THAT(measurement.late, ElementsAre(0, 2));
}

TEST(Merge, lost__of_the_worst_rank_in_each_iteration) {
  IterationLog a = log_of({1, 1, 1}, {0, 0, 0});
  a.lost = {0.5, 0, 0.125};
  IterationLog b = log_of({1, 1, 1}, {0, 0, 0});
  b.lost = {0.25, 0, 0.75};
  Measurement measurement;
  merge({a, b}, measurement);
  EXPECT_THAT(measurement.lost, ElementsAre(0.5, 0, 0.75));
  EXPECT_EQ(to_json(measurement, 2)["lost_all"], nlohmann::json({0.5, 0, 0.75}));
}

TEST(Merge, counts__sums_and_largest) {
  IterationLog a = log_of({1}, {0});
  a.wrong = 3;
  a.lost_fraction = 0.25;
  a.lost_stage1 = 0.25;
  IterationLog b = log_of({1}, {0});
  b.wrong = 4;
  b.lost_fraction = 0.125;
  b.lost_stage2 = 0.125;
  Measurement measurement;
  merge({a, b}, measurement);
  EXPECT_EQ(measurement.wrong, 7u);
  EXPECT_EQ(measurement.lost_fraction, 0.25);
  EXPECT_EQ(measurement.lost_stage1, 0.25);
  EXPECT_EQ(measurement.lost_stage2, 0.125);
}

TEST(Merge, flows__of_each_rank) {
  IterationLog a = log_of({1}, {0});
  a.flows = 4;
  Measurement measurement;
  merge({a, log_of({1}, {0})}, measurement);
  EXPECT_EQ(to_json(measurement, 2)["flows"], nlohmann::json({4, 1}));
}

TEST(Merge, outcomes__of_each_rank_and_in_words_where_not_complete) {
  IterationLog a = log_of({1}, {0});
  a.outcome = {{"status", "complete"}};
  IterationLog b = log_of({1}, {0});
  b.outcome = {{"status", "partial"}};
  b.outcome_text = "partial: operation 3";
  Measurement measurement;
  measurement.mode = Mode::bounded;
  merge({a, b}, measurement);
  EXPECT_EQ(to_json(measurement, 2)["outcomes"], nlohmann::json({a.outcome, b.outcome}));
  EXPECT_THAT(notes(measurement), HasSubstr("\n#     rank 1: partial: operation 3\n"));
  EXPECT_THAT(notes(measurement), Not(HasSubstr("rank 0")));
  merge({b, b, b, b}, measurement);
  EXPECT_THAT(notes(measurement), HasSubstr("\n#     1 more ranks: --json lists them\n"));
}

TEST(Merge, loss__by_call_and_its_causes_in_json) {
  IterationLog a = log_of({1, 1}, {0b10, 0});
  a.bound_us = {3000, 5000};
  a.held_us = {0, 700};
  a.causes = {{.cut = 0.25, .late_ranks = 0.25, .gone = 0.25}, {}};
  a.void_shards = {0b10, 0};
  IterationLog b = log_of({1, 1}, {0, 0}, 1);
  b.bound_us = {4000, 4000};
  b.causes = {{.network = 0.5}, {.at_owner = 0.25}};
  b.void_shards = {0, 0};
  Measurement measurement;
  measurement.mode = Mode::bounded;
  measurement.bound_rule = "learnt";
  measurement.loss_target = 0.01;
  merge({a, b}, measurement);
  const auto json = to_json(measurement, 2);
  EXPECT_EQ(json["bound_us"], 4000.0);
  EXPECT_EQ(json["bound_max_us"], 5000.0);
  EXPECT_EQ(json["bound_rule"], "learnt");
  EXPECT_EQ(json["loss_target"], 0.01);
  EXPECT_EQ(json["mean_loss"], 0.375);
  EXPECT_EQ(json["waited"], 1);
  EXPECT_THAT(notes(measurement), HasSubstr("0 by the bound, 1 waited beyond it for live ranks"));
  EXPECT_EQ(json["causes"], nlohmann::json({{"cut", 0.125},
                                            {"network", 0.0},
                                            {"at_owner", 0.125},
                                            {"late_ranks", 0.125},
                                            {"void_shards", 0.0},
                                            {"gone", 0.125}}));
  EXPECT_EQ(loss_line(std::nullopt, measurement),
            "# bounded: bound 4.0 ms (median; largest 5.0 ms), target 1 %, lost 50 %: 12.5 cut, "
            "12.5 at owner; late ranks: 1 (1\n"
            "#   call), 25 %; void shards: 1 (1 call), 0 %; 37.5 % count against the target\n");
  EXPECT_THAT(loss_line(measurement, measurement), HasSubstr("late ranks: 1 (2\n#   calls)"));
}

TEST(Merge, loss__of_a_late_rank_itself_does_not_count) {
  IterationLog in_time = log_of({1}, {0b10});
  in_time.causes = {{.cut = 0.01, .gone = 0.4}};
  IterationLog late = log_of({1}, {0b10}, 1);
  late.causes = {{.late_ranks = 0.25, .void_shards = 0.25}};
  Measurement measurement;
  measurement.mode = Mode::bounded;
  merge({in_time, late}, measurement);
  EXPECT_EQ(to_json(measurement, 2)["mean_loss"], 0.01);
}

TEST(Notes, notes__types_that_are_never_coded) {
  Measurement measurement;
  measurement.mode = Mode::bounded;
  EXPECT_THAT(notes(measurement), Not(HasSubstr("coded")));
  measurement.type = DataType::bfloat16;
  EXPECT_THAT(notes(measurement), HasSubstr("; bfloat16 is never coded"));
}

TEST(Merge, loss__none_in_exact_mode) {
  Measurement measurement;
  merge({log_of({1}, {0})}, measurement);
  EXPECT_EQ(loss_line(measurement, measurement), "");
  const auto json = to_json(measurement, 1);
  for (const char* name :
       {"bound_us", "bound_max_us", "bound_rule", "loss_target", "mean_loss", "causes"}) {
    ASSERT_TRUE(json.contains(name)) << name;
    EXPECT_TRUE(json[name].is_null()) << name;
  }
}

TEST(Log, text__comes_back) {
  IterationLog log = log_of({1.5, 0.1}, {~0ull, 0});
  log.lost = {0.5, 0.25};
  log.causes = {{.cut = 0.5}, {.network = 0.125, .gone = 0.25}};
  log.held_us = {2, 3};
  log.void_shards = {0, ~0ull};
  log.flows = 4;
  log.wrong = 5;
  log.outcome = {{"status", "partial"}};
  log.outcome_text = "in words";
  log.error = "bad";
  const auto back = iteration_log_from(to_text(log, 1, 9));
  ASSERT_TRUE(back);
  EXPECT_THAT(back->time_us, ElementsAre(0.1));
  EXPECT_THAT(back->late, ElementsAre(0));
  EXPECT_THAT(back->lost, ElementsAre(0.25));
  EXPECT_THAT(back->causes, ElementsAre(LossCauses{.network = 0.125, .gone = 0.25}));
  EXPECT_THAT(back->held_us, ElementsAre(3));
  EXPECT_THAT(back->void_shards, ElementsAre(~0ull));
  EXPECT_EQ(back->flows, 4u);
  EXPECT_EQ(back->wrong, 5u);
  EXPECT_EQ(back->outcome, log.outcome);
  EXPECT_EQ(back->outcome_text, "in words");
  EXPECT_EQ(back->error, "bad");
  for (const char* text : {"", "[]", "{}", "{\"time_us\": 1}"}) {
    EXPECT_FALSE(iteration_log_from(text)) << text;
  }
}

TEST(Log, text__bytes_that_are_not_printable_are_replaced) {
  IterationLog log;
  log.error = "in\xff.npy";  // JSON has no such byte: three bytes stand for it
  log.outcome_text = log.halted = "\x1b[2J";
  const auto back = iteration_log_from(to_text(log, 0, 1));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->error, "in???.npy");
  EXPECT_EQ(back->outcome_text, "?[2J");
  EXPECT_EQ(back->halted, "?[2J");
}

TEST(ShareLogs, share_logs__of_any_length) {
  auto alone = ControlChannel::join(RendezvousOptions());
  ASSERT_TRUE(alone) << alone.error().message;
  IterationLog log;
  for (int i = 0; i < 110'000; ++i) {  // more than a frame of the control channel holds
    log.time_us.push_back(i + 0.123456789);
    log.late.push_back(i % 2 == 0 ? 0 : ~0ull);
    log.lost.push_back(i / 1.7e6);
    const double share = i / 8.5e6;
    log.causes.push_back({share, share, share, share, share});
    log.void_shards.push_back(~0ull);
  }
  log.wrong = 9;
  nlohmann::json failure;
  const auto logs = share_logs(**alone, log, 1s, failure);
  ASSERT_TRUE(logs) << logs.error().message;
  ASSERT_EQ(logs->size(), 1u);
  EXPECT_TRUE((*logs)[0].time_us == log.time_us);
  EXPECT_TRUE((*logs)[0].late == log.late);
  EXPECT_TRUE((*logs)[0].lost == log.lost);
  EXPECT_TRUE((*logs)[0].causes == log.causes);
  EXPECT_TRUE((*logs)[0].void_shards == log.void_shards);
  EXPECT_EQ((*logs)[0].wrong, 9u);
}

TEST(ShareLogs, share_logs__a_failure_is_told_with_how_far_the_call_had_come) {
  auto alone = ControlChannel::join(RendezvousOptions());
  ASSERT_TRUE(alone) << alone.error().message;
  IterationLog log;
  log.error = "peer_late: no answer";
  log.outcome = {{"status", "peer_late"}};
  log.outcome_text = "operation 3 of tag 0";
  log.peer_late = true;
  nlohmann::json failure;
  const auto logs = share_logs(**alone, log, 1s, failure);
  ASSERT_FALSE(logs);
  EXPECT_EQ(
      logs.error().message,
      "rank 0: peer_late: no answer (operation 3 of tag 0); tarpon check shows pairs of ranks "
      "whose packets are lost");
  EXPECT_EQ(failure["error"], logs.error().message);
  EXPECT_EQ(failure["outcomes"], nlohmann::json::array({log.outcome}));
}

/// A control channel whose exchanges fail.
class BrokenChannel : public ControlChannel {
 public:
  explicit BrokenChannel(Error error) : error_(std::move(error)) {}
  Rank rank() const override { return 1; }
  std::uint32_t world_size() const override { return 3; }
  std::uint32_t job() const override { return 1; }
  std::uint32_t public_id() const override { return 1; }
  const std::optional<JobKey>& packet_key() const override { return key_; }
  std::string local_address() const override { return "127.0.0.1"; }
  Result<std::vector<std::string>> all_gather(const std::string&, Time) override {
    return fail(error_);
  }
  Result<std::vector<std::string>> gather(const std::string&, Time, std::vector<Rank>&) override {
    return fail(error_);
  }
  Result<std::string> broadcast(const std::string&, Time) override { return fail(error_); }
  bool is_broken() override { return true; }
  Error give_up(const Error& error, Time) override { return error; }
  void close() override {}

 private:
  const Error error_;
  const std::optional<JobKey> key_;
};

/// What a rank says whose calls failed as `log` says, and then the control channel with `error`.
std::string said_without_channel(const IterationLog& log, Error error) {
  BrokenChannel channel(std::move(error));
  nlohmann::json failure;
  const auto logs = share_logs(channel, log, 1s, failure);
  EXPECT_FALSE(logs);
  return logs ? "" : logs.error().message;
}

TEST(ShareLogs, share_logs__remedy_for_late_peers_without_the_control_channel) {
  const std::string remedy = "; tarpon check shows pairs of ranks whose packets are lost";
  IterationLog log;
  log.error = "barrier: no complete answer from rank 2";
  log.peer_late = true;
  const auto with = [&](Error::Code code) {
    return said_without_channel(log, Error::make(code, "the control channel of rank 0 ended"));
  };
  EXPECT_EQ(with(Error::Code::timeout), log.error + remedy);
  EXPECT_EQ(with(Error::Code::unavailable),
            log.error + "; the control channel of rank 0 ended" + remedy);
  log.peer_late = false;
  EXPECT_EQ(with(Error::Code::timeout), log.error);
}

TEST(ShareLogs, share_logs__a_dead_rank_is_named_once) {
  IterationLog log;
  log.error = "peer_dead: rank 2 is dead: its control connection ended";
  EXPECT_EQ(said_without_channel(
                log, Error::make(Error::Code::unavailable, "the control channel of rank 2 ended")),
            log.error);
}

TEST(Measurement, busbw__counts_what_arrived) {
  Measurement measurement;
  measurement.size = 4096;
  IterationLog log = log_of({10, 10}, {0, 0});
  log.lost = {0.5, 1};
  merge({log}, measurement);
  EXPECT_DOUBLE_EQ(measurement.algbw(10), 0.4096);
  EXPECT_DOUBLE_EQ(measurement.busbw(10, 2), 0.4096 * 0.25);
}

/// Bounded calls of 4 MiB with a bound of 100 us that lose `lost`, beside exact ones of 3 ms.
Measurement cut_off(double lost) {
  Measurement measurement;
  measurement.size = 4 << 20;
  measurement.mode = measurement.asked_mode = Mode::bounded;
  measurement.given_bound_us = 100;
  measurement.divergence = Divergence{.exact_us = 3010};
  IterationLog log = log_of({100}, {0});
  log.lost = {lost};
  merge({log}, measurement);
  return measurement;
}

TEST(BoundWarning, bound_warning__names_a_bound_that_would_do) {
  Measurement measurement = cut_off(0.84);
  EXPECT_EQ(bound_warning(measurement),
            "# warning: --bound 100us is too short for 4M: 84 % is lost; exact calls take "
            "3.01ms, so --bound 6.1ms would do\n");
  EXPECT_EQ(bound_warning(cut_off(0.005)), "");
  // Not what a longer bound would mend.
  measurement.given_bound_us = 7000;
  EXPECT_EQ(bound_warning(measurement), "");
  measurement.given_bound_us.reset();
  EXPECT_EQ(bound_warning(measurement), "");
}

TEST(Notes, notes__say_where_bounded_calls_ran_exact) {
  Measurement measurement;
  measurement.asked_mode = Mode::bounded;
  EXPECT_EQ(notes(measurement), "");  // one rank, where nothing can be lost
  measurement.type = DataType::int32;
  EXPECT_EQ(notes(measurement), "#   out-of-place: ran exact: int32 sum has no bounded form\n");
  measurement.collective = Collective::all_gather;  // one rank again
  EXPECT_EQ(notes(measurement), "");
  measurement.collective = Collective::allreduce;
  measurement.asked_mode = Mode::exact;
  EXPECT_EQ(notes(measurement), "");
}

}  // namespace
}  // namespace tarpon::measurement_test
