// Excluding ranks by votes, message by message.
#include "collectives/membership/votes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <utility>

namespace tarpon::mesh::votes_test {
namespace {

/// Ranks whose votes reach each other at once, unless they are cut off.
class Job {
 public:
  explicit Job(std::uint32_t ranks) {
    for (Rank rank = 0; rank < ranks; ++rank) facts_.emplace_back(ranks);
    for (Rank rank = 0; rank < ranks; ++rank) votes_.emplace_back(rank, facts_[rank], 5s);
  }
  Votes& operator[](Rank rank) { return votes_[rank]; }
  const Facts& facts(Rank rank) const { return facts_[rank]; }
  void cut(std::uint64_t group) { group_ = group; }

  void settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (Rank from = 0; from < votes_.size(); ++from) {
        votes_[from].tick(now);
        while (const auto fact = votes_[from].next_fact()) {
          ASSERT_TRUE(facts_[from].learn(*fact));
          for (Rank to = 0; to < votes_.size(); ++to) {
            if (reaches(from, to)) facts_[to].learn(*fact);
          }
          votes_[from].tick(now);
          moved = true;
        }
        const auto body = votes_[from].take_body();
        for (Rank to = 0; to < votes_.size() && body; ++to) {
          if (to == from || !reaches(from, to)) continue;
          moved = true;
          if (votes_[to].receive(from, *body, now)) votes_[from].heard(to, now);
        }
      }
    }
  }
  void run(Duration length) {
    for (const Time end = now + length; now < end; now += 100ms) settle();
    settle();
  }
  std::vector<Standing> standings(Rank of) const {
    std::vector<Standing> result;
    for (const Facts& one : facts_) result.push_back(one.standing(of));
    return result;
  }
  Time now{1s};

 private:
  bool reaches(Rank from, Rank to) const { return (group_ >> from & 1) == (group_ >> to & 1); }
  std::deque<Facts> facts_;
  std::deque<Votes> votes_;
  std::uint64_t group_ = 0;  // those in it hear only each other
};

TEST(VotesTest, silent__more_than_half_exclude_after_dead_after) {
  Job job(4);
  for (const Rank rank : {Rank{0}, Rank{1}, Rank{2}}) job[rank].set_silent(0b1000, 0b1000, job.now);
  job.run(4900ms);
  EXPECT_THAT(job.standings(3), testing::Each(Standing::live));
  job.run(200ms);
  EXPECT_THAT(job.standings(3), testing::Each(Standing::dead));
  EXPECT_FALSE(job.facts(0).of(3).without_majority);
  EXPECT_EQ(job.facts(0).of(3).text(),
            "rank 3 is dead: silent for 5 s: 3 of 4 live ranks do not hear it");
}

TEST(VotesTest, silent__exactly_half_exclude_without_majority_and_fewer_nobody) {
  Job job(4);
  job[0].set_silent(0b1000, 0b1000, job.now);
  job.run(20s);
  EXPECT_THAT(job.standings(3), testing::Each(Standing::live));
  job[1].set_silent(0b1000, 0b1000, job.now);
  job.run(6s);
  EXPECT_THAT(job.standings(3), testing::Each(Standing::dead));
  EXPECT_TRUE(job.facts(2).of(3).without_majority);
}

TEST(VotesTest, silent__heard_again_withdraws_the_vote) {
  Job job(3);
  job[0].set_silent(0b100, 0b100, job.now);
  job[1].set_silent(0b100, 0b100, job.now);
  job.run(4s);
  job[1].set_silent(0, 0, job.now);
  job.run(2s);  // one vote of three
  job[0].set_silent(0, 0, job.now);
  job.settle();
  job[1].set_silent(0b100, 0b100, job.now);
  job.run(10s);
  EXPECT_THAT(job.standings(2), testing::Each(Standing::live));
}

TEST(VotesTest, silent__time_between_calls_does_not_count) {
  Job job(4);
  const auto needed_by_all = [&](std::uint64_t needed, Duration length) {
    for (const Rank rank : {Rank{0}, Rank{1}, Rank{2}}) {
      job[rank].set_silent(0b1000, needed, job.now);
    }
    job.run(length);
  };
  for (int call = 0; call < 4; ++call) {
    needed_by_all(0b1000, 1200ms);  // 4.8 s in all
    needed_by_all(0, 20s);
  }
  needed_by_all(0b1000, 100ms);
  EXPECT_THAT(job.standings(3), testing::Each(Standing::live));
  needed_by_all(0b1000, 200ms);
  EXPECT_THAT(job.standings(3), testing::Each(Standing::dead));
}

TEST(VotesTest, silent__heard_between_calls_begins_again) {
  Job job(3);
  const auto tell_all = [&](std::uint64_t silent, std::uint64_t needed, Duration length) {
    for (const Rank rank : {Rank{0}, Rank{1}}) job[rank].set_silent(silent, needed, job.now);
    job.run(length);
  };
  tell_all(0b100, 0b100, 4900ms);
  tell_all(0b100, 0, 1s);
  tell_all(0, 0, 100ms);
  tell_all(0b100, 0b100, 4900ms);
  EXPECT_THAT(job.standings(2), testing::Each(Standing::live));
  tell_all(0b100, 0b100, 200ms);
  EXPECT_THAT(job.standings(2), testing::Each(Standing::dead));
}

TEST(VotesTest, silent__votes_count_only_while_their_rank_is_needed) {
  Job job(4);
  job[0].set_silent(0b1000, 0b1000, job.now);
  job[1].set_silent(0b1000, 0b1000, job.now);
  job.run(5500ms);
  job[0].set_silent(0b1000, 0, job.now);  // its call has ended
  job[2].set_silent(0b1000, 0b1000, job.now);
  job.run(5500ms);
  job[1].set_silent(0b1000, 0, job.now);
  job.run(2s);
  job[1].set_silent(0b1000, 0b1000, job.now);  // half of them again, and not for kHalfGrace
  job.run(900ms);
  EXPECT_THAT(job.standings(3), testing::Each(Standing::live));
  job[0].set_silent(0b1000, 0b1000, job.now);
  job.settle();
  EXPECT_THAT(job.standings(3), testing::Each(Standing::dead));
  EXPECT_FALSE(job.facts(0).of(3).without_majority);
}

TEST(VotesTest, silent__the_smaller_part_of_a_cut_job_excludes_nobody) {
  Job job(5);
  job.cut(0b00011);
  for (const Rank rank : {Rank{0}, Rank{1}}) job[rank].set_silent(0b11100, 0b11100, job.now);
  for (const Rank rank : {Rank{2}, Rank{3}, Rank{4}})
    job[rank].set_silent(0b00011, 0b00011, job.now);
  job.run(20s);
  EXPECT_EQ(job.facts(0).live(), 0b11111u);
  EXPECT_EQ(job.facts(4).live(), 0b11100u);
}

TEST(VotesTest, needed__ranks_that_answer_are_not_silent) {
  Job job(3);
  for (const Rank rank : {Rank{0}, Rank{1}}) job[rank].set_needed(0b100, job.now);
  job.run(20s);  // rank 2 answers, but does not come
  EXPECT_THAT(job.standings(2), testing::Each(Standing::live));
  job.cut(0b100);
  job.run(6s);
  EXPECT_EQ(job.facts(0).standing(2), Standing::dead);
  EXPECT_EQ(job.facts(2).live(), 0b111u);
}

TEST(VotesTest, wish__evicts_by_the_same_rule_and_lapses) {
  Job job(4);
  job[0].wish_eviction(0b1000, job.now);
  job.run(Votes::kWishTime + 1s);
  job[1].wish_eviction(0b1000, job.now);
  job.settle();
  EXPECT_THAT(job.standings(3), testing::Each(Standing::live));  // the first vote has lapsed
  job[2].wish_eviction(0b1000, job.now);
  job.run(500ms);
  EXPECT_THAT(job.standings(3), testing::Each(Standing::live));  // a third vote may come
  job.run(1s);
  EXPECT_THAT(job.standings(3), testing::Each(Standing::evicted));
  EXPECT_THAT(job.facts(0).of(3).text(), testing::HasSubstr("exceeded --retain"));
  EXPECT_TRUE(job.facts(0).of(3).without_majority);
}

TEST(VotesTest, wish__of_half_has_its_own_grace_after_votes_of_silence) {
  Job job(4);
  for (const Rank rank : {Rank{0}, Rank{1}}) job[rank].set_silent(0b1000, 0b1000, job.now);
  job.run(5500ms);  // half of the grace
  for (const Rank rank : {Rank{0}, Rank{1}}) {
    job[rank].set_silent(0, 0, job.now);
    job[rank].wish_eviction(0b1000, job.now);
  }
  job.run(700ms);
  EXPECT_THAT(job.standings(3), testing::Each(Standing::live));
  job.run(500ms);
  EXPECT_THAT(job.standings(3), testing::Each(Standing::evicted));
}

TEST(VotesTest, wish__against_the_others_of_a_rank_that_is_cut_off_itself_counts_for_nothing) {
  Job job(4);
  job[3].wish_eviction(0b0111, job.now);
  job[3].wish_eviction(0b1000, job.now);      // itself
  job[3].wish_eviction(1ull << 40, job.now);  // no rank
  job.settle();
  for (Rank rank = 0; rank < 4; ++rank) EXPECT_EQ(job.facts(rank).live(), 0b1111u);
}

TEST(VotesTest, votes_of_excluded_ranks_do_not_count) {
  Job job(4);
  for (const Rank rank : {Rank{0}, Rank{1}}) job[rank].wish_eviction(0b1000, job.now);
  job.run(2s);
  ASSERT_THAT(job.standings(3), testing::Each(Standing::evicted));
  job[3].set_silent(0b0001, 0b0001, job.now);
  job[2].set_silent(0b0001, 0b0001, job.now);
  job.run(20s);
  EXPECT_THAT(job.standings(0), testing::Each(Standing::live));  // one vote of three
}

TEST(VotesTest, receive__malformed_bodies_are_ignored) {
  Job job(2);
  for (const std::size_t size : {0u, 1u, 23u, 25u}) {
    EXPECT_FALSE(job[0].receive(1, std::string(size, '\xff'), job.now));
  }
  EXPECT_TRUE(job[0].receive(1, std::string(24, '\xff'), job.now));  // everything at once
  job[0].tick(job.now);
  EXPECT_FALSE(job[0].next_fact());
  job[0].tick(job.now + Votes::kHalfGrace);
  EXPECT_TRUE(job[0].next_fact());  // one of two: half
}

}  // namespace
}  // namespace tarpon::mesh::votes_test
