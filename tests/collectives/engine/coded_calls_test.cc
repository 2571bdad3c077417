// Evidence for the codec from calls that have ended.
#include "collectives/engine/coded/coded_calls.h"

#include <gtest/gtest.h>

namespace tarpon::coded_calls_test {
namespace {

/// The evidence of a call of 4 MiB, which takes 0.8 ms to code, that lost 30 %.
CallEvidence evidence_of(Duration bound, std::vector<Rank> late = {}) {
  CodedCalls calls({.encoding = {.world = 2, .slot_bytes = 512}, .mechanisms = {}});
  PendingCall call;
  call.arguments.count = 1 << 20;
  call.report.status = Status::partial;
  call.report.mode = Mode::bounded;
  call.report.bound = bound;
  call.report.lost_fraction = 0.3;
  call.report.late_ranks = std::move(late);
  calls.note_ended(call);
  const std::vector<CallEvidence> evidence = calls.take_evidence();
  EXPECT_EQ(evidence.size(), 1u);
  return evidence.front();
}

TEST(CodedCallsTest, note_ended__a_call_that_is_too_short_to_be_coded_tells_no_loss) {
  EXPECT_EQ(evidence_of(10ms).lost, 0.3);
  EXPECT_EQ(evidence_of(2ms).lost, 0.3);
  EXPECT_EQ(evidence_of(1ms).lost, std::nullopt);
}

TEST(CodedCallsTest, note_ended__a_call_with_a_late_rank_tells_no_loss) {
  EXPECT_EQ(evidence_of(10ms, {1}).lost, std::nullopt);
}

}  // namespace
}  // namespace tarpon::coded_calls_test
