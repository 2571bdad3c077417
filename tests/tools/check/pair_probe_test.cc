// The verdict of `tarpon check` on one pair, and its reason.
#include "tools/check/pair_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

namespace tarpon::pair_probe_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

PairProbe working_pair() {
  PairProbe pair;
  pair.from = 2;
  pair.to = 5;
  pair.sent = pair.arrived = pair.answered = 20;
  pair.small_sent = pair.small_arrived = pair.small_answered = 20;
  pair.flood_sent = pair.flood_arrived = 1000;
  return pair;
}

TEST(PairProbeTest, good__a_few_lost_probes_are_no_fault) {
  PairProbe pair = working_pair();
  EXPECT_TRUE(pair.good());
  pair.arrived = pair.answered = 18;
  EXPECT_TRUE(pair.good());
  pair.arrived = pair.answered = 17;
  EXPECT_FALSE(pair.good());
  pair.sent = 1000;
  pair.arrived = pair.answered = 951;
  EXPECT_TRUE(pair.good());
  pair.arrived = pair.answered = 950;
  EXPECT_FALSE(pair.good());
  EXPECT_FALSE(PairProbe().good());
}

TEST(PairProbeTest, flood_loss__without_the_receivers_overruns) {
  PairProbe pair = working_pair();
  EXPECT_EQ(pair.flood_loss(), 0);
  pair.flood_arrived = 900;
  EXPECT_NEAR(pair.flood_loss(), 0.1, 1e-12);
  pair.flood_overrun = 75;
  EXPECT_NEAR(pair.flood_loss(), 0.025, 1e-12);
  pair.flood_arrived = 1100;  // duplicates
  EXPECT_EQ(pair.flood_loss(), 0);
  EXPECT_EQ(PairProbe().flood_loss(), 0);
}

TEST(PairProbeTest, fragments__of_the_flood_are_told_from_those_of_other_traffic) {
  PairProbe pair = working_pair();
  EXPECT_FALSE(pair.cut_to_fragments());
  pair.fragmented = 100;
  EXPECT_FALSE(pair.cut_to_fragments());
  pair.fragmented = 1000;
  EXPECT_TRUE(pair.cut_to_fragments());
  EXPECT_THAT(fragments_warning(pair, "vx0", 1450),
              AllOf(HasSubstr("the host of rank 2 cut 1000 packets to rank 5"),
                    HasSubstr("smaller MTU than 1450; lower the MTU of vx0")));
}

TEST(PairProbeTest, flooded__only_where_the_pair_works) {
  PairProbe pair = working_pair();
  EXPECT_TRUE(pair.flooded());
  pair.answered = 0;
  EXPECT_FALSE(pair.flooded());
  pair.answered = 20;
  pair.flood_sent = 0;
  EXPECT_FALSE(pair.flooded());
}

constexpr PairPlaces kPlaces{.mtu = 9000, .from_port = 4790, .to_port = 4791};

TEST(LikelyCause, likely_cause__names_the_remedy) {
  PairProbe pair = working_pair();
  pair.arrived = pair.answered = 10;
  EXPECT_EQ(likely_cause(pair, kPlaces), "10 of 20 probes were lost: a congested or faulty link");
  pair.answered = pair.small_answered = 0;
  EXPECT_THAT(likely_cause(pair, kPlaces),
              HasSubstr("no reply comes back: UDP from rank 5 to rank 2 is blocked"));
  pair.arrived = 0;
  EXPECT_THAT(likely_cause(pair, kPlaces),
              AllOf(HasSubstr("small packets pass, full ones do not"), HasSubstr("below 9000")));
  pair.small_arrived = 0;
  EXPECT_THAT(likely_cause(pair, kPlaces),
              HasSubstr("nothing arrives: open UDP to rank 5 (port 4791 in this run)"));
}

TEST(LikelyCause, likely_cause__tells_the_senders_firewall_from_the_receivers) {
  PairProbe pair = working_pair();
  pair.arrived = pair.answered = pair.small_arrived = pair.small_answered = 0;
  pair.send_error = EPERM;
  EXPECT_THAT(likely_cause(pair, kPlaces),
              HasSubstr("the host of rank 2 itself refuses to send (Operation not permitted): open "
                        "outgoing UDP to rank 5 (port 4791 in this run) in its own firewall"));
  pair.send_error = EMSGSIZE;
  pair.small_arrived = 20;
  EXPECT_THAT(likely_cause(pair, kPlaces), HasSubstr("its route's MTU is below 9000"));
  pair.send_error = ENETUNREACH;
  EXPECT_THAT(likely_cause(pair, kPlaces), HasSubstr("mend its route to rank 5"));
  pair = working_pair();
  pair.answered = pair.small_answered = 0;
  pair.reply_error = EPERM;
  EXPECT_THAT(likely_cause(pair, kPlaces),
              HasSubstr("no reply comes back: the host of rank 5 itself refuses to send (Operation "
                        "not permitted): open outgoing UDP to rank 2 (port 4790 in this run)"));
  // An error of single packets is no block.
  pair = working_pair();
  pair.send_error = EPERM;
  pair.arrived = pair.answered = 10;
  EXPECT_THAT(likely_cause(pair, kPlaces), HasSubstr("10 of 20 probes were lost"));
}

TEST(LikelyCause, likely_cause__small_replies_alone_are_a_matter_of_the_mtu) {
  PairProbe pair = working_pair();
  pair.answered = 0;
  EXPECT_THAT(likely_cause(pair, kPlaces), HasSubstr("the MTU of the path from rank 5 to rank 2 is "
                                                     "below 9000"));
}

}  // namespace
}  // namespace tarpon::pair_probe_test
