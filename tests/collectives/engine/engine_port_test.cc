// An engine whose port fails, is flooded, or keeps packets.
#include "collectives/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/simulated_job.h"

namespace tarpon::engine_port_test {
namespace {

using testing::HasSubstr;
using testing_support::Buffers;
using testing_support::SimulatedJob;

/// A port that can fail, or be flooded with junk.
class RoughPort : public Port {
 public:
  explicit RoughPort(std::unique_ptr<Port> inner) : inner_(std::move(inner)) {}
  const PortCapabilities& capabilities() const override { return inner_->capabilities(); }
  std::span<TxPacket> transmit_frames(std::size_t n) override { return inner_->transmit_frames(n); }
  void transmit(std::span<TxPacket> packets) override { inner_->transmit(packets); }
  std::size_t unsent() const override { return held_unsent; }
  bool holds(Lender) const override { return held_unsent > 0; }
  void drop_unsent(Lender) override {
    held_unsent = 0;
    if (on_drop) on_drop();
  }
  std::span<const RxPacket> receive(Time now) override {
    if (!flooded) return inner_->receive(now);
    return {&junk_, 1};
  }
  void wait(Time now, Time until) override { inner_->wait(now, until); }
  void wake() override { inner_->wake(); }
  PortStatistics statistics() const override { return inner_->statistics(); }
  std::optional<Error> failure() const override { return broken; }

  std::optional<Error> broken;
  bool flooded = false;
  std::size_t held_unsent = 0;  // of every lender
  std::function<void()> on_drop;

 private:
  std::unique_ptr<Port> inner_;
  std::byte byte_{};
  RxPacket junk_{&byte_, 1, kUnknownRank};
};

/// Two ranks on rough ports.
class RoughJob {
 public:
  RoughPort& port(Rank rank) { return *ports_[rank]; }
  Engine& operator[](Rank rank) { return job_[rank]; }
  SimulatedJob* operator->() { return &job_; }

 private:
  std::vector<RoughPort*> ports_;
  SimulatedJob job_{{.ranks = 2}, [this](Rank, std::unique_ptr<Port> inner) {
                      auto port = std::make_unique<RoughPort>(std::move(inner));
                      ports_.push_back(port.get());
                      return port;
                    }};
};

TEST(EngineTest, port__its_failure_ends_all_calls_and_refuses_further_ones) {
  RoughJob job;
  Buffers<float> buffers(2, 100, true);
  auto arguments = buffers.arguments(0, DataType::float32, ReduceOp::sum);
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (int i = 0; i < 10; ++i) calls.push_back(job->submit(0, arguments));
  job.port(0).broken = Error::make(Error::Code::io, "eth9: the interface is gone");
  job->run_for(1ms);
  for (const auto& call : calls) {
    ASSERT_TRUE(call->done);
    EXPECT_EQ(call->report.status, Status::failed);
    EXPECT_THAT(call->report.detail, HasSubstr("eth9"));
  }
  const auto after = job->submit(0, arguments);
  job->run_for(1ms);
  ASSERT_TRUE(after->done);
  EXPECT_EQ(after->report.status, Status::failed);
  EXPECT_THAT(after->report.detail, HasSubstr("eth9"));
}

TEST(EngineTest, port__a_flood_of_junk_does_not_hold_back_a_deadline) {
  RoughJob job;
  Buffers<float> buffers(2, 100, true);
  auto arguments = buffers.arguments(0, DataType::float32, ReduceOp::sum);
  arguments.deadline = 1s;
  const auto call = job[0].submit(arguments, Time(1s));
  job.port(0).flooded = true;
  Time now(1s);
  while (now < Time(2s) + 10ms) {
    job[0].progress(now);
    now += 1ms;
  }
  ASSERT_TRUE(call->done);
  EXPECT_EQ(call->report.status, Status::peer_late);
}

TEST(EngineTest, port__a_call_is_over_when_the_port_has_let_go_of_its_buffers) {
  RoughJob job;
  Buffers<float> buffers(2, 100, true);
  job.port(0).held_unsent = 3;
  const auto a = job->submit(0, buffers.arguments(0, DataType::float32, ReduceOp::sum));
  const auto b = job->submit(1, buffers.arguments(1, DataType::float32, ReduceOp::sum));
  job->run_for(100ms);
  EXPECT_TRUE(b->done);
  EXPECT_FALSE(a->done);
  job.port(0).held_unsent = 0;
  job[0].progress(job->now());
  EXPECT_TRUE(a->done);
  EXPECT_EQ(a->report.status, Status::complete);
}

TEST(EngineTest, port__what_it_cannot_send_does_not_hold_a_call_beyond_its_deadline) {
  for (const bool complete : {true, false}) {
    RoughJob job;
    Buffers<float> buffers(2, 100, true);
    job.port(0).held_unsent = 3;
    auto arguments = buffers.arguments(0, DataType::float32, ReduceOp::sum);
    arguments.deadline = 500ms;
    const auto call = job->submit(0, arguments);
    if (complete) job->submit(1, buffers.arguments(1, DataType::float32, ReduceOp::sum));
    job->run_for(499ms);
    EXPECT_FALSE(call->done);
    job->run_for(2ms);
    EXPECT_TRUE(call->done);
    EXPECT_EQ(call->report.status, complete ? Status::complete : Status::peer_late);
    EXPECT_EQ(job.port(0).held_unsent, 0u);
  }
}

TEST(EngineTest, port__missing_parts_are_filled_once_their_memory_is_no_longer_lent) {
  RoughJob job;
  Buffers<float> buffers(2, 100, true);
  const std::vector<float> before = buffers.outputs[0];
  auto arguments = buffers.arguments(0, DataType::float32, ReduceOp::sum);
  arguments.mode = Mode::bounded;
  arguments.bound = 10ms;
  const auto call = job->submit(0, arguments);
  const ShardLayout layout{100, 4, 2};
  const Range theirs = layout.elements(shard_of(1, 0, 2));
  std::vector<float> when_dropped;
  job.port(0).held_unsent = 3;
  job.port(0).on_drop = [&] { when_dropped = buffers.outputs[0]; };
  ASSERT_TRUE(job->finish());
  ASSERT_EQ(when_dropped.size(), before.size());
  for (std::uint64_t e = theirs.first; e < theirs.end(); ++e) {
    EXPECT_EQ(when_dropped[e], before[e]);
    EXPECT_EQ(buffers.outputs[0][e], 0);
  }
}

}  // namespace
}  // namespace tarpon::engine_port_test
