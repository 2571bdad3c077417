// Calls whose packets wait in the port: each call waits for its own packets, and gives up no
// others.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "collectives/engine/engine.h"
#include "collectives/engine/schedules/tar_shards.h"
#include "tests/support/simulated_job.h"

namespace tarpon::lent_buffers_test {
namespace {

using testing_support::Buffers;
using testing_support::same_bits;
using testing_support::SimulatedJob;

/// Keeps lent packets that `keeps` names, as a full socket would.
class KeepingPort : public Port {
 public:
  explicit KeepingPort(std::unique_ptr<Port> inner) : inner_(std::move(inner)) {}

  std::function<bool(const tarpon_header&)> keeps = [](const tarpon_header&) { return false; };
  std::optional<Error> broken;

  /// Packets of `tag` that wait here.
  std::size_t kept(std::uint32_t tag) const {
    return static_cast<std::size_t>(std::count_if(
        kept_.begin(), kept_.end(), [tag](const Kept& one) { return one.header.tag == tag; }));
  }

  template <typename T>
  bool points_into(const std::vector<T>& buffer) const {
    const auto* const first = reinterpret_cast<const std::byte*>(buffer.data());
    const auto* const end = first + buffer.size() * sizeof(T);
    return std::any_of(kept_.begin(), kept_.end(), [&](const Kept& one) {
      return one.packet.payload >= first && one.packet.payload < end;
    });
  }

  /// Keeps nothing any more.
  void open() {
    keeps = [](const tarpon_header&) { return false; };
    for (Kept& one : kept_) send(one.header, one.packet);
    kept_.clear();
  }

  const PortCapabilities& capabilities() const override { return inner_->capabilities(); }
  std::span<TxPacket> transmit_frames(std::size_t n) override { return inner_->transmit_frames(n); }
  void transmit(std::span<TxPacket> packets) override {
    for (const TxPacket& packet : packets) {
      tarpon_header header;
      std::memcpy(&header, packet.header, sizeof header);
      if (packet.lender != kNoLender && keeps(header)) {
        kept_.push_back({header, packet});
      } else {
        send(header, packet);
      }
    }
  }
  std::size_t unsent() const override { return kept_.size(); }
  bool holds(Lender lender) const override {
    return std::any_of(kept_.begin(), kept_.end(),
                       [lender](const Kept& one) { return one.packet.lender == lender; });
  }
  void drop_unsent(Lender lender) override {
    std::erase_if(kept_, [lender](const Kept& one) { return one.packet.lender == lender; });
  }
  std::span<const RxPacket> receive(Time now) override { return inner_->receive(now); }
  void wait(Time now, Time until) override { inner_->wait(now, until); }
  void wake() override { inner_->wake(); }
  PortStatistics statistics() const override { return inner_->statistics(); }
  std::optional<Error> failure() const override { return broken; }

 private:
  struct Kept {
    tarpon_header header;
    TxPacket packet;
  };

  /// A simulated port copies at once, whatever frame the packet is in.
  void send(tarpon_header header, TxPacket packet) {
    packet.header = reinterpret_cast<std::byte*>(&header);
    inner_->transmit({&packet, 1});
  }

  std::unique_ptr<Port> inner_;
  std::deque<Kept> kept_;
};

constexpr std::uint32_t kFirst = 1;  // tags
constexpr std::uint32_t kSecond = 2;
constexpr std::uint64_t kCount = 1000;

/// Two ranks; rank 0 has a KeepingPort. A call of each of two tags.
class LentBuffersTest : public testing::Test {
 protected:
  std::shared_ptr<PendingCall> submit(std::uint32_t tag, Rank rank,
                                      std::optional<Duration> bound = std::nullopt) {
    AllreduceArguments arguments = buffers(tag).arguments(rank, DataType::float32, ReduceOp::sum);
    arguments.tag = tag;
    arguments.deadline = 10s;
    if (bound) {
      arguments.mode = Mode::bounded;
      arguments.bound = *bound;
    }
    return job_.submit(rank, arguments);
  }

  Buffers<float>& buffers(std::uint32_t tag) { return tag == kFirst ? first_ : second_; }

  /// Of rank 0.
  bool port_points_into(std::uint32_t tag) {
    return port_->points_into(buffers(tag).inputs[0]) ||
           port_->points_into(buffers(tag).outputs[0]);
  }

  void expect_result(std::uint32_t tag) {
    const std::vector<float> expected = buffers(tag).expected(ReduceOp::sum, 0);
    for (const std::vector<float>& output : buffers(tag).outputs) {
      EXPECT_TRUE(same_bits(output, expected));
    }
  }

  Buffers<float> first_{2, kCount, false, 1};
  Buffers<float> second_{2, kCount, false, 2};
  KeepingPort* port_ = nullptr;
  SimulatedJob job_{{.ranks = 2},
                    [this](Rank rank, std::unique_ptr<Port> inner) -> std::unique_ptr<Port> {
                      if (rank != 0) return inner;
                      auto port = std::make_unique<KeepingPort>(std::move(inner));
                      port_ = port.get();
                      return port;
                    }};
};

TEST_F(LentBuffersTest, a_partial_call_gives_up_its_own_packets_alone) {
  port_->keeps = [](const tarpon_header&) { return true; };
  const auto partial = submit(kFirst, 0, 10ms);
  const auto here = submit(kSecond, 0);
  const auto there = submit(kSecond, 1);
  job_.run_for(5ms);
  ASSERT_FALSE(partial->done);
  ASSERT_TRUE(port_points_into(kFirst));
  const std::size_t queued = port_->kept(kSecond);
  ASSERT_GT(queued, 0u);
  while (!partial->done) job_.run_for(1ms);
  EXPECT_EQ(partial->report.status, Status::partial);
  EXPECT_FALSE(port_points_into(kFirst));
  EXPECT_EQ(port_->kept(kFirst), 0u);
  EXPECT_GE(port_->kept(kSecond), queued);
  EXPECT_FALSE(here->done);
  port_->open();
  job_.run_for(100ms);
  ASSERT_TRUE(here->done && there->done);
  EXPECT_EQ(here->report.status, Status::complete);
  expect_result(kSecond);
}

TEST_F(LentBuffersTest, other_calls_send_while_a_complete_one_waits_for_the_port) {
  port_->keeps = [](const tarpon_header& header) {
    return header.tag == kFirst && tarpon_stage(&header) == kGather;
  };
  const auto waits = submit(kFirst, 0);
  const auto fetches = submit(kFirst, 1);  // what rank 0 retains
  job_.run_for(100ms);
  ASSERT_TRUE(fetches->done);
  ASSERT_FALSE(waits->done);
  ASSERT_TRUE(port_points_into(kFirst));
  const auto here = submit(kSecond, 0);
  const auto there = submit(kSecond, 1);
  job_.run_for(100ms);
  EXPECT_TRUE(here->done && there->done);
  expect_result(kSecond);
  EXPECT_FALSE(waits->done);
  port_->open();
  job_.run_for(1ms);
  ASSERT_TRUE(waits->done);
  EXPECT_EQ(waits->report.status, Status::complete);
  expect_result(kFirst);
}

TEST_F(LentBuffersTest, a_call_that_ended_does_not_wait_for_packets_of_others) {
  port_->keeps = [](const tarpon_header& header) { return header.tag == kSecond; };
  submit(kSecond, 0);
  submit(kSecond, 1);
  const auto here = submit(kFirst, 0);
  const auto there = submit(kFirst, 1);
  job_.run_for(100ms);
  EXPECT_GT(port_->kept(kSecond), 0u);
  EXPECT_TRUE(here->done && there->done);
  expect_result(kFirst);
}

TEST_F(LentBuffersTest, a_call_that_a_broken_port_ends_leaves_no_packet_in_it) {
  port_->keeps = [](const tarpon_header&) { return true; };
  const auto first = submit(kFirst, 0);
  const auto second = submit(kSecond, 0);
  job_.run_for(1ms);
  ASSERT_TRUE(port_points_into(kFirst) && port_points_into(kSecond));
  port_->broken = Error::make(Error::Code::io, "eth9: the interface is gone");
  job_.run_for(1ms);
  ASSERT_TRUE(first->done && second->done);
  EXPECT_EQ(first->report.status, Status::failed);
  EXPECT_EQ(port_->unsent(), 0u);
}

}  // namespace
}  // namespace tarpon::lent_buffers_test
