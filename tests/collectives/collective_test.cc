// The collectives beside AllReduce, live on 127.0.0.1.
#include "collectives/collective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/live_job.h"

namespace tarpon::collective_test {
namespace {

using testing::HasSubstr;
using testing_support::connect;
using testing_support::expect_complete;
using testing_support::input;
using testing_support::on_all;
using testing_support::Ranks;
using testing_support::sum;
using Floats = std::vector<float>;
using Counts = std::vector<std::uint64_t>;

constexpr std::uint32_t kRanks = 4;
constexpr Collective kAll[] = {
    Collective::reduce_scatter, Collective::all_gather, Collective::broadcast, Collective::reduce,
    Collective::gather,         Collective::scatter,    Collective::all_to_all};

Floats part(const Floats& bucket, const Counts& counts, Rank rank) {
  const auto first = bucket.begin() + static_cast<std::ptrdiff_t>(std::accumulate(
                                          counts.begin(), counts.begin() + rank, 0ull));
  return {first, first + static_cast<std::ptrdiff_t>(counts[rank])};
}

/// One call, with the input and the expected output of each rank.
struct Case {
  Collective collective;
  Counts counts;  // of the parts; broadcast and reduce: the bucket is all of them
  Rank root = 0;

  std::uint64_t total() const { return std::accumulate(counts.begin(), counts.end(), 0ull); }
  bool has_parts() const {
    return collective != Collective::broadcast && collective != Collective::reduce;
  }

  Floats in(Rank rank) const {
    const Floats bucket = input(rank, total());
    if (collective == Collective::all_gather || collective == Collective::gather) {
      return part(bucket, counts, rank);
    }
    const bool of_root = collective == Collective::broadcast || collective == Collective::scatter;
    return of_root && rank != root ? Floats() : bucket;
  }

  Floats out(Rank rank) const {
    switch (collective) {
      case Collective::reduce_scatter:
        return part(sum(kRanks, total()), counts, rank);
      case Collective::reduce:
        return rank == root ? sum(kRanks, total()) : Floats();
      case Collective::broadcast:
        return input(root, total());
      case Collective::scatter:
        return part(input(root, total()), counts, rank);
      case Collective::all_gather:
        return gathered();
      case Collective::gather:
        return rank == root ? gathered() : Floats();
      case Collective::all_to_all:
      case Collective::allreduce:
      case Collective::send:
      case Collective::receive:
        break;
    }
    Floats result;
    for (Rank from = 0; from < kRanks; ++from) {
      const Floats one = part(input(from, total()), counts, rank);
      result.insert(result.end(), one.begin(), one.end());
    }
    return result;
  }

  CollectiveArguments arguments() const {
    CollectiveArguments result;
    result.collective = collective;
    result.root = root;
    if (!has_parts()) {
      result.count = total();
    } else if (collective == Collective::all_to_all) {
      result.count = counts[0];
    } else {
      result.counts = counts;
    }
    return result;
  }

 private:
  Floats gathered() const {
    Floats result;
    for (Rank from = 0; from < kRanks; ++from) {
      const Floats one = part(input(from, total()), counts, from);
      result.insert(result.end(), one.begin(), one.end());
    }
    return result;
  }
};

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const Collective collective : kAll) {
    for (const Counts& counts : {Counts{5, 5, 5, 5}, Counts{50'000, 50'000, 50'000, 50'000},
                                 Counts{7, 0, 40'000, 333}, Counts{0, 0, 0, 0}}) {
      if (collective == Collective::all_to_all && counts[0] != counts[1]) continue;
      for (const Rank root : {Rank{0}, Rank{2}}) {
        if (root != 0 && !has_root(collective)) continue;
        result.push_back({collective, counts, root});
      }
    }
  }
  return result;
}

/// Through the memory that the ranks share, and over the network.
class CollectiveResults : public testing::TestWithParam<bool> {
 protected:
  const Ranks ranks_ = connect(kRanks, Datapath::automatic,
                               [](CommunicatorOptions& options) { options.hosts = GetParam(); });
};

INSTANTIATE_TEST_SUITE_P(Ways, CollectiveResults, testing::Bool(), [](const auto& way) {
  return std::string(way.param ? "memory" : "network");
});

TEST_P(CollectiveResults, apart) {
  const Ranks& ranks = ranks_;
  ASSERT_EQ(ranks.size(), kRanks);
  on_all(kRanks, [&](Rank rank) {
    for (const Case& one : cases()) {
      const Floats in = one.in(rank), wanted = one.out(rank);
      Floats out(wanted.size(), -1.0f);
      CollectiveArguments call = one.arguments();
      call.input = in.empty() ? nullptr : in.data();
      call.output = out.empty() ? nullptr : out.data();
      const auto report = ranks[rank]->collective(call);
      expect_complete(report);
      EXPECT_EQ(report->collective, one.collective);
      EXPECT_EQ(out, wanted) << name(one.collective) << ", root " << one.root << ", rank " << rank
                             << ", " << one.total() << " elements";
    }
    const auto closed = ranks[rank]->close(20s);
    EXPECT_TRUE(closed) << closed.error().message;
  });
}

TEST_P(CollectiveResults, in_place) {
  const Ranks& ranks = ranks_;
  ASSERT_EQ(ranks.size(), kRanks);
  on_all(kRanks, [&](Rank rank) {
    for (const Case& one : cases()) {
      const Floats in = one.in(rank), wanted = one.out(rank);
      Floats buffer(one.total(), -1.0f);
      const std::size_t before =
          std::accumulate(one.counts.begin(), one.counts.begin() + rank, std::size_t{0});
      const bool small_in =
          one.collective == Collective::all_gather || one.collective == Collective::gather;
      const bool small_out =
          one.collective == Collective::reduce_scatter || one.collective == Collective::scatter;
      std::copy(in.begin(), in.end(),
                buffer.begin() + static_cast<std::ptrdiff_t>(small_in ? before : 0));
      CollectiveArguments call = one.arguments();
      call.input = buffer.data() + (small_in ? before : 0);
      call.output = buffer.data() + (small_out ? before : 0);
      expect_complete(ranks[rank]->collective(call));
      const auto first = buffer.begin() + static_cast<std::ptrdiff_t>(small_out ? before : 0);
      EXPECT_EQ(Floats(first, first + static_cast<std::ptrdiff_t>(wanted.size())), wanted)
          << name(one.collective) << ", root " << one.root << ", rank " << rank << ", "
          << one.total() << " elements";
    }
  });
}

TEST_P(CollectiveResults, bounded__has_the_same_results_in_time) {
  const Ranks& ranks = ranks_;
  ASSERT_EQ(ranks.size(), kRanks);
  on_all(kRanks, [&](Rank rank) {
    for (const Case& one : cases()) {
      if (one.collective != Collective::reduce_scatter &&
          one.collective != Collective::all_gather) {
        continue;
      }
      const Floats in = one.in(rank), wanted = one.out(rank);
      Floats out(wanted.size(), -1.0f);
      CollectiveArguments call = one.arguments();
      call.input = in.data();
      call.output = out.data();
      call.mode = Mode::bounded;
      call.bound = 10s;
      const auto report = ranks[rank]->collective(call);
      expect_complete(report);
      EXPECT_EQ(report->mode, Mode::bounded);
      EXPECT_EQ(report->algorithm, Algorithm::tar);
      EXPECT_EQ(out, wanted) << name(one.collective) << ", rank " << rank << ", " << one.total()
                             << " elements";
    }
    const auto closed = ranks[rank]->close(20s);
    EXPECT_TRUE(closed) << closed.error().message;
  });
}

TEST(Collectives, order__one_of_a_tag_with_allreduce) {
  const Ranks ranks = connect(kRanks, Datapath::automatic);
  ASSERT_EQ(ranks.size(), kRanks);
  on_all(kRanks, [&](Rank rank) {
    const Case scattered{Collective::reduce_scatter, {1000, 1000, 1000, 1000}};
    const Case gathered{Collective::all_gather, {1000, 1000, 1000, 1000}};
    const Floats in = scattered.in(rank), mine = gathered.in(rank);
    Floats sums(1000), all(4000), values = input(rank, 4000);
    CollectiveArguments first = scattered.arguments(), third = gathered.arguments();
    first.input = in.data(), first.output = sums.data();
    third.input = mine.data(), third.output = all.data();
    auto a = ranks[rank]->collective_async(first);
    auto b = ranks[rank]->allreduce_async(testing_support::in_place(values));
    auto c = ranks[rank]->collective_async(third);
    ASSERT_TRUE(a && b && c);
    for (AsyncAllreduce* call : {&*c, &*b, &*a}) {
      const Report report = call->wait();
      EXPECT_EQ(report.status, Status::complete) << report.detail;
    }
    EXPECT_EQ(sums, scattered.out(rank));
    EXPECT_EQ(values, sum(kRanks, 4000));
    EXPECT_EQ(all, gathered.out(rank));
  });
}

TEST(Collectives, mismatch__names_the_difference_and_later_calls_match) {
  const Ranks ranks = connect(kRanks, Datapath::automatic);
  ASSERT_EQ(ranks.size(), kRanks);
  const Case usual{Collective::all_gather, {10, 10, 10, 10}};
  const auto run = [&](Rank rank, const CollectiveArguments& given) {
    Floats in(100), out(400);
    CollectiveArguments call = given;
    call.input = in.data(), call.output = out.data();
    return ranks[rank]->collective(call);
  };
  struct Odd {
    CollectiveArguments call;
    std::string difference;
  };
  const std::vector<Odd> odd = {
      {{.collective = Collective::gather, .count = 10}, "collective gather instead of all_gather"},
      {{.collective = Collective::all_gather, .count = 11}, "count 44 instead of 40"},
      {{.collective = Collective::all_gather, .counts = {9, 11, 10, 10}}, "hash of the counts"},
      {{.collective = Collective::all_gather, .count = 10, .type = DataType::int32}, "type int32"},
  };
  for (const Odd& one : odd) {
    on_all(kRanks, [&](Rank rank) {
      const auto report = run(rank, rank == 3 ? one.call : usual.arguments());
      ASSERT_TRUE(report);
      EXPECT_EQ(report->status, Status::mismatch) << report->detail;
      EXPECT_EQ(report->blamed, std::vector<Rank>{3});
      EXPECT_THAT(report->detail, HasSubstr(rank == 3 ? "this rank differs" : one.difference));
    });
  }
  on_all(kRanks, [&](Rank rank) { expect_complete(run(rank, usual.arguments())); });
}

TEST(Collectives, bad_arguments__are_named_and_later_calls_match) {
  const Ranks ranks = connect(2, Datapath::automatic);
  ASSERT_EQ(ranks.size(), 2u);
  Floats buffer(100);
  const auto refusal = [&](CollectiveArguments call) {
    std::string detail;
    on_all(2, [&](Rank rank) {
      CollectiveArguments good{.collective = Collective::broadcast, .count = 10};
      Floats mine(10);
      good.input = good.output = mine.data();
      const auto report = ranks[rank]->collective(rank == 0 ? call : good);
      ASSERT_TRUE(report);
      EXPECT_EQ(report->status, Status::aborted) << report->detail;
      EXPECT_EQ(report->abort_reason, AbortReason::argument);
      if (rank == 0) detail = report->detail;
    });
    return detail;
  };
  float* const data = buffer.data();
  EXPECT_EQ(refusal({.collective = Collective::all_gather,
                     .input = data,
                     .output = data + 50,
                     .counts = {1, 2, 3}}),
            "all_gather: 3 counts for 2 ranks: give one for each rank");
  EXPECT_EQ(refusal({.collective = Collective::broadcast,
                     .input = data,
                     .output = data,
                     .count = 10,
                     .root = 2}),
            "broadcast: root 2 of 2 ranks: give one below that");
  EXPECT_EQ(refusal({.collective = Collective::all_gather,
                     .input = data,
                     .output = data + 50,
                     .count = 10,
                     .root = 1}),
            "all_gather: root 1: it has no root; give 0");
  EXPECT_EQ(refusal({.collective = Collective::reduce_scatter, .output = data, .count = 10}),
            "reduce_scatter: the input buffer is null");
  EXPECT_THAT(
      refusal(
          {.collective = Collective::all_gather, .input = data + 5, .output = data, .count = 10}),
      HasSubstr("all_gather: input and output overlap"));
  EXPECT_EQ(refusal({.collective = Collective::reduce,
                     .input = data,
                     .output = data,
                     .count = 10,
                     .function = ReduceOp::bxor}),
            "reduce: bxor needs integers; the elements are float");
  EXPECT_THAT(refusal({.collective = Collective::allreduce, .input = data, .output = data}),
              HasSubstr("AllReduce has a call of its own"));
  on_all(2, [&](Rank rank) {
    Floats mine(10, static_cast<float>(rank));
    expect_complete(ranks[rank]->collective({.collective = Collective::broadcast,
                                             .input = mine.data(),
                                             .output = mine.data(),
                                             .count = 10,
                                             .root = 1}));
    EXPECT_EQ(mine, Floats(10, 1.0f));
  });
}

TEST(Collectives, one_rank__copies) {
  const Ranks ranks = connect(1, Datapath::automatic);
  ASSERT_EQ(ranks.size(), 1u);
  for (const Collective collective : kAll) {
    const Floats in = input(0, 100);
    Floats out(100);
    expect_complete(ranks[0]->collective(
        {.collective = collective, .input = in.data(), .output = out.data(), .count = 100}));
    EXPECT_EQ(out, in) << name(collective);
  }
}

TEST(Collectives, rank_that_leaves__is_named_by_those_that_owe_it_data) {
  for (const Collective collective : {Collective::broadcast, Collective::scatter}) {
    const Ranks ranks = connect(3, Datapath::automatic);
    ASSERT_EQ(ranks.size(), 3u);
    on_all(3, [&](Rank rank) {
      if (rank == 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        EXPECT_TRUE(ranks[rank]->close(20s));
        return;
      }
      Floats in(300), out(300);
      const auto report = ranks[rank]->collective({.collective = collective,
                                                   .input = in.data(),
                                                   .output = out.data(),
                                                   .count = 100,
                                                   .deadline = 20s});
      ASSERT_TRUE(report);
      if (rank == 1 && report->status == Status::complete) return;
      EXPECT_EQ(report->status, Status::peer_left) << name(collective) << ": " << report->detail;
      EXPECT_EQ(report->blamed, std::vector<Rank>{2});
    });
  }
}

TEST(Collectives, rank_that_does_not_come__is_named_at_the_deadline) {
  const Ranks ranks = connect(3, Datapath::automatic);
  ASSERT_EQ(ranks.size(), 3u);
  for (const Collective collective : kAll) {
    std::barrier together(2);
    on_all(3, [&](Rank rank) {
      if (rank == 2) return;
      Floats in(300), out(300);
      together.arrive_and_wait();
      const auto report = ranks[rank]->collective({.collective = collective,
                                                   .input = in.data(),
                                                   .output = out.data(),
                                                   .count = 100,
                                                   .deadline = 400ms});
      ASSERT_TRUE(report);
      // Rank 1 needs rank 2 only where there is no root: rank 0 is that.
      if (rank == 1 && has_root(collective) && report->status == Status::complete) return;
      EXPECT_EQ(report->status, Status::peer_late) << name(collective) << ": " << report->detail;
      EXPECT_EQ(report->late_ranks, std::vector<Rank>{2}) << name(collective);
    });
  }
}

}  // namespace
}  // namespace tarpon::collective_test
