// The driver of a live rank when an exception comes out of its port.
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

/// What a test makes the port throw.
struct Throws {
  std::atomic<bool> in_wait = false;
  std::atomic<const PendingCall*> after_end_of = nullptr;  // in unsent(), once this call is done
  std::atomic<std::uint64_t> refused = 0;                  // counted, and not thrown
};

class ThrowingPort final : public ForwardingPort {
 public:
  ThrowingPort(std::unique_ptr<Port> inner, const Throws& throws)
      : ForwardingPort(std::move(inner)), throws_(throws) {}

  void wait(Time now, Time until) override {
    if (throws_.in_wait) throw std::runtime_error("thrown by a test");
    ForwardingPort::wait(now, until);
  }

  std::size_t unsent() const override {
    const PendingCall* const call = throws_.after_end_of;
    if (call != nullptr && call->done) throw std::runtime_error("thrown once more");
    return ForwardingPort::unsent();
  }

  PortStatistics statistics() const override {
    PortStatistics counts = ForwardingPort::statistics();
    counts.tx_refused += throws_.refused;
    if (throws_.refused > 0) counts.send_error = EPERM;
    return counts;
  }

 private:
  const Throws& throws_;
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
    lines_.emplace(std::make_unique<ThrowingPort>(std::move(mine.port), throws_), 2);
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
  Throws throws_;
  std::array<std::optional<Connection>, 2> connections_;
  std::optional<Flight> flight_;
  std::optional<PortLines> lines_;
  std::optional<Driver> driver_;
  std::optional<Engine> engine_;
  std::optional<Driven> driven_;
};

TEST_F(DriverTest, wait__an_exception_ends_the_calls_as_failed) {
  throws_.in_wait = true;
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
  throws_.in_wait = true;
  driver_->wait(call);
  expect_failed(*call);
}

TEST_F(DriverTest, run_thread__an_exception_ends_calls_for_which_nobody_waits) {
  driver_->start_thread();
  const auto call = submit(false);
  throws_.in_wait = true;
  const Time limit = monotonic_now() + 30s;
  while (!call->done && monotonic_now() < limit) std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(call->done);
  expect_failed(*call);
}

TEST_F(DriverTest, stop__a_further_exception_leaves_nothing) {
  throws_.in_wait = true;
  const auto call = submit(true);
  throws_.after_end_of = call.get();
  driver_->wait(call);
  expect_failed(*call);
  EXPECT_NO_THROW(driver_->stop());
  throws_.after_end_of = nullptr;
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
  throws_.refused = 3;
  for (int i = 0; i < 5; ++i) driver_->poll(1ms);
  ASSERT_EQ(refusals().size(), 1u);
  EXPECT_EQ(refusals()[0].value, 3u);
  EXPECT_EQ(refusals()[0].detail, EPERM);
  throws_.refused = 10;
  std::this_thread::sleep_for(SendRefusals::kInterval);
  driver_->poll(1ms);
  ASSERT_EQ(refusals().size(), 2u);
  EXPECT_EQ(refusals()[1].value, 7u);
}

}  // namespace
}  // namespace tarpon::driver_test
