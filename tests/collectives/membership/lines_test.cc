// Lines of communicators over the streams of three ranks, which a scripted network joins.
#include "collectives/membership/mesh.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>

namespace tarpon::mesh::lines_test {
namespace {

constexpr std::uint32_t kRanks = 3;

/// Joins the meshes of all ranks. A stream has one name at each end.
class Joined {
 public:
  Joined() {
    for (Rank rank = 0; rank < kRanks; ++rank) {
      networks_.push_back(std::make_unique<End>(*this, rank));
      meshes_.push_back(std::make_unique<Mesh>(rank, kRanks, 7, *networks_.back()));
    }
    run();
  }

  Mesh& operator[](Rank rank) { return *meshes_[rank]; }

  /// Delivers everything that is on its way.
  void run() {
    for (int round = 0; round < 8; ++round) {
      for (auto& mesh : meshes_) mesh->tick(now_);
      while (!events_.empty()) {
        auto event = std::move(events_.front());
        events_.pop_front();
        event();
        for (auto& mesh : meshes_) mesh->tick(now_);
      }
      now_ += 50ms;
    }
  }

  /// Breaks the streams between two ranks. New ones follow in run().
  void cut(Rank a, Rank b) {
    for (auto& [from, to] : peers_) {
      const bool between = (from.first == a && to.first == b) || (from.first == b && to.first == a);
      if (!between) continue;
      events_.push_back([this, from = from] {
        meshes_[from.first]->streams().ended(from.second, "cut", false, now_);
      });
    }
    std::erase_if(peers_, [a, b](const auto& one) {
      const auto& [from, to] = one;
      return (from.first == a && to.first == b) || (from.first == b && to.first == a);
    });
  }

 private:
  using Name = std::pair<Rank, StreamId>;

  class End final : public Network {
   public:
    End(Joined& all, Rank rank) : all_(all), rank_(rank) {}
    StreamId connect(Rank peer) override {
      const Name here{rank_, ++all_.last_}, there{peer, ++all_.last_};
      all_.peers_[here] = there;
      all_.peers_[there] = here;
      all_.events_.push_back([this, here, there] {
        all_.meshes_[there.first]->streams().accepted(there.second, all_.now_);
        all_.meshes_[here.first]->streams().connected(here.second, all_.now_);
      });
      return here.second;
    }
    std::size_t write(StreamId stream, std::string_view bytes) override {
      const auto found = all_.peers_.find({rank_, stream});
      if (found == all_.peers_.end()) return bytes.size();
      all_.events_.push_back([this, there = found->second, text = std::string(bytes)] {
        all_.meshes_[there.first]->streams().received(there.second, text, all_.now_);
      });
      return bytes.size();
    }
    void close(StreamId stream) override { all_.peers_.erase({rank_, stream}); }

   private:
    Joined& all_;
    const Rank rank_;
  };

  Time now_{1s};
  StreamId last_ = 0;
  std::map<Name, Name> peers_;
  std::deque<std::function<void()>> events_;
  std::vector<std::unique_ptr<End>> networks_;
  std::vector<std::unique_ptr<Mesh>> meshes_;
};

std::vector<Streams::Event> events_of(Line& line) {
  std::vector<Streams::Event> found;
  while (auto event = line.next_event()) found.push_back(*std::move(event));
  return found;
}

class LinesTest : public testing::Test {
 protected:
  LinesTest() {
    for (Rank rank = 0; rank < kRanks; ++rank) events_of(job_[rank].job_line());
  }

  PartLine& open(Rank rank, std::vector<Rank> members) {
    PartLine& line = *job_[rank].add(9, std::move(members));
    line.open();
    job_.run();
    return line;
  }

  Joined job_;
};

TEST_F(LinesTest, up__once_both_ranks_have_opened_the_line) {
  PartLine& two = open(2, {2, 0});
  EXPECT_EQ(two.up(), 0u);
  two.send(1, FrameKind::here, {});  // is lost
  PartLine& zero = open(0, {2, 0});
  EXPECT_EQ(two.up(), 0b10u);
  EXPECT_EQ(zero.up(), 0b01u);
  for (PartLine* const line : {&two, &zero}) {
    const auto events = events_of(*line);
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].kind, Streams::Event::Kind::up);
  }
}

TEST_F(LinesTest, frames__go_to_their_line_with_its_ranks) {
  PartLine& two = open(2, {2, 0});
  PartLine& zero = open(0, {2, 0});
  events_of(two), events_of(zero);
  zero.send(0, FrameKind::abort, "to the part");
  job_[0].job_line().send(2, FrameKind::abort, "to the job");
  job_.run();
  const auto of_part = events_of(two), of_job = events_of(job_[2].job_line());
  ASSERT_EQ(of_part.size(), 1u);
  EXPECT_EQ(of_part[0].rank, 1);
  EXPECT_EQ(of_part[0].frame.body, "to the part");
  ASSERT_EQ(of_job.size(), 1u);
  EXPECT_EQ(of_job[0].rank, 0);
  EXPECT_EQ(of_job[0].frame.body, "to the job");
  EXPECT_TRUE(events_of(job_[1].job_line()).empty());
}

TEST_F(LinesTest, a_stream_that_breaks__brings_its_lines_up_again) {
  PartLine& two = open(2, {2, 0});
  PartLine& zero = open(0, {2, 0});
  events_of(two), events_of(zero);
  job_.cut(0, 2);
  job_.run();
  EXPECT_EQ(two.up(), 0b10u);
  EXPECT_EQ(zero.up(), 0b01u);
  EXPECT_EQ(events_of(two).size(), 1u);
  EXPECT_EQ(events_of(zero).size(), 1u);
}

TEST_F(LinesTest, close__is_gone_for_the_others) {
  PartLine& two = open(2, {2, 0});
  PartLine& zero = open(0, {2, 0});
  events_of(two), events_of(zero);
  zero.close();
  job_.run();
  const auto events = events_of(two);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, Streams::Event::Kind::gone);
  EXPECT_EQ(events[0].rank, 1);
  EXPECT_EQ(two.up(), 0u);
  two.send(1, FrameKind::abort, "late");
  job_.run();
  EXPECT_TRUE(events_of(zero).empty());
  job_[0].remove(9);
  EXPECT_EQ(job_[2].job_line().up(), 0b011u);  // the job goes on
}

TEST_F(LinesTest, a_number__serves_one_line_only) {
  EXPECT_NE(job_[0].add(9, {0, 1}), nullptr);
  EXPECT_EQ(job_[0].add(9, {0, 2}), nullptr);
  job_[0].remove(9);
  EXPECT_EQ(job_[0].add(9, {0, 1}), nullptr);
  EXPECT_NE(job_[0].add(8, {0, 1}), nullptr);
}

TEST_F(LinesTest, other_members__are_a_conflict_on_both_sides) {
  PartLine& two = open(2, {2, 0});
  PartLine& zero = open(0, {0, 2});
  EXPECT_EQ(two.up(), 0u);
  EXPECT_EQ(zero.up(), 0u);
  EXPECT_EQ(two.conflict(), Rank{0});
  EXPECT_EQ(zero.conflict(), Rank{2});
}

TEST_F(LinesTest, a_rank_that_is_not_in_the_list__is_a_conflict_too) {
  PartLine& zero = open(0, {0, 1});
  PartLine& two = open(2, {0, 2});
  EXPECT_EQ(zero.conflict(), Rank{2});
  EXPECT_EQ(two.conflict(), Rank{0});
}

TEST_F(LinesTest, close__that_a_broken_stream_has_lost_is_said_again) {
  PartLine& two = open(2, {2, 0});
  PartLine& zero = open(0, {2, 0});
  events_of(two), events_of(zero);
  job_.cut(0, 2);
  zero.close();
  job_[0].remove(9);
  job_.run();
  const auto events = events_of(two);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, Streams::Event::Kind::gone);
}

TEST_F(LinesTest, malformed_frames__are_dropped) {
  PartLine& two = open(2, {2, 0});
  PartLine& zero = open(0, {2, 0});
  events_of(two), events_of(zero);
  job_[0].streams().send(2, FrameKind::line, {}, 9);
  job_[0].streams().send(2, FrameKind::line, {}, 0);
  job_[0].streams().send(2, FrameKind::here, {}, 10);
  job_[1].streams().send(2, FrameKind::line, std::string(5, '\0'), 9);  // no member
  job_.run();
  EXPECT_TRUE(events_of(two).empty());
  EXPECT_TRUE(events_of(job_[2].job_line()).empty());
  EXPECT_EQ(two.up(), 0b10u);
}

}  // namespace
}  // namespace tarpon::mesh::lines_test
