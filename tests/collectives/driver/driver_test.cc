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
#include <utility>
#include <vector>

#include "collectives/driver/connect.h"
#include "collectives/driver/driven.h"
#include "collectives/driver/split_line.h"
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

/// The parts of a live rank.
struct LiveRank {
  explicit LiveRank(Connection made)
      : connection(std::move(made)),
        flight({}, {connection.control->public_id(), connection.agreed.endpoint.rank,
                    connection.agreed.endpoint.world_size, connection.agreed.slot_bytes}),
        lines(std::make_unique<TestPort>(std::move(connection.port), does), 2),
        driver(lines, flight),
        engine(connection.agreed, lines.first()) {
    driven.emplace(driver, engine, connection.agreed.endpoint, lines.first(),
                   *connection.membership);
  }
  ~LiveRank() {
    driver.stop();
    driver.join();
  }
  LiveRank(const LiveRank&) = delete;
  LiveRank& operator=(const LiveRank&) = delete;

  std::shared_ptr<PendingCall> submit(std::vector<float>& values) {
    return driven->submit(AllreduceArguments{.input = values.data(),
                                             .output = values.data(),
                                             .count = values.size(),
                                             .deadline = 60s},
                          false);
  }

  Does does;
  Connection connection;
  Flight flight;
  PortLines lines;
  Driver driver;
  Engine engine;
  std::optional<Driven> driven;
};

/// A communicator of the same two ranks. Its line on the control mesh is never opened, so nothing
/// passes there.
struct MuteSplit {
  explicit MuteSplit(LiveRank& job)
      : options(split_options(job.connection.agreed)),
        line(job.driver, options.endpoint.communicator, {0, 1}),
        engine(options, *line),
        membership(job.connection.membership->split({.rank = options.endpoint.rank,
                                                     .world_size = 2,
                                                     .job = options.endpoint.job,
                                                     .communicator = options.endpoint.communicator,
                                                     .budgets = {{0, 0.1, 0.5}}},
                                                    {0, 1})),
        driven(job.driver, engine, options.endpoint, *line, *membership) {
    membership->start({.learned = [](const Fact&) {},
                       .aborted = [](Rank, const std::string&) {},
                       .last_heard = [](Rank) { return Time{}; },
                       .next_numbers = [] { return std::vector<EpochRecord::Start>(); },
                       .epoch_decided = [](const EpochRecord&) {},
                       .rejoining = [](std::uint64_t) {},
                       .send =
                           [this](const std::vector<AgreementPacket>& packets) {
                             driven.tell([&](Engine& one) {
                               for (const AgreementPacket& packet : packets)
                                 one.endpoint().send(packet);
                             });
                           }});
  }
  ~MuteSplit() {
    driven.stop();
    membership->stop();
  }
  MuteSplit(const MuteSplit&) = delete;
  MuteSplit& operator=(const MuteSplit&) = delete;

  static EngineOptions split_options(EngineOptions options) {
    options.endpoint.communicator = 5;
    options.endpoint.recorder = nullptr;
    return options;
  }

  const EngineOptions options;
  SplitLine line;
  Engine engine;
  std::unique_ptr<Membership> membership;
  Driven driven;
};

/// Rank 0 of two. The other one makes no call, unless a test does.
class DriverTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string file = testing_support::rendezvous_file();
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        auto made = connect_ranks(testing_support::options_of(rank, 2, file), SlotSizing::by_path);
        if (made) {
          ranks_[rank] = std::make_unique<LiveRank>(*std::move(made));
        } else {
          ADD_FAILURE() << made.error().message;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_FALSE(HasFailure());
  }

  LiveRank& mine() { return *ranks_[0]; }

  /// Returns a call of rank 0 that is over, but done only after its deadline: the port keeps its
  /// packets.
  std::shared_ptr<PendingCall> submit_kept() {
    mine().does.keeps_packets = true;
    for (const auto& rank : ranks_) rank->driver.start_thread();
    auto call = mine().submit(values_[0]);
    ranks_[1]->driver.wait(ranks_[1]->submit(values_[1]));
    const auto over = [this] {
      return mine().driven->look(
                 [](const Engine& engine) { return engine.endpoint().tags().lowest_open(0); }) == 1;
    };
    while (!over()) std::this_thread::sleep_for(1ms);
    EXPECT_FALSE(call->done);
    return call;
  }

  void expect_dropped(const PendingCall& call) {
    EXPECT_TRUE(call.done);
    EXPECT_EQ(call.report.status, Status::complete) << call.report.detail;
    EXPECT_GT(mine().does.drops, 0);
    EXPECT_EQ(mine().does.drops_inside, 0);
  }

  std::shared_ptr<PendingCall> submit(bool waits) {
    return mine().driven->submit(
        AllreduceArguments{.input = &value_, .output = &value_, .count = 1, .deadline = 60s},
        waits);
  }

  void await(const PendingCall& call) {
    const Time limit = monotonic_now() + 30s;
    while (!call.done && monotonic_now() < limit) std::this_thread::sleep_for(1ms);
    ASSERT_TRUE(call.done);
  }

  void expect_failed(const PendingCall& call) {
    EXPECT_EQ(call.report.status, Status::failed);
    EXPECT_THAT(call.report.detail, HasSubstr("thrown by a test"));
  }

  float value_ = 1;
  std::array<std::vector<float>, 2> values_{std::vector<float>(100'000),
                                            std::vector<float>(100'000)};
  std::array<std::unique_ptr<LiveRank>, 2> ranks_;
};

TEST_F(DriverTest, wait__an_exception_ends_the_calls_as_failed) {
  mine().does.in_wait = true;
  const auto call = submit(true);
  mine().driver.wait(call);
  expect_failed(*call);
  const auto next = submit(true);
  mine().driver.wait(next);
  expect_failed(*next);
}

TEST_F(DriverTest, run_thread__an_exception_ends_the_calls_as_failed) {
  mine().driver.start_thread();
  const auto call = submit(false);
  mine().does.in_wait = true;
  mine().driver.wait(call);
  expect_failed(*call);
}

TEST_F(DriverTest, run_thread__an_exception_ends_calls_for_which_nobody_waits) {
  mine().driver.start_thread();
  const auto call = submit(false);
  mine().does.in_wait = true;
  await(*call);
  expect_failed(*call);
}

TEST_F(DriverTest, run_thread__calls_of_a_communicator_that_is_split_afterwards_fail_too) {
  mine().driver.start_thread();
  const auto call = submit(false);
  mine().does.in_wait = true;
  await(*call);
  std::this_thread::sleep_for(10ms);  // the progress thread has nothing to do any more
  EngineOptions options = mine().connection.agreed;
  options.endpoint.communicator = 1;
  SplitLine line(mine().driver, 1, {0, 1});
  Engine engine(options, *line);
  Driven part(mine().driver, engine, options.endpoint, *line, *mine().connection.membership);
  const auto later = part.submit(
      AllreduceArguments{.input = &value_, .output = &value_, .count = 1, .deadline = 60s}, false);
  await(*later);
  expect_failed(*later);
}

TEST_F(DriverTest, stop__a_further_exception_leaves_nothing) {
  mine().does.in_wait = true;
  const auto call = submit(true);
  mine().does.after_end_of = call.get();
  mine().driver.wait(call);
  expect_failed(*call);
  EXPECT_NO_THROW(mine().driver.stop());
  mine().does.after_end_of = nullptr;
}

TEST_F(DriverTest, destroyed__drops_its_packets_while_no_thread_is_inside_the_port) {
  mine().does.keeps_packets = true;
  mine().driver.start_thread();
  mine().submit(values_[0]);
  while (!mine().does.inside) std::this_thread::sleep_for(100us);
  mine().driven.reset();
  EXPECT_GT(mine().does.drops, 0);
  EXPECT_EQ(mine().does.drops_inside, 0);
}

TEST_F(DriverTest, stop__leaves_no_call_to_which_buffers_belong) {
  const auto call = submit_kept();
  mine().driver.stop();
  expect_dropped(*call);
}

TEST_F(DriverTest, stop__of_one_communicator_leaves_no_call_to_which_buffers_belong) {
  const auto call = submit_kept();
  mine().driven->stop();
  expect_dropped(*call);
}

TEST_F(DriverTest, wait__refused_packets_are_recorded_in_intervals) {
  const auto refusals = [this] {
    std::vector<Record> found;
    const Recorder& recorder = mine().flight.recorder();
    for (std::uint64_t number = recorder.first(); number < recorder.written(); ++number) {
      RecordWords words;
      if (!recorder.read(number, words)) continue;
      const Record record = unpack(words, recorder.written());
      if (record.kind == RecordKind::send_refused) found.push_back(record);
    }
    return found;
  };
  mine().driver.poll(1ms);
  EXPECT_EQ(refusals().size(), 0u);
  mine().does.refused = 3;
  for (int i = 0; i < 5; ++i) mine().driver.poll(1ms);
  ASSERT_EQ(refusals().size(), 1u);
  EXPECT_EQ(refusals()[0].value, 3u);
  EXPECT_EQ(refusals()[0].detail, EPERM);
  mine().does.refused = 10;
  std::this_thread::sleep_for(SendRefusals::kInterval);
  mine().driver.poll(1ms);
  ASSERT_EQ(refusals().size(), 2u);
  EXPECT_EQ(refusals()[1].value, 7u);
}

TEST_F(DriverTest, verdict__comes_by_datagrams_where_the_control_mesh_is_mute) {
  std::array<std::optional<MuteSplit>, 2> parts;
  for (Rank rank = 0; rank < 2; ++rank) {
    parts[rank].emplace(*ranks_[rank]);
    ranks_[rank]->driver.start_thread();
  }
  std::array<StepVerdict, 2> verdicts;
  std::thread other(
      [&] { verdicts[1] = parts[1]->membership->agree(3, {.lost_fraction = 0.2}, 120s); });
  verdicts[0] = parts[0]->membership->agree(3, {}, 120s);
  other.join();
  for (const StepVerdict& verdict : verdicts) {
    EXPECT_EQ(verdict.verdict, Verdict::skip);
    EXPECT_EQ(verdict.reporters, 0b11u);
    EXPECT_THAT(verdict.detail, HasSubstr("20.00 %"));
  }
}

}  // namespace
}  // namespace tarpon::driver_test
