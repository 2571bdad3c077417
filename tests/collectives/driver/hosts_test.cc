// Live jobs whose ranks share the memory of this host: which do, what they hold, and what they
// leave behind. Strangers at the door.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "collectives/driver/host_sharing.h"
#include "collectives/hosts/shared_host.h"
#include "collectives/reserved_tags.h"
#include "tests/support/live_job.h"
#include "tests/support/port_traffic.h"
#include "transport/clock.h"
#include "transport/ports/mmsg_port.h"

namespace tarpon::hosts_test {
namespace {

using namespace testing_support;
using testing::HasSubstr;
using testing::StartsWith;

Report sum_of(Communicator& rank, std::vector<float>& values, std::uint32_t tag = 0) {
  const auto report = rank.allreduce(in_place(values, tag));
  EXPECT_TRUE(report) << report.error().message;
  return report ? *report : Report();
}

TEST(HostsTest, ranks_of_a_host__share_memory_by_default) {
  const Ranks job = connect(4, Datapath::automatic);
  ASSERT_EQ(job.size(), 4u);
  on_all(4, [&](Rank rank) {
    EXPECT_THAT(job[rank]->hosts(), StartsWith("4 ranks on one host; calls share up to 10 MiB "));
    for (const std::size_t count : {std::size_t{0}, std::size_t{7}, std::size_t{3'000'000}}) {
      std::vector<float> values = input(rank, count);
      const Report report = sum_of(*job[rank], values);
      EXPECT_EQ(report.status, Status::complete) << report.detail;
      EXPECT_EQ(report.algorithm, Algorithm::hosts);
      EXPECT_EQ(values, sum(4, count));
    }
    for (std::uint32_t tag = 1'000'000; tag < 1'000'300; ++tag) {  // PyTorch takes a new tag a call
      std::vector<float> values = input(rank, 100, tag);
      EXPECT_EQ(sum_of(*job[rank], values, tag).algorithm, Algorithm::hosts);
      EXPECT_EQ(values, sum(4, 100, tag));
    }
    EXPECT_TRUE(job[rank]->barrier(10s));
  });
}

/// Splits the job in two parts: ranks 0 and 2, and the others in falling order.
Ranks split_in_two(const Ranks& job) {
  Ranks parts(job.size());
  on_all(static_cast<std::uint32_t>(job.size()), [&](Rank rank) {
    const bool even = rank == 0 || rank == 2;
    auto part = job[rank]->split(even ? std::vector<Rank>{0, 2} : std::vector<Rank>{4, 3, 1},
                                 even ? 1 : 2, 10s);
    ASSERT_TRUE(part) << part.error().message;
    parts[rank] = *std::move(part);
  });
  return parts;
}

TEST(HostsTest, ranks_of_two_users__share_nothing_and_are_named) {
  std::vector<RankInfo> ranks(4);
  for (const Rank rank : {Rank{1}, Rank{3}}) ranks[rank].network = "another host";
  EXPECT_EQ(against_sharing(ranks), "");
  ranks[3].user = 1000;
  EXPECT_EQ(against_sharing(ranks), "ranks 1 and 3 of a host run as users 0 and 1000");
  ranks[1].user = 1000;
  EXPECT_EQ(against_sharing(ranks), "");
}

TEST(HostsTest, communicator_that_is_split__has_memory_of_its_own) {
  const Ranks job = connect(5, Datapath::automatic);
  ASSERT_EQ(job.size(), 5u);
  const Ranks parts = split_in_two(job);
  on_all(5, [&](Rank rank) {
    Communicator& part = *parts[rank];
    const std::uint32_t size = part.world_size();
    EXPECT_THAT(part.hosts(), StartsWith(std::to_string(size) + " ranks on one host; calls share"));
    for (std::uint32_t round = 0; round < 20; ++round) {
      const std::size_t count = round == 7 ? 1'000'000 : 100;
      std::vector<float> mine = input(part.rank(), count, round), all = input(rank, count, round);
      auto call = part.allreduce_async(in_place(mine));
      EXPECT_EQ(sum_of(*job[rank], all).algorithm, Algorithm::hosts);
      ASSERT_TRUE(call);
      const Report& report = call->wait();
      EXPECT_EQ(report.status, Status::complete) << report.detail;
      EXPECT_EQ(report.algorithm, Algorithm::hosts);
      EXPECT_EQ(mine, sum(size, count, round));
      EXPECT_EQ(all, sum(5, count, round));
    }
    EXPECT_TRUE(part.barrier(10s));
    EXPECT_TRUE(part.close(10s));
  });
}

TEST(HostsTest, part_where_one_rank_cannot_share__goes_over_the_network) {
  const Ranks job = connect(5, Datapath::automatic);
  ASSERT_EQ(job.size(), 5u);
  // Another process has the name of the door.
  const auto squatter = hosts::open_door(job[0]->ranks()[0].door + ".7");
  ASSERT_TRUE(squatter) << squatter.error().message;
  on_all(5, [&](Rank rank) {
    auto part = job[rank]->split({0, 1, 2, 3, 4}, 7, 10s);
    ASSERT_TRUE(part) << part.error().message;
    EXPECT_THAT((*part)->hosts(), StartsWith("off: rank 0 shares no memory"));
    EXPECT_EQ((*part)->hosts().find("abstract UNIX socket") != std::string::npos, rank == 0);
    std::vector<float> values = input(rank, 100);
    const Report report = sum_of(**part, values);
    EXPECT_EQ(report.status, Status::complete);
    EXPECT_EQ(report.algorithm, Algorithm::one_shot);
    EXPECT_EQ(values, sum(5, 100));
    EXPECT_TRUE((*part)->close(10s));
  });
}

TEST(HostsTest, off__by_option_datapath_rate_or_faults_with_the_reason) {
  using Change = std::function<void(CommunicatorOptions&)>;
  for (const auto& [reason, change] :
       {std::pair<const char*, Change>{"TARPON_HOSTS=off",
                                       [](auto& options) { options.hosts = false; }},
        {"datapath mmsg is asked for", [](auto& options) { options.datapath = Datapath::mmsg; }},
        {"the rate is limited", [](auto& options) { options.max_bytes_per_second = 1e9; }},
        {"faults of the network are injected",
         [](auto& options) { options.faults.loss = 0.01; }}}) {
    const Ranks job = connect(2, Datapath::automatic, change);
    ASSERT_EQ(job.size(), 2u);
    on_all(2, [&, reason = reason](Rank rank) {
      EXPECT_THAT(job[rank]->hosts(), StartsWith("off: rank 0: "));
      EXPECT_THAT(job[rank]->hosts(), HasSubstr(reason));
      std::vector<float> values = input(rank, 100);
      EXPECT_EQ(sum_of(*job[rank], values).algorithm, Algorithm::one_shot);
      EXPECT_EQ(values, sum(2, 100));
      auto part = job[rank]->split({1, 0}, 1, 10s);
      ASSERT_TRUE(part) << part.error().message;
      EXPECT_EQ((*part)->hosts(), job[rank]->hosts());
    });
  }
}

TEST(HostsTest, one_rank_that_cannot__keeps_all_from_it) {
  const Ranks job = connect(3, Datapath::automatic, [](CommunicatorOptions& options) {
    if (options.rendezvous.rank == 1) options.max_bytes_per_second = 1e9;
  });
  ASSERT_EQ(job.size(), 3u);
  on_all(3, [&](Rank rank) {
    EXPECT_THAT(job[rank]->hosts(), StartsWith("off: rank 1: the rate is limited"));
  });
}

// The first call: no timer but that of silence wakes the others.
TEST(HostsTest, rank_that_begins_and_stands_still__is_found_silent) {
  const Ranks job = connect(3, Datapath::automatic, [](CommunicatorOptions& options) {
    options.progress_thread = options.rendezvous.rank != 2;
  });
  ASSERT_EQ(job.size(), 3u);
  std::vector<float> still = input(2, 100);
  auto call = job[2]->allreduce_async(in_place(still));  // nobody drives it
  ASSERT_TRUE(call);
  on_all(2, [&](Rank rank) {
    std::vector<float> values = input(rank, 100);
    AllreduceArguments arguments = in_place(values);
    arguments.deadline = 2s;
    const auto report = job[rank]->allreduce(arguments);
    ASSERT_TRUE(report);
    // The first to end it tells the other.
    if (report->detail.find("within the deadline") == std::string::npos) return;
    EXPECT_THAT(report->detail, HasSubstr("2 of 3 ranks answer"));
  });
}

TEST(HostsTest, differing_option__is_named) {
  const std::string file = rendezvous_file();
  on_all(2, [&](Rank rank) {
    auto options = CommunicatorOptions::for_rank(rank, 2, "file://" + file);
    options.hosts = rank == 0;
    const auto communicator = Communicator::connect(options);
    ASSERT_FALSE(communicator);
    EXPECT_THAT(communicator.error().message, HasSubstr("TARPON_HOSTS=o"));
  });
}

// -- the door ------------------------------------------------------------------------------------

/// Ranks of one host that hand memory over, as threads.
struct Meeting {
  std::vector<std::unique_ptr<Port>> ports;
  std::vector<Result<std::unique_ptr<hosts::SharedHost>>> results;
  Duration took{};
};

template <typename Change>
Meeting meet(std::uint32_t ranks, Change change, Duration patience = 10s) {
  std::vector<hosts::Door> doors;
  std::vector<Rank> all;
  Meeting meeting;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    doors.push_back(*hosts::open_door());
    UdpSocket socket = test::open_socket();
    const std::vector<sockaddr_in> self = {socket.local()};
    auto port = make_mmsg_port(std::move(socket), self);
    EXPECT_TRUE(port) << port.error().message;
    meeting.ports.push_back(std::move(*port));
    all.push_back(static_cast<Rank>(rank));
  }
  const std::string lowest = doors[0].name;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    meeting.results.emplace_back(fail(Error::Code::unavailable, "not called"));
  }
  const Time start = monotonic_now();
  on_all(ranks, [&](Rank rank) {
    hosts::SharedHost::Options options{.layout = {.hosts = {all}},
                                       .self = rank,
                                       .job = 77,
                                       .lowest_door = lowest,
                                       .port = meeting.ports[rank].get()};
    if (!change(rank, options)) return;
    meeting.results[rank] =
        hosts::SharedHost::share(std::move(doors[rank]), options, start + patience);
  });
  meeting.took = monotonic_now() - start;
  return meeting;
}

TEST(SharedHostTest, all_see_one_memory_which_is_zero_at_first) {
  const Meeting meeting = meet(5, [](Rank, auto&) { return true; });
  for (const auto& result : meeting.results) ASSERT_TRUE(result) << result.error().message;
  const auto memory = [&](Rank rank) { return (*meeting.results[rank])->group().memory; };
  EXPECT_EQ(memory(3).sleep_word(4).load(), 0u);
  memory(0).sleep_word(4).store(9);
  std::memset(memory(2).result(hosts::kOwnTagsBelow, 3), 7, memory(2).shape().place_bytes);
  for (Rank rank = 0; rank < 5; ++rank) {
    EXPECT_EQ((*meeting.results[rank])->group().self, rank);
    EXPECT_EQ(memory(rank).sleep_word(4).load(), 9u);
    EXPECT_EQ(memory(rank).result(hosts::kOwnTagsBelow, 3)[100], std::byte{7});
  }
}

TEST(SharedHostTest, each_rings_the_others) {
  const Meeting meeting = meet(3, [](Rank, auto&) { return true; });
  for (const Rank from : {Rank{0}, Rank{1}, Rank{2}}) {
    for (const Rank to : {Rank{0}, Rank{1}, Rank{2}}) {
      if (from == to) continue;
      (*meeting.results[from])->group().bells->ring(to);
      const Time start = monotonic_now();
      meeting.ports[to]->wait(start, start + 60s);
      EXPECT_LT(monotonic_now() - start, 60s);
    }
  }
}

TEST(SharedHostTest, rank_without_a_port__tells_the_others_at_once) {
  for (const Rank lacking : {Rank{0}, Rank{2}}) {
    const Meeting meeting = meet(
        3,
        [lacking](Rank rank, auto& options) {
          if (rank == lacking) options.port = nullptr;
          return true;
        },
        60s);
    for (const auto& result : meeting.results) EXPECT_FALSE(result);
    EXPECT_LT(meeting.took, 20s);
    EXPECT_THAT(meeting.results[lacking].error().message, HasSubstr("no port"));
  }
}

TEST(SharedHostTest, rank_that_does_not_come__is_waited_for_until_the_deadline) {
  const Meeting meeting = meet(
      3, [](Rank rank, auto&) { return rank != 1; }, 300ms);
  EXPECT_THAT(meeting.results[0].error().message, HasSubstr("does not come"));
  EXPECT_FALSE(meeting.results[2]);
}

TEST(SharedHostTest, stranger__gets_nothing_and_keeps_nobody_waiting) {
  std::vector<FileDescriptor> strangers;
  const Meeting meeting = meet(3, [&](Rank rank, auto& options) {
    if (rank != 1) return true;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    options.lowest_door.copy(address.sun_path + 1, sizeof address.sun_path - 1);
    const auto length =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + options.lowest_door.size());
    for (int i = 0; i < 3; ++i) {
      FileDescriptor stranger(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      EXPECT_EQ(::connect(stranger.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
      if (i > 0) {
        EXPECT_GT(::send(stranger.get(), "garbage", 7, MSG_NOSIGNAL), 0);
      }
      if (i < 2) strangers.push_back(std::move(stranger));
    }
    return true;
  });
  for (const auto& result : meeting.results) EXPECT_TRUE(result) << result.error().message;
}

TEST(SharedHostTest, other_job__gets_nothing) {
  const Meeting meeting = meet(
      2,
      [](Rank rank, auto& options) {
        if (rank == 1) options.job = 78;
        return true;
      },
      300ms);
  for (const auto& result : meeting.results) EXPECT_FALSE(result);
}

}  // namespace
}  // namespace tarpon::hosts_test
