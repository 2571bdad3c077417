// How a call ended, in JSON and in a line.
#include "tools/outcome.h"

#include <gtest/gtest.h>

namespace tarpon {
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

TEST(OutcomeText, lacking__the_ranks_that_most_is_lacking_of) {
  EXPECT_EQ(outcome_text(report_of(3)),
            "operation 7 of tag 2, stage result, 40.1 ms; of rank 2 came 800 of 1000 B, "
            "last heard 2.5 ms ago; of rank 1 came 900 of 1000 B, never heard");
  const std::string five = outcome_text(report_of(6));
  EXPECT_NE(five.find("; of rank 3 came 700"), std::string::npos) << five;
  EXPECT_EQ(five.find("rank 2"), std::string::npos) << five;
  EXPECT_NE(five.find("; less is lacking of 2 more"), std::string::npos) << five;
}

TEST(OutcomeText, late_and_evicted__what_was_fetched_and_missed) {
  Report report = report_of(1);
  report.status = Status::late_self;
  report.void_shards = {0, 2};
  report.bytes_fetched = 640;
  report.lost_fraction = 0.25;
  EXPECT_EQ(outcome_text(report),
            "operation 7 of tag 2, stage result, 40.1 ms; 25.0000 % of the contributions "
            "missing; nothing of the shard of rank 0, 2; 640 B fetched");
  report = report_of(1);
  report.status = Status::evicted;
  report.stage = CallStage::queued;
  report.first_missed = 5;
  report.operations_missed = 9;
  EXPECT_EQ(outcome_text(report),
            "operation 7 of tag 2, stage queued, 40.1 ms; 9 operations missed, from 5 on");
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
}  // namespace tarpon
