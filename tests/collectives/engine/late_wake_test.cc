// A rank that asks its peers whether it is late sleeps until they answer.
#include <gtest/gtest.h>

#include <array>

#include "tests/support/simulated_job.h"
#include "transport/integrity.h"

namespace tarpon::testing_support::late_wake_test {
namespace {

constexpr Duration kBound = 50ms;

/// Rank 0 gets no credit for its shard beyond the first.
class LostCredit final : public SimulatedTraffic {
 public:
  Route route(Time, Rank, Rank to, std::span<const std::byte> packet) override {
    tarpon_header header;
    std::memcpy(&header, packet.data(), sizeof header);
    const bool credit = header.type == TARPON_CREDIT || header.type == TARPON_REPAIR;
    return {to == 0 && credit && tarpon_stage(&header) == 1 ? "credit" : "", Time{}};
  }
  void ended(Time, Rank, Rank, std::span<const std::byte>, std::string_view) override {}
};

/// HEARTBEAT of rank 1: its operation 0 of tag 0 is closed.
std::vector<std::byte> news_of_the_end() {
  tarpon_header header{};
  header.magic = TARPON_MAGIC;
  header.version = TARPON_WIRE_VERSION;
  header.type = TARPON_HEARTBEAT;
  header.job = 7;
  header.sender = 1;
  header.flags = TARPON_INTEGRITY_CRC32C << TARPON_INTEGRITY_SHIFT;
  header.length = sizeof(tarpon_passed);
  const tarpon_passed passed{.tag = 0, .closed_below = 1};
  std::vector<std::byte> packet(sizeof header + sizeof passed);
  std::memcpy(packet.data() + sizeof header, &passed, sizeof passed);
  header.check = packet_check(header, std::span(packet).subspan(sizeof header));
  std::memcpy(packet.data(), &header, sizeof header);
  return packet;
}

struct Job {
  Job() {
    job.network().watch(&traffic);
    job.run_for(1us);  // the network's clock follows
    for (Rank rank = 0; rank < 2; ++rank) {
      auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
      arguments.mode = Mode::bounded;
      arguments.bound = kBound;
      calls[rank] = job.submit(rank, arguments);
    }
  }
  ~Job() { job.network().watch(nullptr); }

  LostCredit traffic;
  SimulatedJob job{{.ranks = 2}};
  Buffers<float> buffers{2, 400'000, false};
  std::array<std::shared_ptr<PendingCall>, 2> calls;
};

TEST(LateWakeTest, in_doubt__with_a_whole_result_the_next_deadline_is_ahead) {
  Job first;
  const Time start = first.job.now();
  while (!first.calls[0]->done) first.job.run_for(100us);
  ASSERT_EQ(first.calls[0]->report.status, Status::complete) << first.calls[0]->report.detail;
  const Duration whole = first.job.now() - start - 1ms;  // it waits so long for confirmations

  Job second;
  second.job.run_for(whole + 500us);
  ASSERT_FALSE(second.calls[0]->done);
  second.job.stop(1);  // it closes its call, says so, and answers nothing
  second.job.network().inject(1, 0, news_of_the_end());
  // A deadline that has passed has the rank driven again and again, 1 us apart; run_for() then
  // goes on until the rank stops asking.
  const Time told = second.job.now();
  for (int step = 0; step < 20; ++step) second.job.run_for(100us);
  EXPECT_FALSE(second.calls[0]->done);
  EXPECT_LT(second.job.now(), told + 3ms);
  EXPECT_GT(second.job[0].next_deadline(), second.job.now());
  second.job.run_for(2 * kBound);
  EXPECT_TRUE(second.calls[0]->done);
}

}  // namespace
}  // namespace tarpon::testing_support::late_wake_test
