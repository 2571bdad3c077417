// Who is evicted, message by message.
#include "collectives/mesh/eviction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <tuple>

namespace tarpon::mesh {
namespace {

/// Ranks of a job, and the frames between them in the order in which they were sent.
class Job {
 public:
  explicit Job(std::uint32_t ranks) {
    for (Rank rank = 0; rank < ranks; ++rank) ranks_.emplace_back(rank, ranks);
  }
  Eviction& operator[](Rank rank) { return ranks_[rank]; }

  void send(Rank from) {
    for (auto& [to, frame] : ranks_[from].take_outbox()) queue_.emplace_back(from, to, frame);
  }
  /// Delivers all that is said, and what is said upon it. `dead` hears nothing.
  void settle(int dead = -1) {
    for (Rank rank = 0; rank < ranks_.size(); ++rank) send(rank);
    while (!queue_.empty()) {
      const auto [from, to, frame] = queue_.front();
      queue_.pop_front();
      if (to == dead) continue;
      if (frame.kind == FrameKind::evict_wish) ranks_[to].take_wish(from, frame.body);
      if (frame.kind == FrameKind::evict) ranks_[to].take_eviction(frame.body);
      send(to);
    }
  }
  std::vector<std::uint64_t> evicted() const {
    std::vector<std::uint64_t> masks;
    for (const Eviction& rank : ranks_) masks.push_back(rank.evicted());
    return masks;
  }

 private:
  std::deque<Eviction> ranks_;
  std::deque<std::tuple<Rank, Rank, Frame>> queue_;
};

TEST(EvictionTest, wish__the_lowest_live_rank_decides_and_all_hear_of_it) {
  Job job(4);
  job[3].wish(0b0100);
  job.settle();
  EXPECT_THAT(job.evicted(), testing::Each(0b0100u));
  for (Rank rank = 0; rank < 4; ++rank) {
    const auto news = job[rank].take_news();
    ASSERT_EQ(news.size(), 1u) << rank;
    EXPECT_EQ(news[0].rank, 2);
    EXPECT_EQ(news[0].decided_by, 0);
    EXPECT_TRUE(job[rank].take_news().empty());
  }
}

TEST(EvictionTest, wish__the_lowest_rank_may_be_meant) {
  Job job(4);
  job[3].wish(0b0001);
  job.settle();
  EXPECT_THAT(job.evicted(), testing::Each(0b0001u));
  EXPECT_EQ(job[3].take_news().at(0).decided_by, 1);
  job[2].wish(0b0010);  // rank 0 decides nothing any more
  job[0].wish(0b1000);
  job.settle();
  EXPECT_THAT(job.evicted(), testing::Each(0b0011u));
}

TEST(EvictionTest, wish__more_than_half_is_refused_nonsense_ignored) {
  Job job(4);
  job[3].wish(0b0111);  // it is cut off itself
  job[3].wish(0b1000);
  job[3].wish(1ull << 40);
  job[0].take_wish(1, "short");
  job[0].take_eviction("short");
  job.settle();
  EXPECT_THAT(job.evicted(), testing::Each(0u));
  job[3].wish(0b0011);
  job.settle();
  EXPECT_THAT(job.evicted(), testing::Each(0b0011u));
}

TEST(EvictionTest, wishes_of_two_against_each_other__put_both_out_everywhere) {
  Job job(4);
  job[1].wish(0b0001);
  job[0].wish(0b0010);
  job.settle();
  EXPECT_THAT(job.evicted(), testing::Each(0b0011u));
}

TEST(EvictionTest, decider_dies__who_has_heard_passes_it_on) {
  Job job(4);
  job[0].wish(0b1000);
  for (const auto& [to, frame] : job[0].take_outbox()) {
    if (to == 2) job[2].take_eviction(frame.body);  // and no further
  }
  for (Rank rank = 1; rank < 4; ++rank) job[rank].gone(0);
  job.settle(0);
  EXPECT_THAT(job.evicted(), testing::Each(0b1000u));
}

}  // namespace
}  // namespace tarpon::mesh
