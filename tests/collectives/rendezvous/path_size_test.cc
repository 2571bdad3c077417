// The size of slots from counts of probes: without network and clock.
#include "collectives/rendezvous/path_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "transport/random.h"

namespace tarpon::rendezvous::path_size_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<RankInfo> ranks(std::size_t count, std::uint32_t mtu = 1500) {
  std::vector<RankInfo> result(count);
  for (std::size_t rank = 0; rank < count; ++rank) {
    result[rank].host = "host" + std::to_string(rank);
    result[rank].address = "10.0.0." + std::to_string(rank + 1);
    result[rank].mtu = mtu;
  }
  return result;
}

/// `carried` and everything smaller arrived 6 times.
std::vector<std::uint32_t> from_on(const std::vector<std::uint32_t>& candidates,
                                   std::uint32_t carried) {
  std::vector<std::uint32_t> counts;
  for (const std::uint32_t slot : candidates) counts.push_back(slot <= carried ? 6 : 0);
  return counts;
}

TEST(PathSizeTest, path_candidates__descend_from_the_full_size_in_steps_of_64) {
  for (const std::uint32_t full : {8896u, 1408u, 1344u, 512u, TARPON_MIN_PAYLOAD}) {
    const auto candidates = path_candidates(full);
    EXPECT_EQ(candidates.front(), full);
    EXPECT_EQ(candidates.back(), 0u);
    EXPECT_TRUE(std::is_sorted(candidates.rbegin(), candidates.rend()));
    EXPECT_EQ(std::adjacent_find(candidates.begin(), candidates.end()), candidates.end());
    EXPECT_EQ(candidates[candidates.size() - 2], TARPON_MIN_PAYLOAD);
    for (const std::uint32_t slot : candidates) EXPECT_EQ(slot % 64, 0u);
  }
}

TEST(PathSizeTest, path_candidates__fill_the_usual_mtus) {
  const auto candidates = path_candidates(8896);
  for (const std::uint32_t mtu : {9001u, 8896u, 8500u, 3900u, 1500u, 1460u, 1400u, 1280u, 576u}) {
    const auto fits = std::find_if(candidates.begin(), candidates.end(),
                                   [&](std::uint32_t slot) { return packet_bytes(slot) <= mtu; });
    EXPECT_GT(packet_bytes(*fits) + 64, std::min(mtu, packet_bytes(8896))) << mtu;
  }
}

TEST(PathSizeTest, decode_path_report__inverts_encode) {
  for (const char* error : {"", "Operation not permitted"}) {
    const PathReport report{{{0, 3, {0, 1, 2}}, {2, 3, {0, 0, 4000000000u}}}, error};
    const auto decoded = decode_path_report(encode(report), 3, 4, 3);
    ASSERT_TRUE(decoded) << decoded.error().message;
    EXPECT_EQ(*decoded, report);
  }
  EXPECT_EQ(*decode_path_report("", 3, 4, 3), PathReport{});
  EXPECT_EQ(decode_path_report("!\x1b[2J\n", 3, 4, 3)->send_error, "?[2J");
}

TEST(PathSizeTest, decode_path_report__refuses_what_is_none) {
  for (const char* text :
       {"4 0 0 0\n", "3 0 0 0\n", "0 0 0\n", "0 0 0 0 0\n", "0 0 0 x\n", "x\n", "0 0 0 -1\n",
        "0 0 0 0\n1 0 0 0\n2 0 0 0\n0 0 0 0\n", "\n", "0 1 0 0\n", "!a\n!b\n", "0 0 0 0\n!a\n"}) {
    const auto decoded = decode_path_report(text, 3, 4, 3);
    ASSERT_FALSE(decoded) << text;
    EXPECT_THAT(decoded.error().message, HasSubstr("rank 3"));
  }
}

using Counts = std::vector<std::uint32_t>;

const std::vector<std::string> kNoErrors(3);

TEST(PathSizeTest, judge__without_loss_one_round_is_enough) {
  EXPECT_EQ(judge(Counts{0, 0, 6, 6, 6}, Counts{8, 6, 6, 6, 6}), (PathVerdict{2, true}));
  EXPECT_EQ(judge(Counts{1, 0, 0, 0, 0}, Counts{8, 6, 6, 6, 6}), (PathVerdict{0, true}));
  // Duplicates.
  EXPECT_EQ(judge(Counts{0, 0, 9, 6, 12}, Counts{8, 6, 6, 6, 6}), (PathVerdict{2, true}));
}

TEST(PathSizeTest, judge__at_much_loss_more_rounds_are_needed) {
  EXPECT_EQ(judge(Counts{0, 3, 4, 2, 3}, Counts{8, 6, 6, 6, 6}), (PathVerdict{1, false}));
  EXPECT_EQ(judge(Counts{0, 17, 16, 17, 16}, Counts{26, 24, 24, 24, 24}), (PathVerdict{1, true}));
}

TEST(PathSizeTest, judge__where_nothing_arrives_nothing_is_certain) {
  EXPECT_EQ(judge(Counts{0, 0, 0}, Counts{26, 24, 24}), (PathVerdict{std::nullopt, false}));
  EXPECT_EQ(judge(Counts{0, 0, 0}, Counts{2, 0, 0}), (PathVerdict{std::nullopt, false}));
}

TEST(PathSizeTest, judge__takes_no_chance_for_a_small_path) {
  Random random(20);
  const std::size_t sizes = path_candidates(1408).size();
  int wrong = 0;
  constexpr int kPairs = 20'000;
  constexpr double kLoss = 0.3;
  for (int pair = 0; pair < kPairs; ++pair) {
    Counts arrived(sizes), sent(sizes);
    PathVerdict verdict;
    for (int round = 0; round < 4 && !verdict.certain; ++round) {
      for (std::size_t size = 0; size < sizes; ++size) {
        for (int i = 0; i < 6; ++i) arrived[size] += random.chance(1 - kLoss) ? 1 : 0;
        sent[size] += 6;
      }
      verdict = judge(arrived, sent);
    }
    wrong += verdict.carried != std::size_t{0};
  }
  EXPECT_EQ(wrong, 0) << "of " << kPairs;
}

TEST(PathSizeTest, decide__full_packets_everywhere_need_no_word) {
  const auto size = decide(path_candidates(1408), {}, ranks(3), kNoErrors);
  ASSERT_TRUE(size);
  EXPECT_EQ(size->slot_bytes, 1408u);
  EXPECT_EQ(size->reason, "");
}

TEST(PathSizeTest, decide__names_the_pair_that_carries_least) {
  const auto candidates = path_candidates(1408);
  const auto size =
      decide(candidates, {{0, 2, from_on(candidates, 1344)}, {1, 2, from_on(candidates, 1280)}},
             ranks(3), kNoErrors);
  ASSERT_TRUE(size) << size.error().message;
  EXPECT_EQ(size->slot_bytes, 1280u);
  EXPECT_EQ(size->reason,
            "slots shrink to 1280 bytes: rank 1 -> rank 2 carries packets of 1372 bytes and none "
            "of 1436 (interface MTU 1500); 1 more pair carries no full packets");
}

TEST(PathSizeTest, decide__the_smallest_slot_still_works) {
  const auto candidates = path_candidates(8896);
  const auto size = decide(candidates, {{2, 0, from_on(candidates, TARPON_MIN_PAYLOAD)}},
                           ranks(3, 9001), kNoErrors);
  ASSERT_TRUE(size) << size.error().message;
  EXPECT_EQ(size->slot_bytes, TARPON_MIN_PAYLOAD);
  EXPECT_THAT(size->reason, HasSubstr("rank 2 -> rank 0 carries packets of 540 bytes"));
}

TEST(PathSizeTest, decide__below_the_smallest_slot_it_is_an_error) {
  const auto candidates = path_candidates(1408);
  const auto size = decide(candidates, {{2, 0, from_on(candidates, 0)}}, ranks(3), kNoErrors);
  ASSERT_FALSE(size);
  EXPECT_EQ(size.error().code, Error::Code::unavailable);
  EXPECT_THAT(size.error().message,
              AllOf(HasSubstr("rank 2 (host2, 10.0.0.3) -> rank 0 (host0, 10.0.0.1): only packets "
                              "below 540 bytes arrive"),
                    HasSubstr("MTU of 576"), HasSubstr("raise the path's MTU"),
                    HasSubstr("`tarpon check`")));
}

TEST(PathSizeTest, decide__where_nothing_arrives_it_is_a_block) {
  const auto candidates = path_candidates(1408);
  const Counts nothing(candidates.size());
  const auto size =
      decide(candidates, {{0, 1, nothing}, {0, 2, from_on(candidates, 1280)}, {1, 0, nothing}},
             ranks(3), kNoErrors);
  ASSERT_FALSE(size);
  EXPECT_THAT(size.error().message,
              AllOf(HasSubstr("rank 0 (host0, 10.0.0.1) -> rank 1 (host1, 10.0.0.2): nothing "
                              "arrives (1 more pair alike): open UDP to rank 1 in its firewall"),
                    Not(HasSubstr("MTU"))));
}

TEST(PathSizeTest, decide__where_the_sender_is_blocked_its_kernel_has_said_so) {
  const auto candidates = path_candidates(1408);
  const auto size = decide(candidates, {{2, 1, Counts(candidates.size())}}, ranks(3),
                           {"of another rank", "", "Operation not permitted"});
  ASSERT_FALSE(size);
  EXPECT_THAT(size.error().message,
              AllOf(HasSubstr("nothing arrives: rank 2 cannot send: Operation not permitted"),
                    Not(HasSubstr("rank 1 in its firewall"))));
}

}  // namespace
}  // namespace tarpon::rendezvous::path_size_test
