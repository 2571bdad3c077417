// Messages between two ranks, and all_to_all with counts, live on 127.0.0.1.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "collectives/collective.h"
#include "tests/support/live_job.h"
#include "transport/pair_tag.h"

namespace tarpon::message_test {
namespace {

using testing::HasSubstr;
using testing_support::connect;
using testing_support::expect_complete;
using testing_support::input;
using testing_support::on_all;
using testing_support::Ranks;
using Floats = std::vector<float>;

constexpr std::uint32_t kRanks = 4;

CollectiveArguments sends(const Floats& values, Rank to, std::uint32_t tag = 0) {
  return {.collective = Collective::send,
          .input = values.data(),
          .count = values.size(),
          .peer = to,
          .tag = tag};
}

CollectiveArguments receives(Floats& values, Rank from, std::uint32_t tag = 0) {
  return {.collective = Collective::receive,
          .output = values.data(),
          .count = values.size(),
          .peer = from,
          .tag = tag};
}

TEST(PairTag, encode__names_the_two_ranks_that_take_part) {
  const std::uint32_t tag = encode(PairTag{.sender = 63, .receiver = 5, .tag = 0xffff});
  const auto pair = pair_tag(tag);
  ASSERT_TRUE(pair);
  EXPECT_EQ(pair->sender, 63);
  EXPECT_EQ(pair->receiver, 5);
  EXPECT_EQ(pair->tag, 0xffff);
  EXPECT_EQ(ranks_of_tag(tag), std::uint64_t{1} << 63 | 1 << 5);
  EXPECT_FALSE(pair_tag(kFirstPairTag - 1));
  EXPECT_FALSE(pair_tag(kEndOfPairTags));
  EXPECT_EQ(ranks_of_tag(7), ~std::uint64_t{0});
}

TEST(Messages, sizes__arrive_unchanged_between_all_pairs) {
  const Ranks ranks = connect(kRanks, Datapath::automatic);
  ASSERT_EQ(ranks.size(), kRanks);
  on_all(kRanks, [&](Rank rank) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{300'000}}) {
      const Floats own = input(rank, count);
      std::vector<Floats> got(kRanks, Floats(count, -1.0f));
      std::vector<AsyncAllreduce> calls;
      for (Rank peer = 0; peer < kRanks; ++peer) {
        if (peer == rank) continue;
        auto sent = ranks[rank]->collective_async(sends(own, peer));
        auto taken = ranks[rank]->collective_async(receives(got[peer], peer));
        ASSERT_TRUE(sent && taken);
        calls.push_back(*sent);
        calls.push_back(*taken);
      }
      for (AsyncAllreduce& call : calls) {
        const Report report = call.wait();
        EXPECT_EQ(report.status, Status::complete) << report.detail;
      }
      for (Rank peer = 0; peer < kRanks; ++peer) {
        if (peer == rank) continue;
        EXPECT_EQ(got[peer], input(peer, count));
      }
    }
    EXPECT_TRUE(ranks[rank]->close(20s));
  });
}

TEST(Messages, order__by_sender_receiver_and_tag_apart_from_collectives) {
  const Ranks ranks = connect(3, Datapath::automatic);
  ASSERT_EQ(ranks.size(), 3u);
  on_all(3, [&](Rank rank) {
    if (rank == 2) return;
    constexpr std::uint32_t kMessages = 20;  // more than run at once
    std::vector<Floats> values(2 * kMessages, Floats(10));
    std::vector<AsyncAllreduce> calls;
    for (std::uint32_t i = 0; i < 2 * kMessages; ++i) {
      // The receiver takes the messages of tag 1 first.
      const std::uint32_t tag = rank == 0 ? i % 2 : i < kMessages ? 1 : 0;
      const std::uint32_t number = rank == 0 ? i / 2 : i % kMessages;
      if (rank == 0) values[i] = Floats(10, static_cast<float>(1000 * tag + number));
      auto call = ranks[rank]->collective_async(rank == 0 ? sends(values[i], 1, tag)
                                                          : receives(values[i], 0, tag));
      ASSERT_TRUE(call);
      calls.push_back(*call);
    }
    for (std::uint32_t i = 0; i < 2 * kMessages; ++i) {
      EXPECT_EQ(calls[i].wait().status, Status::complete);
      if (rank == 0) continue;
      const std::uint32_t tag = i < kMessages ? 1 : 0;
      EXPECT_EQ(values[i], Floats(10, static_cast<float>(1000 * tag + i % kMessages)));
    }
  });
  on_all(3, [&](Rank rank) {
    Floats values = input(rank, 100);
    expect_complete(ranks[rank]->allreduce(testing_support::in_place(values)));
    EXPECT_EQ(values, testing_support::sum(3, 100));
  });
}

TEST(Messages, tags__are_forgotten_when_both_ranks_are_done) {
  const Ranks ranks = connect(3, Datapath::automatic);
  ASSERT_EQ(ranks.size(), 3u);
  on_all(3, [&](Rank rank) {
    Floats values(10);
    for (std::uint32_t tag = 0; tag < 200 && rank != 2; ++tag) {
      expect_complete(
          ranks[rank]->collective(rank == 0 ? sends(values, 1, tag) : receives(values, 0, tag)));
    }
    // A rank that serves for ever would run into this deadline.
    const auto closed = ranks[rank]->close(20s);
    EXPECT_TRUE(closed) << closed.error().message;
  });
}

TEST(Messages, sizes_that_differ__are_a_mismatch_at_both_ranks) {
  const Ranks ranks = connect(3, Datapath::automatic);
  ASSERT_EQ(ranks.size(), 3u);
  on_all(2, [&](Rank rank) {
    Floats values(rank == 0 ? 10 : 11);
    const auto run = [&](Floats& of) {
      return ranks[rank]->collective(rank == 0 ? sends(of, 1) : receives(of, 0));
    };
    const auto report = run(values);
    ASSERT_TRUE(report);
    EXPECT_EQ(report->status, Status::mismatch) << report->detail;
    EXPECT_EQ(report->blamed, std::vector<Rank>{static_cast<Rank>(1 - rank)});
    EXPECT_THAT(report->detail,
                HasSubstr(rank == 0 ? "count 11 instead of 10" : "count 10 instead of 11"));
    Floats again(5);
    expect_complete(run(again));
  });
}

TEST(Messages, peer_that_does_not_come__is_named_at_the_deadline) {
  const Ranks ranks = connect(3, Datapath::automatic);
  ASSERT_EQ(ranks.size(), 3u);
  Floats values(10);
  for (CollectiveArguments call : {sends(values, 2), receives(values, 2)}) {
    call.deadline = 100ms;
    const auto report = ranks[0]->collective(call);
    ASSERT_TRUE(report);
    EXPECT_EQ(report->status, Status::peer_late) << report->detail;
    EXPECT_EQ(report->late_ranks, std::vector<Rank>{2});
  }
}

TEST(Messages, other_rank_that_leaves__does_not_matter) {
  const Ranks ranks = connect(3, Datapath::automatic);
  ASSERT_EQ(ranks.size(), 3u);
  ASSERT_TRUE(ranks[2]->close(20s));
  on_all(2, [&](Rank rank) {
    Floats values = input(0, 1000);
    expect_complete(ranks[rank]->collective(rank == 0 ? sends(values, 1) : receives(values, 0)));
  });
  Floats values(10);
  const auto report = ranks[0]->collective(sends(values, 2));
  ASSERT_TRUE(report);
  EXPECT_EQ(report->status, Status::peer_left) << report->detail;
  EXPECT_EQ(report->blamed, std::vector<Rank>{2});
}

TEST(Messages, impossible_peer_or_tag__is_an_error_that_takes_no_number) {
  const Ranks ranks = connect(2, Datapath::automatic);
  ASSERT_EQ(ranks.size(), 2u);
  Floats values(10);
  const auto error = [&](CollectiveArguments call) {
    const auto report = ranks[0]->collective(call);
    EXPECT_FALSE(report);
    return report ? std::string() : report.error().message;
  };
  EXPECT_EQ(error(sends(values, 0)), "send: peer 0 is this rank: copy the data instead");
  EXPECT_EQ(error(receives(values, 2)), "receive: peer 2 of 2 ranks: give one below that");
  EXPECT_EQ(error(sends(values, 1, 65536)), "send: tag 65536: give a tag below 65536");
  EXPECT_EQ(ranks[0]->probe(65536, 20s).error().message,
            "probe: tag 65536: give a tag below 65536");
  on_all(2, [&](Rank rank) {
    expect_complete(ranks[rank]->collective(rank == 0 ? sends(values, 1) : receives(values, 0)));
  });
}

TEST(Messages, refused__ends_at_both_ranks_and_later_messages_match) {
  const Ranks ranks = connect(2, Datapath::automatic);
  ASSERT_EQ(ranks.size(), 2u);
  on_all(2, [&](Rank rank) {
    Floats values(10);
    CollectiveArguments call = rank == 0 ? sends(values, 1) : receives(values, 0);
    if (rank == 0) call.input = nullptr;
    const auto report = ranks[rank]->collective(call);
    ASSERT_TRUE(report);
    EXPECT_EQ(report->status, Status::aborted) << report->detail;
    EXPECT_THAT(report->detail, HasSubstr(rank == 0 ? "send: the input buffer is null"
                                                    : "rank 0 refused the call"));
    expect_complete(ranks[rank]->collective(rank == 0 ? sends(values, 1) : receives(values, 0)));
  });
}

TEST(Messages, abort__ends_a_message_and_a_probe_at_once) {
  const Ranks ranks = connect(3, Datapath::automatic);
  ASSERT_EQ(ranks.size(), 3u);
  on_all(3, [&](Rank rank) {
    if (rank == 2) {
      std::this_thread::sleep_for(50ms);
      return ranks[rank]->abort("test");
    }
    if (rank == 1) {
      const auto sender = ranks[rank]->probe(0, 20s);
      ASSERT_FALSE(sender);
      EXPECT_EQ(sender.error().code, Error::Code::unavailable);
      return;
    }
    Floats values(10);
    const auto report = ranks[rank]->collective(receives(values, 1));
    ASSERT_TRUE(report);
    EXPECT_EQ(report->status, Status::aborted);
    EXPECT_EQ(report->blamed, std::vector<Rank>{2});
  });
}

TEST(Messages, probe__finds_the_sender_of_a_tag) {
  const Ranks ranks = connect(3, Datapath::automatic);
  ASSERT_EQ(ranks.size(), 3u);
  on_all(3, [&](Rank rank) {
    Floats values(1000, static_cast<float>(rank));
    if (rank != 0) return expect_complete(ranks[rank]->collective(sends(values, 0, 9)));
    EXPECT_EQ(ranks[0]->probe(8, 1ms).error().code, Error::Code::timeout);
    std::uint64_t seen = 0;
    for (int i = 0; i < 2; ++i) {
      const auto sender = ranks[0]->probe(9, 20s);
      ASSERT_TRUE(sender) << sender.error().message;
      seen |= std::uint64_t{1} << *sender;
      expect_complete(ranks[0]->collective(receives(values, *sender, 9)));
      EXPECT_EQ(values, Floats(1000, static_cast<float>(*sender)));
    }
    EXPECT_EQ(seen, 6u);
  });
}

// -- all_to_all with counts

std::uint64_t exchanged(Rank from, Rank to) {
  return (from + 2u * to) % 3 * 7000;
}

struct Exchange {
  explicit Exchange(Rank rank) {
    for (Rank peer = 0; peer < kRanks; ++peer) {
      call.counts.push_back(exchanged(rank, peer));
      call.output_counts.push_back(exchanged(peer, rank));
      in.insert(in.end(), call.counts.back(), static_cast<float>(10 * rank + peer));
      wanted.insert(wanted.end(), call.output_counts.back(), static_cast<float>(10 * peer + rank));
    }
    out.assign(wanted.size(), -1.0f);
    call.collective = Collective::all_to_all;
    call.input = in.data();
    call.output = out.data();
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  Floats in, out, wanted;
  CollectiveArguments call;
};

TEST(AllToAllByCounts, parts__of_each_pair_arrive) {
  const Ranks ranks = connect(kRanks, Datapath::automatic);
  ASSERT_EQ(ranks.size(), kRanks);
  on_all(kRanks, [&](Rank rank) {
    Exchange exchange(rank);
    expect_complete(ranks[rank]->collective(exchange.call));
    EXPECT_EQ(exchange.out, exchange.wanted);
  });
}

TEST(AllToAllByCounts, counts_that_differ__are_a_mismatch_with_both_counts) {
  const Ranks ranks = connect(kRanks, Datapath::automatic);
  ASSERT_EQ(ranks.size(), kRanks);
  std::vector<std::string> details(kRanks);
  on_all(kRanks, [&](Rank rank) {
    Exchange exchange(rank);
    if (rank == 1) {
      exchange.call.counts[2] += 5;
      exchange.in.resize(exchange.in.size() + 5);
      exchange.call.input = exchange.in.data();
    }
    const auto report = ranks[rank]->collective(exchange.call);
    ASSERT_TRUE(report);
    const bool of_pair = rank == 1 || rank == 2;
    if (of_pair || report->status != Status::complete) {
      EXPECT_EQ(report->status, Status::mismatch) << report->detail;
    }
    details[rank] = report->detail;
    Exchange again(rank);
    expect_complete(ranks[rank]->collective(again.call));
    EXPECT_EQ(again.out, again.wanted);
  });
  const std::string both = details[1] + details[2];
  EXPECT_THAT(both,
              testing::AnyOf(HasSubstr("sends 14005 elements to this rank, which takes 14000"),
                             HasSubstr("takes 14000 elements from this rank, which sends 14005")))
      << details[1] << "; " << details[2];
}

TEST(AllToAllByCounts, bad_arguments__are_named) {
  const Ranks ranks = connect(2, Datapath::automatic);
  ASSERT_EQ(ranks.size(), 2u);
  Floats buffer(100);
  const auto refusal = [&](CollectiveArguments call) {
    std::string detail;
    on_all(2, [&](Rank rank) {
      Floats in(2), out(2);
      const auto report = ranks[rank]->collective(
          rank == 0 ? call
                    : CollectiveArguments{.collective = Collective::all_to_all,
                                          .input = in.data(),
                                          .output = out.data(),
                                          .counts = {1, 1},
                                          .output_counts = {1, 1}});
      ASSERT_TRUE(report);
      EXPECT_EQ(report->status, Status::aborted) << report->detail;
      if (rank == 0) detail = report->detail;
    });
    return detail;
  };
  float* const data = buffer.data();
  CollectiveArguments call{
      .collective = Collective::all_to_all, .input = data, .output = data + 50, .counts = {1, 2}};
  EXPECT_EQ(refusal(call), "all_to_all: 0 output_counts for 2 ranks: give one for each rank");
  call.output_counts = {1, 1};
  call.output = data;
  EXPECT_THAT(refusal(call), HasSubstr("all_to_all: input and output overlap"));
  call.output = data + 50;
  call.output_counts = {2, 1};
  EXPECT_EQ(refusal(call),
            "all_to_all: rank 0 keeps 1 elements for itself, and takes 2: give one number");
  call = {.collective = Collective::all_gather,
          .input = data,
          .output = data + 50,
          .count = 1,
          .output_counts = {1, 1}};
  EXPECT_EQ(refusal(call), "all_gather: it takes no output_counts");
}

}  // namespace
}  // namespace tarpon::message_test
