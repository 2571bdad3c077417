// The driver of a live rank when an exception comes out of its port.
#include "collectives/driver/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "collectives/driver/connect.h"
#include "tests/support/membership_job.h"
#include "transport/ports/forwarding_port.h"

namespace tarpon::driver_test {
namespace {

using testing::HasSubstr;

class ThrowingPort final : public ForwardingPort {
 public:
  ThrowingPort(std::unique_ptr<Port> inner, const std::atomic<bool>& on)
      : ForwardingPort(std::move(inner)), on_(on) {}

  void wait(Time now, Time until) override {
    if (on_) throw std::runtime_error("thrown by a test");
    ForwardingPort::wait(now, until);
  }

 private:
  const std::atomic<bool>& on_;
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
  std::atomic<bool> throws_ = false;
  std::array<std::optional<Connection>, 2> connections_;
  std::optional<Flight> flight_;
  std::optional<PortLines> lines_;
  std::optional<Driver> driver_;
  std::optional<Engine> engine_;
  std::optional<Driven> driven_;
};

TEST_F(DriverTest, wait__an_exception_ends_the_calls_as_failed) {
  throws_ = true;
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
  throws_ = true;
  driver_->wait(call);
  expect_failed(*call);
}

}  // namespace
}  // namespace tarpon::driver_test
