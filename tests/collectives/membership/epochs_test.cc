// Epochs: what holds for an operation, and how ranks agree on a record, message by message.
#include "collectives/membership/epoch_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <tuple>

#include "collectives/membership/epochs.h"
#include "transport/endpoint.h"

namespace tarpon::epochs_test {
namespace {

using Start = EpochRecord::Start;
using testing::ElementsAre;

TEST(LaterEpoch, wraps) {
  EXPECT_TRUE(later_epoch(1, 0));
  EXPECT_FALSE(later_epoch(0, 0));
  EXPECT_FALSE(later_epoch(0, 1));
  EXPECT_TRUE(later_epoch(3, 65530));
}

TEST(EpochHistory, holds_from_its_start_on_and_for_new_tags_at_once) {
  EpochHistory history(false);
  history.decided({{64, true}, {{7, 10}}});
  EXPECT_EQ(history.at(7, 9), (EpochSetting{0, false}));
  EXPECT_EQ(history.at(7, 10), (EpochSetting{64, true}));
  EXPECT_EQ(history.at(8, 0), (EpochSetting{64, true}));
  history.decided({{128, false}, {{7, 20}, {8, 5}}});
  EXPECT_EQ(history.at(7, 19), (EpochSetting{64, true}));
  EXPECT_EQ(history.at(7, 20), (EpochSetting{128, false}));
  EXPECT_EQ(history.at(8, 4), (EpochSetting{64, true}));
}

TEST(EpochHistory, takes_no_record_twice_and_none_that_is_older) {
  EpochHistory history(false);
  history.decided({{128, true}, {{7, 10}}});
  history.decided({{64, false}, {{7, 0}}});
  history.decided({{128, false}, {{7, 0}}});
  EXPECT_EQ(history.at(7, 9), (EpochSetting{0, false}));
  EXPECT_EQ(history.at(7, 10), (EpochSetting{128, true}));
}

TEST(EpochHistory, what_is_seen_holds_for_its_tag_from_there_on) {
  EpochHistory history(false);
  history.seen(7, 10, {64, true});
  EXPECT_EQ(history.at(7, 9), (EpochSetting{0, false}));
  EXPECT_EQ(history.at(7, 11), (EpochSetting{64, true}));
  EXPECT_EQ(history.at(8, 11), (EpochSetting{0, false}));
  history.seen(8, 3, {64, true});
  EXPECT_EQ(history.at(8, 3), (EpochSetting{64, true}));
  // The record itself comes late, and says the same of more tags.
  history.decided({{64, true}, {{7, 9}, {8, 3}, {9, 1}}});
  EXPECT_EQ(history.at(7, 9), (EpochSetting{64, true}));
  EXPECT_EQ(history.at(9, 0), (EpochSetting{0, false}));
  EXPECT_EQ(history.at(10, 0), (EpochSetting{64, true}));
}

TEST(EpochHistory, what_is_seen_may_be_earlier_than_what_was_decided) {
  EpochHistory history(false);
  history.decided({{64, true}, {{7, 100}}});
  history.seen(7, 50, {64, true});
  EXPECT_EQ(history.at(7, 50), (EpochSetting{64, true}));
}

TEST(EpochHistory, what_is_seen_keeps_no_record_out) {
  EpochHistory history(false);
  history.seen(7, 10, {5000, true});
  history.decided({{64, true}, {{7, 0}, {8, 3}}});
  EXPECT_EQ(history.at(8, 3), (EpochSetting{64, true}));
  EXPECT_EQ(history.at(9, 0), (EpochSetting{64, true}));
}

TEST(EpochHistory, forgets_the_oldest_of_many) {
  EpochHistory history(false);
  for (std::uint16_t i = 1; i <= 40; ++i) {
    history.decided({{static_cast<std::uint16_t>(64 * i), i % 2 == 1}, {{7, 10u * i}}});
  }
  EXPECT_EQ(history.at(7, 400), (EpochSetting{2560, false}));
  EXPECT_EQ(history.at(7, 395), (EpochSetting{2496, true}));
}

/// Records that were seen alone hold for their tags, whatever is forgotten.
TEST(EpochHistory, what_is_seen_never_holds_for_all_tags) {
  EpochHistory history(false);
  for (std::uint16_t i = 1; i <= 40; ++i) {
    history.seen(7, 10u * i, {static_cast<std::uint16_t>(64 * i), true});
    EXPECT_EQ(history.at(8, 0), (EpochSetting{0, false})) << i;
  }
  EXPECT_EQ(history.at(7, 400), (EpochSetting{2560, true}));
  history.decided({{2624, true}, {{7, 500}}});
  EXPECT_EQ(history.at(8, 0), (EpochSetting{2624, true}));
  EXPECT_EQ(history.at(7, 499), (EpochSetting{2560, true}));
}

/// A peer could let a record grow by each tag of this rank.
TEST(EpochHistory, what_is_seen_of_too_many_tags_is_forgotten) {
  constexpr std::uint32_t kTags = EpochHistory::kMostSeen + 10;
  EpochHistory history(false);
  for (std::uint32_t tag = 0; tag < kTags; ++tag) history.seen(tag, 3, {64, true});
  EXPECT_EQ(history.at(9, 3), (EpochSetting{0, false}));
  EXPECT_EQ(history.at(10, 3), (EpochSetting{64, true}));
  EXPECT_EQ(history.at(kTags - 1, 3), (EpochSetting{64, true}));
  history.seen(9, 4, {64, true});
  EXPECT_EQ(history.at(9, 4), (EpochSetting{64, true}));
}

}  // namespace
}  // namespace tarpon::epochs_test

namespace tarpon::mesh::epochs_test {
namespace {

using Starts = std::vector<EpochRecord::Start>;

/// Ranks whose calls have come to `numbers` each; frames are delivered at once.
class Job {
 public:
  explicit Job(std::uint32_t ranks, bool automatic = true) : numbers(ranks), silent_(ranks) {
    for (Rank rank = 0; rank < ranks; ++rank) facts_.emplace_back(ranks);
    for (Rank rank = 0; rank < ranks; ++rank)
      ranks_.emplace_back(rank, facts_[rank], false, automatic);
  }
  /// `rank` learns that `gone` is.
  void tell(Rank rank, Rank gone) {
    facts_[rank].learn(
        {.rank = gone, .standing = Standing::dead, .evidence = {}, .next_numbers = {}});
    ranks_[rank].facts_changed(now);
  }
  Epochs& operator[](Rank rank) { return ranks_[rank]; }
  void silence(Rank rank) { silent_[rank] = true; }
  void wake(Rank rank) { silent_[rank] = false; }

  void lose(Rank rank, double share, int calls = 100) {
    for (int i = 0; i < calls; ++i) ranks_[rank].note_call({.lost = share}, now);
    settle();
  }
  void overrun(Rank rank, Duration took, bool coded = true, Duration bound = 10ms) {
    for (int i = 0; i < 100; ++i) {
      ranks_[rank].note_call({.lost = 0.05, .coded = coded, .bound = bound, .took = took}, now);
    }
    settle();
  }

  void kill(Rank dead) {
    silence(dead);
    for (Rank rank = 0; rank < ranks_.size(); ++rank) {
      if (rank != dead) tell(rank, dead);
    }
    settle();
  }

  /// Until nothing is said any more; then time goes on to `until`.
  void run(Duration length) {
    settle();
    const Time until = now + length;
    while (true) {
      Time next = kNever;
      for (Rank rank = 0; rank < ranks_.size(); ++rank) {
        if (!silent_[rank]) next = std::min(next, ranks_[rank].next_deadline());
      }
      if (next > until) break;
      now = std::max(now, next);
      for (Rank rank = 0; rank < ranks_.size(); ++rank) {
        if (!silent_[rank]) ranks_[rank].tick(now);
      }
      settle();
    }
    now = until;
  }

  std::vector<Starts> numbers;                        // by rank: how far its calls have come
  std::vector<std::pair<Rank, EpochRecord>> records;  // that ranks were given
  std::function<void()> between_rounds = [] {};
  Time now{1s};

 private:
  void settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (Rank rank = 0; rank < ranks_.size(); ++rank) {
        if (silent_[rank]) continue;
        if (ranks_[rank].asked()) {
          if (rank == 0) between_rounds();
          ranks_[rank].answer(numbers[rank], now);
          moved = true;
        }
        if (auto record = ranks_[rank].take_record()) {
          records.emplace_back(rank, *record);
          moved = true;
        }
        for (auto& [to, frame] : ranks_[rank].take_outbox()) {
          if (!silent_[to]) ranks_[to].take(rank, frame, now);
          moved = true;
        }
      }
    }
  }

  std::deque<Facts> facts_;
  std::deque<Epochs> ranks_;
  std::vector<bool> silent_;
};

TEST(EpochsTest, loss_of_one_rank_turns_the_codec_on_everywhere_beyond_the_furthest) {
  Job job(3);
  job.numbers = {{{0, 10}}, {{0, 12}, {5, 3}}, {{0, 11}}};
  job.lose(2, 0.05);
  job.run(200ms);
  ASSERT_EQ(job.records.size(), 3u);
  for (const auto& [rank, record] : job.records) {
    EXPECT_TRUE(record.setting.coded);
    EXPECT_EQ(record, job.records[0].second);
    EXPECT_THAT(record.starts,
                testing::UnorderedElementsAre(EpochRecord::Start{0, 12 + Epochs::kMargin},
                                              EpochRecord::Start{5, 3 + Epochs::kMargin}));
  }
}

TEST(EpochsTest, over_hosts__a_rank_that_is_gone_makes_later_calls_flat) {
  for (const bool automatic : {false, true}) {
    for (const Rank dead : {Rank{0}, Rank{2}}) {
      Job job(3, automatic);
      job.numbers = {{{0, 10}}, {{0, 12}}, {{0, 11}}};
      for (Rank rank = 0; rank < 3; ++rank) {
        job[rank].note_call({.lost = 0.0, .over_hosts = true}, job.now);
      }
      job.run(5s);
      EXPECT_TRUE(job.records.empty());
      job.kill(dead);
      job.run(5s);
      ASSERT_EQ(job.records.size(), 2u);
      for (const auto& [rank, record] : job.records) {
        EXPECT_NE(rank, dead);
        EXPECT_TRUE(record.setting.flat);
        EXPECT_FALSE(record.setting.coded);
        EXPECT_EQ(record, job.records[0].second);
        EXPECT_EQ(record.starts[0], (EpochRecord::Start{0, 12 + Epochs::kMargin}));
      }
    }
  }
}

TEST(EpochsTest, over_hosts__loss_does_not_turn_the_codec_on) {
  Job job(3);
  for (int call = 0; call < 100; ++call) {
    for (Rank rank = 0; rank < 3; ++rank) {
      job[rank].note_call({.lost = 0.05, .over_hosts = true}, job.now);
    }
  }
  job.run(5s);
  EXPECT_TRUE(job.records.empty());
  job.lose(1, 0.05);
  job.run(5s);
  EXPECT_EQ(job.records.size(), 3u) << "of calls over the network";
}

TEST(EpochsTest, not_over_hosts__a_rank_that_is_gone_changes_nothing) {
  Job job(3, false);
  job.kill(2);
  job.run(5s);
  EXPECT_TRUE(job.records.empty());
}

TEST(EpochsTest, many_tags_in_any_order__each_starts_beyond_its_furthest) {
  constexpr std::uint32_t kTags = 20'000;
  Job job(3);
  for (Rank rank = 0; rank < 3; ++rank) {
    for (std::uint32_t i = 0; i < kTags; ++i) {
      const std::uint32_t tag = rank == 1 ? kTags - 1 - i : i;
      job.numbers[rank].push_back({tag, tag % 3 == rank ? 100 + tag : 50});
    }
  }
  job.lose(1, 0.05);
  job.run(1s);
  ASSERT_EQ(job.records.size(), 3u);
  const Starts& starts = job.records[0].second.starts;
  ASSERT_EQ(starts.size(), kTags);
  for (std::uint32_t tag = 0; tag < kTags; ++tag) {
    ASSERT_EQ(starts[tag], (EpochRecord::Start{tag, 100 + tag + Epochs::kMargin}));
  }
}

TEST(EpochsTest, a_fast_tag_gets_more_room) {
  Job job(2);
  job.numbers = {{{0, 10}}, {{0, 10}}};
  job.between_rounds = [&] { job.numbers[0][0].from += 40; };
  job.lose(0, 0.05);
  job.run(200ms);
  ASSERT_FALSE(job.records.empty());
  EXPECT_EQ(job.records[0].second.starts[0].from, 90 + Epochs::kMargin + 40 * Epochs::kAhead);
}

TEST(EpochsTest, calm_ranks_turn_it_off_again_and_between_the_levels_nothing_changes) {
  Job job(2);
  job.lose(1, 0.05);
  job.run(5s);
  ASSERT_EQ(job.records.size(), 2u);
  job.lose(1, 0.015);
  job.run(5s);
  EXPECT_EQ(job.records.size(), 2u);
  job.lose(1, 0.001);
  job.run(5s);
  ASSERT_EQ(job.records.size(), 4u);
  EXPECT_FALSE(job.records[3].second.setting.coded);
  EXPECT_TRUE(
      later_epoch(job.records[3].second.setting.number, job.records[0].second.setting.number));
}

TEST(EpochsTest, calm_that_was_lost_with_a_connection_is_told_again) {
  Job job(3);
  job.lose(2, 0.1);
  job.run(5s);
  ASSERT_EQ(job.records.size(), 3u);
  ASSERT_TRUE(job.records[0].second.setting.coded);
  job.records.clear();
  job.silence(0);
  job.lose(2, 0);
  job.wake(0);
  job.run(5s);
  EXPECT_TRUE(job.records.empty());
  job[2].greet(0);
  job.run(5s);
  ASSERT_EQ(job.records.size(), 3u);
  EXPECT_FALSE(job.records[0].second.setting.coded);
}

TEST(EpochsTest, a_little_loss_changes_nothing) {
  Job job(2);
  job.lose(0, 0.019);
  job.lose(1, 0.3, 1);  // one bad call: 1.9 % of an average over 16
  job.run(5s);
  EXPECT_TRUE(job.records.empty());
}

TEST(EpochsTest, nothing_is_decided_without_everybodys_answer_but_later) {
  Job job(3);
  job.silence(1);
  job.lose(0, 0.05);
  job.run(10s);
  EXPECT_TRUE(job.records.empty());
  job.wake(1);
  job.run(10s);
  EXPECT_EQ(job.records.size(), 3u);
}

TEST(EpochsTest, the_dead_are_not_waited_for) {
  Job job(3);
  job.silence(1);
  job.lose(0, 0.05);
  job.kill(1);
  job.run(200ms);
  EXPECT_EQ(job.records.size(), 2u);
}

TEST(EpochsTest, when_the_decider_dies_the_next_one_decides_with_a_later_number) {
  Job job(3);
  job.lose(2, 0.05);
  job.run(5s);
  ASSERT_EQ(job.records.size(), 3u);
  const std::uint16_t before = job.records[0].second.setting.number;
  job.kill(0);
  job.lose(2, 0.0);
  job.run(5s);
  ASSERT_EQ(job.records.size(), 5u);
  EXPECT_FALSE(job.records[4].second.setting.coded);
  EXPECT_TRUE(later_epoch(job.records[4].second.setting.number, before));
  EXPECT_EQ(job.records[4].second.setting.number % 64, 1);
}

/// Of rank 0's record only rank 2 hears.
TEST(EpochsTest, the_next_decider_mends_a_record_that_only_some_have) {
  Job job(3);
  job.silence(1);
  job.tell(1, 0);
  job.tell(0, 1);  // so that it decides without rank 1
  job.lose(2, 0.05);
  job.run(200ms);
  ASSERT_EQ(job.records.size(), 2u);
  const std::uint16_t half_sent = job.records[0].second.setting.number;
  job.records.clear();
  job.wake(1);
  job.kill(0);
  job.run(5s);
  ASSERT_EQ(job.records.size(), 2u);
  EXPECT_EQ(job.records[0].second, job.records[1].second);
  EXPECT_TRUE(later_epoch(job.records[0].second.setting.number, half_sent));
}

TEST(EpochsTest, the_next_decider_leaves_alone_what_all_know) {
  Job job(3);
  job.lose(2, 0.05);
  job.run(5s);
  ASSERT_EQ(job.records.size(), 3u);
  job.kill(0);
  job.run(5s);
  EXPECT_EQ(job.records.size(), 3u);
  EXPECT_EQ(job[1].next_deadline(), kNever);
}

TEST(EpochsTest, a_record_of_a_decider_that_is_gone_to_the_next_one_comes_too_late) {
  Job job(3);
  std::string record(8, '\0');
  record[0] = 64;
  job[2].take(1, {FrameKind::epoch_question, std::string(4, '\1')}, job.now);
  job[2].take(0, {FrameKind::epoch_record, record}, job.now);
  EXPECT_FALSE(job[2].take_record().has_value());
  job[2].take(1, {FrameKind::epoch_record, record}, job.now);
  EXPECT_TRUE(job[2].take_record().has_value());
}

TEST(EpochsTest, who_has_asked_and_is_gone_is_not_heeded) {
  Job job(3);
  job[2].take(1, {FrameKind::epoch_question, std::string(4, '\1')}, job.now);
  job[2].answer({}, job.now);
  std::ignore = job[2].take_outbox();
  job.silence(1);
  job.tell(2, 1);
  job.tell(0, 1);
  job.lose(2, 0.05);
  job.run(5s);
  EXPECT_EQ(job.records.size(), 2u);
}

TEST(EpochsTest, who_is_evicted_itself_asks_nobody) {
  Job job(2);
  job.tell(0, 0);
  job.lose(0, 0.5);
  EXPECT_EQ(job[0].next_deadline(), kNever);
  job.run(5s);
  EXPECT_TRUE(job.records.empty());
}

/// The others may hear of a death before the one that decides from then on.
TEST(EpochsTest, a_level_that_was_told_early_is_kept) {
  Job job(3);
  job.silence(0);
  job.tell(2, 0);
  job.lose(2, 0.05);
  job.tell(1, 0);
  job.run(5s);
  EXPECT_EQ(job.records.size(), 2u);
}

TEST(EpochsTest, forced_settings_are_not_changed) {
  Job job(2, false);
  job.lose(0, 0.5);
  job.run(5s);
  EXPECT_TRUE(job.records.empty());
}

TEST(EpochsTest, malformed_frames_are_ignored) {
  Job job(2);
  for (const FrameKind kind : {FrameKind::epoch_level, FrameKind::epoch_question,
                               FrameKind::epoch_answer, FrameKind::epoch_record}) {
    for (const std::size_t size : {0u, 1u, 3u, 5u, 7u, 9u, 15u}) {
      job[0].take(1, {kind, std::string(size, '\xff')}, job.now);
    }
  }
  job[0].take(1, {FrameKind::epoch_level, std::string(4, '\x03')}, job.now);
  job.run(1s);
  EXPECT_TRUE(job.records.empty());
}

TEST(EpochsTest, coded_calls_that_overrun_their_bound_turn_the_codec_off) {
  Job job(3);
  job.numbers = {{}, {}, {}};
  job.lose(2, 0.05);
  job.run(2s);
  ASSERT_EQ(job.records.size(), 3u);
  ASSERT_TRUE(job.records.back().second.setting.coded);
  job.overrun(1, 12ms);
  job.run(2s);
  EXPECT_EQ(job.records.size(), 3u) << "within 1.25 times the bound";
  job.overrun(1, 13ms);
  job.run(2s);
  ASSERT_EQ(job.records.size(), 6u);
  EXPECT_FALSE(job.records.back().second.setting.coded);
  job.lose(2, 0.2);
  job.overrun(1, 5ms, false, 20ms);
  job.run(2s);
  EXPECT_EQ(job.records.size(), 6u) << "bounds are not twice as long";
  job.overrun(1, 5ms, false, 21ms);
  job.run(2s);
  ASSERT_EQ(job.records.size(), 9u);
  EXPECT_TRUE(job.records.back().second.setting.coded);
}

}  // namespace
}  // namespace tarpon::mesh::epochs_test
