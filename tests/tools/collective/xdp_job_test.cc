// Jobs over AF_XDP: ranks as threads of this process, each in a network namespace of the testbed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <thread>

#include "collectives/communicator.h"
#include "tools/namespaces/network_namespace.h"
#include "tools/namespaces/testbed.h"
#include "tools/system/subprocess.h"
#include "transport/clock.h"
#include "xdp/interface.h"
#include "xdp/program.h"

namespace tarpon::xdp_job_test {
namespace {

using testing::Each;
using testing::HasSubstr;

using Ranks = std::vector<std::unique_ptr<Communicator>>;

void on_all(std::uint32_t ranks, const std::function<void(Rank)>& body) {
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&body, rank] { body(static_cast<Rank>(rank)); });
  }
  for (std::thread& thread : threads) thread.join();
}

class XdpJobTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto probe = make_network_namespaces(1);
    if (!probe) GTEST_SKIP() << probe.error().message;
  }

  void make_network(std::uint32_t hosts, int queues = 1, int mtu = 1500) {
    TestbedOptions options;
    options.ranks = hosts;
    options.mtu = mtu;
    options.transmit_queues = options.receive_queues = queues;
    auto made = Testbed::create(options);
    ASSERT_TRUE(made) << made.error().message;
    network_.emplace(std::move(*made));
  }

  /// Rank r lives on host r / per_host; `datapath(r)` is what it asks for. Errors by rank.
  std::vector<std::string> connect(std::uint32_t ranks, std::uint32_t per_host,
                                   const std::function<Datapath(Rank)>& datapath, Ranks& result,
                                   int port = 29500) {
    result.clear();
    result.resize(ranks);
    std::vector<std::string> errors(ranks);
    on_all(ranks, [&](Rank rank) {
      const Rank host = static_cast<Rank>(rank / per_host);
      if (auto entered = network_->enter(host); !entered) throw std::runtime_error("setns");
      CommunicatorOptions options;
      options.rendezvous.rank = rank;
      options.rendezvous.world_size = ranks;
      options.rendezvous.address = "tcp://" + network_->address(0) + ":" + std::to_string(port);
      options.datapath = datapath(rank);
      options.address = network_->address(host);
      options.interface = network_->interface();
      options.mtu = mtu_;
      auto communicator = Communicator::connect(options);
      if (communicator) {
        result[rank] = std::move(*communicator);
      } else {
        errors[rank] = communicator.error().message;
      }
    });
    return errors;
  }

  /// Small integers as floats: every order of addition gives the same bits.
  static std::vector<float> input(Rank rank, std::size_t count) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>((i + rank * 13u) % 101);
    return values;
  }

  static void expect_sums(const Ranks& ranks, std::size_t count) {
    std::vector<float> sum(count, 0.0f);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const auto one = input(static_cast<Rank>(rank), count);
      for (std::size_t i = 0; i < count; ++i) sum[i] += one[i];
    }
    on_all(static_cast<std::uint32_t>(ranks.size()), [&](Rank rank) {
      for (int call = 0; call < 3; ++call) {
        auto values = input(rank, count);
        AllreduceArguments arguments;
        arguments.input = arguments.output = values.data();
        arguments.count = count;
        arguments.deadline = 20s;
        const auto report = ranks[rank]->allreduce(arguments);
        ASSERT_TRUE(report) << report.error().message;
        EXPECT_EQ(report->status, Status::complete) << report->detail;
        EXPECT_TRUE(values == sum) << "rank " << rank;
      }
    });
  }

  static std::vector<std::string> datapaths(const Ranks& ranks) {
    std::vector<std::string> names;
    for (const RankInfo& info : ranks[0]->ranks()) names.push_back(info.datapath);
    return names;
  }

  void run_on(Rank host, const std::vector<std::string>& command) {
    const auto output = run_subprocess({command, "", network_->network_namespace(host)});
    ASSERT_TRUE(output) << output.error().message;
  }

  std::optional<Testbed> network_;
  std::uint32_t mtu_ = 1500;
};

Datapath all_xdp(Rank) {
  return Datapath::xdp;
}

TEST_F(XdpJobTest, ranks_on_hosts_of_their_own) {
  make_network(4);
  Ranks ranks;
  ASSERT_THAT(connect(4, 1, all_xdp, ranks), Each(""));
  EXPECT_THAT(datapaths(ranks), Each("xdp"));
  EXPECT_THAT(ranks[1]->ranks()[2].datapath_reason, HasSubstr("copy mode on eth0, queue 0"));
  EXPECT_EQ(ranks[0]->integrity(), TARPON_INTEGRITY_CRC32C);
  for (const std::size_t count : {1u, 1000u, 300'000u}) expect_sums(ranks, count);
  EXPECT_EQ(ranks[0]->port_statistics().local_path, 0u);
  on_all(4, [&](Rank rank) { EXPECT_TRUE(ranks[rank]->close(20s)); });
}

TEST_F(XdpJobTest, frames_of_several_buffers) {
  mtu_ = 9000;
  make_network(2, 1, 9000);
  Ranks ranks;
  ASSERT_THAT(connect(2, 1, all_xdp, ranks), Each(""));
  EXPECT_EQ(ranks[0]->slot_bytes(), 8896u);
  expect_sums(ranks, 300'000);
}

TEST_F(XdpJobTest, four_ranks_a_host_divide_four_queues) {
  make_network(2, 4);
  Ranks ranks;
  ASSERT_THAT(connect(8, 4, all_xdp, ranks), Each(""));
  EXPECT_THAT(datapaths(ranks), Each("xdp"));
  EXPECT_THAT(ranks[0]->ranks()[6].datapath_reason, HasSubstr("queue 2"));
  expect_sums(ranks, 100'000);
  EXPECT_GT(ranks[1]->port_statistics().local_path, 0u);
}

TEST_F(XdpJobTest, more_ranks_a_host_than_queues_are_refused) {
  make_network(2, 1);
  Ranks ranks;
  const auto errors = connect(4, 2, all_xdp, ranks);
  EXPECT_THAT(errors, Each(HasSubstr("eth0 has 1 receive queue, fewer than ranks")));
  EXPECT_THAT(errors, Each(HasSubstr("ethtool -L eth0 combined")));
  EXPECT_THAT(errors, Each(HasSubstr("--datapath auto")));
}

TEST_F(XdpJobTest, datapaths_may_differ) {
  make_network(3);
  const auto mixed = [](Rank rank) {
    return std::array{Datapath::xdp, Datapath::automatic, Datapath::mmsg}[rank];
  };
  Ranks ranks;
  ASSERT_THAT(connect(3, 1, mixed, ranks), Each(""));
  EXPECT_EQ(datapaths(ranks)[0], "xdp");
  EXPECT_NE(datapaths(ranks)[1], "xdp");
  EXPECT_EQ(datapaths(ranks)[2], "mmsg");
  expect_sums(ranks, 200'000);
}

TEST_F(XdpJobTest, two_jobs_share_an_interface) {
  make_network(2, 2);
  Ranks first;
  ASSERT_THAT(connect(2, 1, all_xdp, first), Each(""));
  Ranks second;
  // The first job's ranks took both queues, each being alone on its interface.
  EXPECT_THAT(connect(2, 1, all_xdp, second, 29501),
              Each(HasSubstr("another AF_XDP socket has it, of this process")));
  const auto sockets = [](Rank) { return Datapath::automatic; };
  ASSERT_THAT(connect(2, 1, sockets, second, 29502), Each(""));
  EXPECT_THAT(datapaths(first), Each("xdp"));
  std::thread other([&] { expect_sums(second, 50'000); });
  expect_sums(first, 50'000);
  other.join();
}

TEST_F(XdpJobTest, shrink__takes_sockets_while_the_old_communicator_has_the_queues) {
  make_network(2);
  Ranks ranks;
  ASSERT_THAT(connect(2, 1, all_xdp, ranks), Each(""));
  Ranks fresh(2);
  on_all(2, [&](Rank rank) {
    if (auto entered = network_->enter(rank); !entered) throw std::runtime_error("setns");
    auto made = ranks[rank]->shrink(20s);
    ASSERT_TRUE(made) << made.error().message;
    fresh[rank] = std::move(*made);
  });
  ASSERT_TRUE(fresh[0] && fresh[1]);
  EXPECT_THAT(fresh[0]->ranks()[1].datapath_reason, HasSubstr("another AF_XDP socket has it"));
  expect_sums(fresh, 50'000);
}

TEST_F(XdpJobTest, automatic_takes_sockets_where_frames_would_be_copied) {
  make_network(2);
  Ranks ranks;
  ASSERT_THAT(connect(
                  2, 1, [](Rank) { return Datapath::automatic; }, ranks),
              Each(""));
  EXPECT_THAT(ranks[0]->ranks()[0].datapath_reason, HasSubstr("not loaded on eth0"));
  ranks.clear();
  std::vector<xdp::Program> loaded;
  for (Rank host = 0; host < 2; ++host) {
    const auto done =
        in_network_namespace(network_->network_namespace(host), [&]() -> Result<void> {
          auto program = xdp::Program::use(*xdp::interface_index("eth0"), xdp::AttachMode::native);
          if (!program) return fail(program.error());
          loaded.push_back(std::move(*program));
          return {};
        });
    ASSERT_TRUE(done) << done.error().message;
  }
  ASSERT_THAT(connect(
                  2, 1, [](Rank) { return Datapath::automatic; }, ranks),
              Each(""));
  EXPECT_THAT(ranks[0]->ranks()[0].datapath_reason, HasSubstr("would copy"));
  expect_sums(ranks, 10'000);
}

TEST_F(XdpJobTest, loopback_is_refused) {
  CommunicatorOptions options;
  options.datapath = Datapath::xdp;
  const auto alone = Communicator::connect(options);
  ASSERT_FALSE(alone);
  EXPECT_THAT(alone.error().message, HasSubstr("which has no native XDP"));
}

TEST_F(XdpJobTest, an_interface_that_goes_down_ends_the_call_by_its_deadline) {
  make_network(2);
  Ranks ranks;
  ASSERT_THAT(connect(2, 1, all_xdp, ranks), Each(""));
  expect_sums(ranks, 1000);
  run_on(1, {"ip", "link", "set", "eth0", "down"});
  std::array<Report, 2> reports;
  on_all(2, [&](Rank rank) {
    auto values = input(rank, 100'000);
    AllreduceArguments arguments;
    arguments.input = arguments.output = values.data();
    arguments.count = values.size();
    arguments.deadline = 2s;
    const auto report = ranks[rank]->allreduce(arguments);
    ASSERT_TRUE(report) << report.error().message;
    reports[rank] = *report;
  });
  EXPECT_EQ(reports[1].status, Status::failed);
  EXPECT_THAT(reports[1].detail, HasSubstr("eth0 is down"));
  // Its own veth has no carrier now: either way a clear status.
  EXPECT_NE(reports[0].status, Status::complete);
  EXPECT_NE(reports[0].detail, "");
}

}  // namespace
}  // namespace tarpon::xdp_job_test
