// A report in one line.
#include "collectives/report_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tarpon::report_text_test {
namespace {

/// Of each rank r > 0, r times 100 of 1000 bytes are missing.
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
    if (rank > 1) peer.last_heard = 2500us;
  }
  return report;
}

TEST(ReportText, to_string__status_detail_and_progress) {
  Report report = report_of(2);
  report.detail = "9 % of the contributions are missing";
  EXPECT_EQ(to_string(report),
            "partial: operation 7 of tag 2, stage result, 40.1 ms; rank 1: 900 of 1000 B received, "
            "never heard");
  report = report_of(1);
  report.status = Status::peer_late;
  report.detail = "rank 1 did not begin";
  EXPECT_EQ(to_string(report),
            "peer_late: rank 1 did not begin (operation 7 of tag 2, stage result, 40.1 ms)");
}

TEST(ReportText, to_string__complete_with_a_detail) {
  Report report = report_of(1);
  report.status = Status::complete;
  const std::string usual = to_string(report);
  report.detail = "shares stay as they were";
  EXPECT_EQ(to_string(report), usual + "; shares stay as they were");
}

TEST(ReportText, progress_text__the_ranks_with_the_most_missing_data) {
  EXPECT_EQ(progress_text(report_of(3)),
            "operation 7 of tag 2, stage result, 40.1 ms; rank 2: 800 of 1000 B received, "
            "last heard 2.5 ms ago; rank 1: 900 of 1000 B received, never heard");
  const std::string five = progress_text(report_of(6));
  EXPECT_NE(five.find("; rank 3: 700"), std::string::npos) << five;
  EXPECT_EQ(five.find("rank 2"), std::string::npos) << five;
  EXPECT_NE(five.find("; data of 2 other ranks is missing too"), std::string::npos) << five;
}

TEST(ReportText, errors_text__each_error_once_with_its_ranks) {
  EXPECT_EQ(errors_text({"", ""}), "");
  EXPECT_EQ(errors_text({"no memory", "", "no memory", "no such file"}),
            "ranks 0, 2: no memory; rank 3: no such file");
}

TEST(ReportText, progress_text__what_was_fetched_and_missed) {
  Report report = report_of(1);
  report.status = Status::late_self;
  report.void_shards = {0, 2};
  report.bytes_fetched = 640;
  report.lost_fraction = 0.25;
  EXPECT_EQ(progress_text(report),
            "operation 7 of tag 2, stage result, 40.1 ms; 25.0000 % of the contributions "
            "missing; nothing of the shard of ranks 0, 2; 640 B fetched");
  report = report_of(1);
  report.status = Status::evicted;
  report.stage = CallStage::queued;
  report.first_missed = 5;
  report.operations_missed = 9;
  EXPECT_EQ(progress_text(report),
            "operation 7 of tag 2, stage queued, 40.1 ms; 9 operations missed, from 5 on");
}

TEST(ReportText, progress_text__a_pause_of_this_rank_that_counts) {
  Report report = report_of(1);
  report.paused = 99ms;
  const std::string usual = progress_text(report);
  report.paused = 5900ms;
  EXPECT_EQ(progress_text(report),
            "operation 7 of tag 2, stage result, 40.1 ms; this rank stood still for 5900.0 ms of "
            "it" +
                usual.substr(usual.find("40.1 ms") + 7));
  report.held = 10200us;
  EXPECT_THAT(to_string(report),
              testing::HasSubstr("; waited 10.2 ms beyond its bound for live ranks"));
}

}  // namespace
}  // namespace tarpon::report_text_test
