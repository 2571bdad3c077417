// Communicators that are split from a job: calls, errors, ends, and what they share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>

#include "collectives/communicator.h"
#include "tests/support/live_job.h"
#include "transport/ports/uring/uring_port.h"

namespace tarpon::split_test {
namespace {

using namespace testing_support;
using ::testing::HasSubstr;

std::ptrdiff_t entries_of(const char* directory) {
  return std::distance(std::filesystem::directory_iterator(directory),
                       std::filesystem::directory_iterator());
}

class SplitTest : public testing::TestWithParam<Datapath> {
 protected:
  void SetUp() override {
    if (GetParam() != Datapath::uring) return;
    if (const auto uring = check_uring(); !uring) GTEST_SKIP() << uring.error().message;
  }
};

INSTANTIATE_TEST_SUITE_P(Datapaths, SplitTest,
                         testing::Values(Datapath::mmsg, Datapath::uring, Datapath::automatic),
                         [](const auto& info) { return std::string(name(info.param)); });

/// The communicator of `members` of each member, by rank of the job.
Ranks split(const Ranks& job, const std::vector<Rank>& members, std::uint16_t number) {
  Ranks parts(job.size());
  on_all(static_cast<std::uint32_t>(job.size()), [&](Rank rank) {
    if (std::find(members.begin(), members.end(), rank) == members.end()) return;
    auto part = job[rank]->split(members, number, 10s);
    if (part) {
      parts[rank] = std::move(*part);
    } else {
      ADD_FAILURE() << "rank " << rank << ": " << part.error().message;
    }
  });
  return parts;
}

void expect_sum(Communicator& part, std::uint32_t tag, std::size_t count, std::uint32_t salt = 0) {
  auto values = input(part.rank(), count, salt);
  expect_complete(part.allreduce(in_place(values, tag)));
  EXPECT_EQ(values, sum(part.world_size(), count, salt)) << "tag " << tag;
}

TEST_P(SplitTest, calls__of_the_job_and_of_parts_that_overlap_at_once_on_the_same_tag) {
  const Ranks job = connect(4, GetParam());
  ASSERT_EQ(job.size(), 4u);
  const std::vector<Ranks> parts = [&] {
    std::vector<Ranks> made;
    made.push_back(split(job, {0, 1}, 1));
    made.push_back(split(job, {3, 2}, 2));
    made.push_back(split(job, {0, 2, 3}, 3));
    made.push_back(split(job, {1}, 4));
    return made;
  }();
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(parts[1][3]->rank(), 0u);
  EXPECT_EQ(parts[1][2]->rank(), 1u);
  EXPECT_EQ(parts[2][3]->world_size(), 3u);
  EXPECT_EQ(parts[2][0]->ranks().size(), 3u);
  std::vector<std::function<void()>> work;
  for (Rank rank = 0; rank < 4; ++rank) {
    for (const Ranks* const one : {&job, &parts[0], &parts[1], &parts[2], &parts[3]}) {
      if (!(*one)[rank]) continue;
      work.emplace_back([one, rank] {
        for (std::uint32_t turn = 0; turn < 6; ++turn) {
          expect_sum(*(*one)[rank], 0, turn % 2 == 0 ? 3 : 70'000, turn);
        }
      });
    }
  }
  on_all(static_cast<std::uint32_t>(work.size()), [&](Rank i) { work[i](); });
}

TEST_P(SplitTest, bounded__and_agree) {
  const Ranks job = connect(3, GetParam());
  ASSERT_EQ(job.size(), 3u);
  const Ranks parts = split(job, {0, 2}, 9);
  ASSERT_FALSE(HasFailure());
  on_all(2, [&](Rank i) {
    Communicator& part = *parts[i == 0 ? 0 : 2];
    auto values = input(part.rank(), 300'000);
    AllreduceArguments arguments = in_place(values, 5);
    arguments.mode = Mode::bounded;
    arguments.deadline = 20s;
    for (int turn = 0; turn < 4; ++turn) {
      const auto report = part.allreduce(arguments);
      ASSERT_TRUE(report) << report.error().message;
      EXPECT_TRUE(report->status == Status::complete || report->status == Status::partial)
          << report->detail;
    }
    const StepVerdict verdict = part.agree(1, {}, 10s);
    EXPECT_EQ(verdict.verdict, Verdict::apply) << verdict.detail;
  });
}

TEST_P(SplitTest, parts__share_descriptors_and_threads) {
  const Ranks job = connect(2, GetParam());
  ASSERT_EQ(job.size(), 2u);
  on_all(2, [&](Rank rank) { expect_sum(*job[rank], 0, 1000); });
  const auto files = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task");
  std::vector<Ranks> parts;
  for (std::uint16_t number = 1; number <= 32; ++number)
    parts.push_back(split(job, {0, 1}, number));
  ASSERT_FALSE(HasFailure());
  on_all(2, [&](Rank rank) {
    for (const Ranks& part : parts) expect_sum(*part[rank], 0, 1000);
  });
  // The port keeps a ring of io_uring for each thread that drives it, of which some are new.
  EXPECT_LT(entries_of("/proc/self/fd"), files + 8);
  // A thread that was joined may still be listed.
  EXPECT_LT(entries_of("/proc/self/task"), threads + 8);
}

TEST_P(SplitTest, abort__ends_the_calls_of_its_part_alone) {
  const Ranks job = connect(3, GetParam());
  ASSERT_EQ(job.size(), 3u);
  const Ranks broken = split(job, {0, 1}, 1), good = split(job, {0, 1}, 2);
  ASSERT_FALSE(HasFailure());
  on_all(2, [&](Rank rank) {
    if (rank == 0) {
      broken[0]->abort("for the test");
    } else {
      auto values = input(1, 1000);
      const auto report = broken[1]->allreduce(in_place(values));
      ASSERT_TRUE(report);
      EXPECT_EQ(report->status, Status::aborted);
      EXPECT_THAT(report->detail, HasSubstr("for the test"));
    }
    expect_sum(*good[rank], 0, 1000);
  });
  on_all(3, [&](Rank rank) { expect_sum(*job[rank], 0, 1000); });
}

TEST_P(SplitTest, ends__with_close_in_peace_and_without_as_a_death) {
  const Ranks job = connect(3, GetParam());
  ASSERT_EQ(job.size(), 3u);
  Ranks closed = split(job, {0, 1, 2}, 1), left = split(job, {0, 1, 2}, 2);
  ASSERT_FALSE(HasFailure());
  on_all(3, [&](Rank rank) {
    expect_sum(*closed[rank], 0, 70'000);
    const auto done = closed[rank]->close(10s);
    EXPECT_TRUE(done) << done.error().message;
    closed[rank].reset();
  });
  left[2].reset();
  on_all(2, [&](Rank rank) {
    auto values = input(rank, 1000);
    AllreduceArguments arguments = in_place(values);
    arguments.deadline = 20s;
    const auto report = left[rank]->allreduce(arguments);
    ASSERT_TRUE(report);
    EXPECT_EQ(report->status, Status::peer_dead);
    EXPECT_THAT(report->detail, HasSubstr("rank 2"));
  });
  on_all(3, [&](Rank rank) { expect_sum(*job[rank], 0, 1000); });
}

TEST_P(SplitTest, a_job_that_is_destroyed__ends_the_calls_of_its_parts) {
  Ranks job = connect(2, GetParam());
  ASSERT_EQ(job.size(), 2u);
  const Ranks parts = split(job, {0, 1}, 1);
  ASSERT_FALSE(HasFailure());
  auto values = input(0, 1000);
  auto call = parts[0]->allreduce_async(in_place(values));
  ASSERT_TRUE(call);
  job[0].reset();
  EXPECT_EQ(call->wait().status, Status::aborted);
  const auto later = parts[0]->allreduce(in_place(values));
  ASSERT_TRUE(later);
  EXPECT_EQ(later->status, Status::aborted);
  EXPECT_THAT(later->detail, HasSubstr("the communicator of the job was destroyed"));
  EXPECT_THAT(parts[0]->agree(1, {}, 10s).detail, HasSubstr("the communicator of the job"));
  EXPECT_THAT(parts[0]->close(10s).error().message, HasSubstr("the communicator of the job"));
}

TEST_P(SplitTest, shrink__replaces_the_job_and_new_parts_are_split_from_its_successor) {
  Ranks job = connect(3, GetParam());
  ASSERT_EQ(job.size(), 3u);
  const Ranks parts = split(job, {0, 2}, 1);
  ASSERT_FALSE(HasFailure());
  job[2].reset();
  Ranks fresh(2);
  on_all(2, [&](Rank rank) {
    auto made = job[rank]->shrink(20s);
    ASSERT_TRUE(made) << made.error().message;
    fresh[rank] = std::move(*made);
  });
  ASSERT_FALSE(HasFailure());
  const Ranks anew = split(fresh, {1, 0}, 1);
  ASSERT_FALSE(HasFailure());
  on_all(2, [&](Rank rank) { expect_sum(*anew[rank], 0, 1000); });
}

TEST(SplitErrors, arguments_that_make_no_sense) {
  const Ranks job = connect(2, Datapath::mmsg);
  ASSERT_EQ(job.size(), 2u);
  const auto why = [&](const std::vector<Rank>& ranks, std::uint16_t number) {
    const auto part = job[0]->split(ranks, number, 1ms);
    EXPECT_FALSE(part);
    return part ? "" : part.error().message;
  };
  EXPECT_EQ(why({0, 2}, 1), "split: rank 2 of 2");
  EXPECT_EQ(why({0, 1, 0}, 1), "split: rank 0 is given twice");
  EXPECT_EQ(why({1}, 1), "split: rank 0 is not among the ranks that it gives");
  EXPECT_EQ(why({0, 1}, 0), "split: number 0 is that of the job: give one from 1 on");
  EXPECT_EQ(why({0, 1}, 7), "split: rank 1 has not split off communicator 7 by the deadline");
  EXPECT_EQ(why({0, 1}, 7), "split: number 7 was given before: give a new one");
  auto alone = job[0]->split({0}, 8, 1s);
  ASSERT_TRUE(alone) << alone.error().message;
  EXPECT_EQ((*alone)->split({0}, 9, 1s).error().message,
            "split: call it on the communicator that connect() made: this one is split itself");
  EXPECT_EQ((*alone)->shrink(1s).error().message,
            "shrink: call it on the communicator that this one was split from");
}

TEST(SplitErrors, ranks_that_differ__are_told_which_one_does) {
  const Ranks job = connect(3, Datapath::mmsg);
  ASSERT_EQ(job.size(), 3u);
  std::vector<std::string> why(2);
  on_all(2, [&](Rank rank) {
    const auto part =
        job[rank]->split(rank == 0 ? std::vector<Rank>{0, 1} : std::vector<Rank>{0, 1, 2}, 1, 10s);
    ASSERT_FALSE(part);
    why[rank] = part.error().message;
  });
  EXPECT_THAT(why[0], HasSubstr("rank 1 splits communicator 1 with other members"));
  EXPECT_THAT(why[1], HasSubstr("rank 0 splits communicator 1 with other members"));
}

TEST(SplitErrors, a_rank_that_has_left_the_job__is_named_at_once) {
  Ranks job = connect(2, Datapath::mmsg);
  ASSERT_EQ(job.size(), 2u);
  job[1].reset();
  const auto part = job[0]->split({0, 1}, 1, 20s);
  ASSERT_FALSE(part);
  EXPECT_THAT(part.error().message, HasSubstr("rank 1"));
}

}  // namespace
}  // namespace tarpon::split_test
