// The verdict of `tarpon check` on one pair, and its reason.
#include "tools/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tarpon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

PairProbe working_pair() {
  PairProbe pair;
  pair.from = 2;
  pair.to = 5;
  pair.sent = pair.arrived = pair.answered = 20;
  pair.small_sent = pair.small_arrived = 20;
  pair.blast_sent = pair.blast_arrived = 1000;
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

TEST(PairProbeTest, blast_loss__without_the_receivers_overruns) {
  PairProbe pair = working_pair();
  EXPECT_EQ(pair.blast_loss(), 0);
  pair.blast_arrived = 900;
  EXPECT_NEAR(pair.blast_loss(), 0.1, 1e-12);
  pair.blast_overrun = 75;
  EXPECT_NEAR(pair.blast_loss(), 0.025, 1e-12);
  pair.blast_arrived = 1100;  // duplicates
  EXPECT_EQ(pair.blast_loss(), 0);
  EXPECT_EQ(PairProbe().blast_loss(), 0);
}

TEST(LikelyCause, likely_cause__names_the_remedy) {
  PairProbe pair = working_pair();
  pair.arrived = pair.answered = 10;
  EXPECT_EQ(likely_cause(pair, 1500, 4791),
            "10 of 20 probes were lost: a congested or faulty link");
  pair.answered = 0;
  EXPECT_THAT(likely_cause(pair, 1500, 4791),
              HasSubstr("no reply comes back: UDP from rank 5 to rank 2 is blocked"));
  pair.arrived = 0;
  EXPECT_THAT(likely_cause(pair, 9000, 4791),
              AllOf(HasSubstr("small packets pass, full ones do not"), HasSubstr("below 9000")));
  pair.small_arrived = 0;
  EXPECT_THAT(likely_cause(pair, 1500, 4791),
              HasSubstr("nothing arrives: open UDP to rank 5 (port 4791 in this run)"));
}

}  // namespace
}  // namespace tarpon
