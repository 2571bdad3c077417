// How a call ended, in JSON.
#include "tools/job/outcome.h"

#include <gtest/gtest.h>

namespace tarpon::outcome_test {
namespace {

/// Of rank r > 0 lack r times 100 bytes of 1000.
Report report_of(std::size_t ranks) {
  Report report;
  report.status = Status::partial;
  report.operation = 7;
  report.tag = 2;
  report.stage = CallStage::result;
  report.elapsed = 40100us;
  report.peers.resize(ranks);
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    PeerReport& peer = report.peers[rank];
    peer.bytes_expected = {600, 400};
    peer.bytes_received = {600 - 100 * rank, 400};
    peer.contributors = 0b101;
    if (rank > 1) peer.last_heard = 2500us;
  }
  return report;
}

TEST(OutcomeJson, fields__of_the_call_and_of_each_rank) {
  const nlohmann::json json = outcome_json(report_of(3));
  EXPECT_EQ(json["status"], "partial");
  EXPECT_EQ(json["operation"], 7);
  EXPECT_EQ(json["stage"], "result");
  EXPECT_EQ(json["elapsed_us"], 40100.0);
  ASSERT_EQ(json["peers"].size(), 3u);
  EXPECT_EQ(json["peers"][2]["bytes_expected"], nlohmann::json({600, 400}));
  EXPECT_EQ(json["peers"][2]["bytes_received"], nlohmann::json({400, 400}));
  EXPECT_EQ(json["peers"][2]["contributors"], nlohmann::json({0, 2}));
  EXPECT_EQ(json["peers"][2]["last_heard_us"], 2500.0);
  EXPECT_TRUE(json["peers"][1]["last_heard_us"].is_null());
}

}  // namespace
}  // namespace tarpon::outcome_test
