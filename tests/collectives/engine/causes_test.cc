// Each reason why contributions are missing appears in the report under its own name.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/support/simulated_job.h"

namespace tarpon::testing_support::causes_test {
namespace {

using Ranks = std::vector<Rank>;

constexpr std::uint16_t kRanks = 4;
constexpr std::uint64_t kCount = 4096;       // 8 slots of 128 elements in a shard
constexpr double kSlot = 1.0 / (4 * 8 * 4);  // one contribution in one slot, of all
constexpr double kShard = 1.0 / 4;           // all contributions in one shard
constexpr Duration kBound = 20ms;

/// Which DATA is disturbed.
struct Disturbed {
  std::uint32_t stage = 0;  // 0: scatter, 1: gather
  std::uint32_t first_slot = 0;
  std::uint32_t end_slot = 0;
  Duration delay{};  // 0: it is lost
  Rank to = 0;
  Rank from = 1;
};

class Disturbance : public SimulatedTraffic {
 public:
  explicit Disturbance(std::vector<Disturbed> all) : all_(std::move(all)) {}

  Route route(Time now, Rank from, Rank to, std::span<const std::byte> packet) override {
    tarpon_header header;
    std::memcpy(&header, packet.data(), sizeof header);
    for (const Disturbed& which : all_) {
      const bool meant = from == which.from && to == which.to && header.type == TARPON_DATA &&
                         tarpon_stage(&header) == which.stage && header.slot >= which.first_slot &&
                         header.slot < which.end_slot;
      if (!meant) continue;
      if (which.delay == Duration::zero()) return {.lost = "test"};
      return {.lost = {}, .not_before = now + which.delay};
    }
    return {};
  }
  void ended(Time, Rank, Rank, std::span<const std::byte>, std::string_view) override {}

 private:
  std::vector<Disturbed> all_;
};

/// One bounded call of four ranks that ask for nothing again.
class CausesTest : public testing::Test {
 protected:
  CausesTest()
      : job_({.ranks = kRanks, .mechanisms = {.repair = false, .scatter_repair = false}}),
        buffers_(kRanks, kCount, false) {
    job_.run_for(1us);  // the network's clock follows
  }

  void submit(Rank rank) {
    auto arguments = buffers_.arguments(rank, DataType::float32, ReduceOp::sum);
    arguments.mode = Mode::bounded;
    arguments.bound = kBound;
    arguments.deadline = 4s;
    calls_[rank] = job_.submit(rank, arguments);
  }

  void run_disturbed(const Disturbed& which) { run_disturbed(std::vector<Disturbed>{which}); }

  void run_disturbed(const std::vector<Disturbed>& all) {
    Disturbance disturbance(all);
    job_.network().watch(&disturbance);
    for (Rank rank = 0; rank < kRanks; ++rank) submit(rank);
    ASSERT_TRUE(job_.finish());
    job_.network().watch(nullptr);
  }

  /// The causes at `rank` are these and no others, and account for all that is missing.
  void expect_causes(Rank rank, const LossCauses& expected) {
    const Report& report = calls_[rank]->report;
    SCOPED_TRACE(testing::Message() << "rank " << rank << ": " << report.detail);
    EXPECT_NEAR(report.causes.cut, expected.cut, 1e-12);
    EXPECT_NEAR(report.causes.network, expected.network, 1e-12);
    EXPECT_NEAR(report.causes.at_owner, expected.at_owner, 1e-12);
    EXPECT_NEAR(report.causes.late_ranks, expected.late_ranks, 1e-12);
    EXPECT_NEAR(report.causes.void_shards, expected.void_shards, 1e-12);
    EXPECT_NEAR(expected.of_network() + expected.late_ranks + expected.void_shards,
                report.lost_fraction, 1e-12);
  }

  SimulatedJob job_;
  Buffers<float> buffers_;
  std::array<std::shared_ptr<PendingCall>, kRanks> calls_;
};

TEST_F(CausesTest, network__later_packets_of_the_scatter_came) {
  run_disturbed({.stage = 0, .first_slot = 2, .end_slot = 4});
  expect_causes(0, {.network = 2 * kSlot});
}

TEST_F(CausesTest, network__a_slot_of_the_gather_is_lost_with_all_its_contributions) {
  run_disturbed({.stage = 1, .first_slot = 2, .end_slot = 3});
  expect_causes(0, {.network = kRanks * kSlot});
  for (const Rank rank : Ranks{1, 2, 3}) expect_causes(rank, {});
}

TEST_F(CausesTest, at_owner__the_others_lack_what_the_owner_lacked) {
  run_disturbed({.stage = 0, .first_slot = 2, .end_slot = 4});
  for (const Rank rank : Ranks{1, 2, 3}) expect_causes(rank, {.at_owner = 2 * kSlot});
}

TEST_F(CausesTest, cut__the_end_of_a_message_had_not_come_by_the_bound) {
  run_disturbed({.stage = 1, .first_slot = 5, .end_slot = 8, .delay = 2 * kBound});
  expect_causes(0, {.cut = 3 * kRanks * kSlot});
}

TEST_F(CausesTest, cut__in_the_scatter_others_lack_it_at_the_owner) {
  run_disturbed({.stage = 0, .first_slot = 5, .end_slot = 8, .delay = 2 * kBound});
  expect_causes(0, {.cut = 3 * kSlot});
  for (const Rank rank : Ranks{1, 2, 3}) expect_causes(rank, {.at_owner = 3 * kSlot});
}

TEST_F(CausesTest, void_shards__nothing_of_an_owner_that_was_in_time) {
  run_disturbed({.stage = 1, .first_slot = 0, .end_slot = 8});
  expect_causes(0, {.void_shards = kShard});
  EXPECT_TRUE(calls_[0]->report.late_ranks.empty());
  for (const Rank rank : Ranks{1, 2, 3}) expect_causes(rank, {});
}

TEST_F(CausesTest, late_ranks__what_others_lack_of_a_rank_whose_shard_is_void) {
  // Rank 0 has contributions of rank 1, and rank 2 has closed without some of them.
  run_disturbed(std::vector<Disturbed>{{.stage = 1, .end_slot = 8},
                                       {.stage = 0, .first_slot = 2, .end_slot = 4, .to = 2}});
  expect_causes(0, {.late_ranks = 2 * kSlot, .void_shards = kShard});
  EXPECT_TRUE(calls_[0]->report.late_ranks.empty());
  expect_causes(3, {.at_owner = 2 * kSlot});
}

TEST_F(CausesTest, late_ranks__their_contributions_and_beside_them_their_void_shard) {
  for (const Rank rank : Ranks{0, 1, 2}) submit(rank);
  ASSERT_TRUE(job_.finish());
  const LossCauses causes{.late_ranks = 3 * 8 * kSlot, .void_shards = kShard};
  for (const Rank rank : Ranks{0, 1, 2}) expect_causes(rank, causes);
  // The late rank sees the same when it comes.
  submit(3);
  ASSERT_TRUE(job_.finish());
  EXPECT_EQ(calls_[3]->report.status, Status::late_self);
  expect_causes(3, causes);
}

TEST_F(CausesTest, late_self__it_calls_no_rank_late_whose_data_it_cannot_have) {
  std::vector<Disturbed> lost;
  for (const Rank from : Ranks{0, 1, 2}) {
    lost.push_back({.stage = 0, .end_slot = 8, .to = 3, .from = from});
    lost.push_back({.stage = 1, .end_slot = 8, .to = 3, .from = from});
  }
  Disturbance disturbance(lost);
  job_.network().watch(&disturbance);
  for (const Rank rank : Ranks{0, 1, 2}) submit(rank);
  ASSERT_TRUE(job_.finish());
  submit(3);
  ASSERT_TRUE(job_.finish());
  job_.network().watch(nullptr);
  const Report& report = calls_[3]->report;
  EXPECT_EQ(report.status, Status::late_self) << report.detail;
  EXPECT_EQ(report.void_shards, (Ranks{0, 1, 2, 3}));
  EXPECT_EQ(report.late_ranks, Ranks{3});
  expect_causes(3, {.void_shards = 1});
}

}  // namespace
}  // namespace tarpon::testing_support::causes_test
