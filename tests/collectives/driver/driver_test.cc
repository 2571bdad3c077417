// The driver of a live rank: exceptions out of its port, and ends of communicators while it works.
#include "collectives/driver/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "collectives/driver/connect.h"
#include "tests/support/membership_job.h"
#include "transport/clock.h"
#include "transport/ports/forwarding_port.h"

namespace tarpon::driver_test {
namespace {

using testing::HasSubstr;

/// What a test makes the port do.
struct Does {
  std::atomic<bool> in_wait = false;
  std::atomic<const PendingCall*> after_end_of = nullptr;  // in unsent(), once this call is done
  std::atomic<std::uint64_t> refused = 0;                  // counted, and not thrown
  std::atomic<bool> keeps_packets = false;                 // unsent() and holds() say so
  std::atomic<bool> inside = false;                        // wait() runs
  std::atomic<int> drops = 0;                              // calls of drop_unsent()
  std::atomic<int> drops_inside = 0;                       // of them: while wait() ran
};

class TestPort final : public ForwardingPort {
 public:
  TestPort(std::unique_ptr<Port> inner, Does& does)
      : ForwardingPort(std::move(inner)), does_(does) {}

  void wait(Time now, Time until) override {
    if (does_.in_wait) throw std::runtime_error("thrown by a test");
    does_.inside = true;
    ForwardingPort::wait(now, until);
    if (does_.keeps_packets) std::this_thread::sleep_for(10ms);  // the kernel takes its time
    does_.inside = false;
  }

  std::size_t unsent() const override {
    const PendingCall* const call = does_.after_end_of;
    if (call != nullptr && call->done) throw std::runtime_error("thrown once more");
    return ForwardingPort::unsent() + (does_.keeps_packets ? 1 : 0);
  }

  bool holds(Lender lender) const override {
    return does_.keeps_packets || ForwardingPort::holds(lender);
  }

  void drop_unsent(Lender lender) override {
    ++does_.drops;
    if (does_.inside) ++does_.drops_inside;
    ForwardingPort::drop_unsent(lender);
  }

  PortStatistics statistics() const override {
    PortStatistics counts = ForwardingPort::statistics();
    counts.tx_refused += does_.refused;
    if (does_.refused > 0) counts.send_error = EPERM;
    return counts;
  }

 private:
  Does& does_;
};

/// Rank 0 of two, the other of which makes no call.
class DriverTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string file = testing_support::rendezvous_file();
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        auto made = connect_ranks(testing_support::options_of(rank, 2, file), SlotSizing::by_path);
        if (made) {
          connections_[rank].emplace(*std::move(made));
        } else {
          ADD_FAILURE() << made.error().message;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_FALSE(HasFailure());
    Connection& mine = *connections_[0];
    const EndpointOptions& self = mine.agreed.endpoint;
    flight_.emplace(FlightOptions{}, FlightIdentity{mine.control->public_id(), self.rank,
                                                    self.world_size, mine.agreed.slot_bytes});
    lines_.emplace(std::make_unique<TestPort>(std::move(mine.port), does_), 2);
    driver_.emplace(*lines_, *flight_);
    engine_.emplace(mine.agreed, lines_->first());
    driven_.emplace(*driver_, *engine_, self, lines_->first(), *mine.membership);
  }

  void TearDown() override {
    if (!driver_) return;
    driver_->stop();
    driver_->join();
    driven_.reset();
  }

  std::shared_ptr<PendingCall> submit(bool waits) {
    return driven_->submit({.input = &value_, .output = &value_, .count = 1, .deadline = 60s},
                           waits);
  }

  void expect_failed(const PendingCall& call) {
    EXPECT_EQ(call.report.status, Status::failed);
    EXPECT_THAT(call.report.detail, HasSubstr("thrown by a test"));
  }

  float value_ = 1;
  Does does_;
  std::array<std::optional<Connection>, 2> connections_;
  std::optional<Flight> flight_;
  std::optional<PortLines> lines_;
  std::optional<Driver> driver_;
  std::optional<Engine> engine_;
  std::optional<Driven> driven_;
};

TEST_F(DriverTest, wait__an_exception_ends_the_calls_as_failed) {
  does_.in_wait = true;
  const auto call = submit(true);
  driver_->wait(call);
  expect_failed(*call);
  const auto next = submit(true);
  driver_->wait(next);
  expect_failed(*next);
}

TEST_F(DriverTest, run_thread__an_exception_ends_the_calls_as_failed) {
  driver_->start_thread();
  const auto call = submit(false);
  does_.in_wait = true;
  driver_->wait(call);
  expect_failed(*call);
}

TEST_F(DriverTest, run_thread__an_exception_ends_calls_for_which_nobody_waits) {
  driver_->start_thread();
  const auto call = submit(false);
  does_.in_wait = true;
  const Time limit = monotonic_now() + 30s;
  while (!call->done && monotonic_now() < limit) std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(call->done);
  expect_failed(*call);
}

TEST_F(DriverTest, stop__a_further_exception_leaves_nothing) {
  does_.in_wait = true;
  const auto call = submit(true);
  does_.after_end_of = call.get();
  driver_->wait(call);
  expect_failed(*call);
  EXPECT_NO_THROW(driver_->stop());
  does_.after_end_of = nullptr;
}

TEST_F(DriverTest, destroyed__drops_its_packets_while_no_thread_is_inside_the_port) {
  does_.keeps_packets = true;
  driver_->start_thread();
  std::vector<float> values(100'000);
  driven_->submit(
      {.input = values.data(), .output = values.data(), .count = values.size(), .deadline = 60s},
      false);
  while (!does_.inside) std::this_thread::sleep_for(100us);
  driven_.reset();
  EXPECT_GT(does_.drops, 0);
  EXPECT_EQ(does_.drops_inside, 0);
}

TEST_F(DriverTest, wait__refused_packets_are_recorded_in_intervals) {
  const auto refusals = [this] {
    std::vector<Record> found;
    const Recorder& recorder = flight_->recorder();
    for (std::uint64_t number = recorder.first(); number < recorder.written(); ++number) {
      RecordWords words;
      if (!recorder.read(number, words)) continue;
      const Record record = unpack(words, recorder.written());
      if (record.kind == RecordKind::send_refused) found.push_back(record);
    }
    return found;
  };
  driver_->poll(1ms);
  EXPECT_EQ(refusals().size(), 0u);
  does_.refused = 3;
  for (int i = 0; i < 5; ++i) driver_->poll(1ms);
  ASSERT_EQ(refusals().size(), 1u);
  EXPECT_EQ(refusals()[0].value, 3u);
  EXPECT_EQ(refusals()[0].detail, EPERM);
  does_.refused = 10;
  std::this_thread::sleep_for(SendRefusals::kInterval);
  driver_->poll(1ms);
  ASSERT_EQ(refusals().size(), 2u);
  EXPECT_EQ(refusals()[1].value, 7u);
}

}  // namespace
}  // namespace tarpon::driver_test
