// `tarpon xdp serve`: jobs of users without privileges on AF_XDP, and what becomes of them when a
// rank or the helper ends.
#include <bpf/bpf.h>
#include <gmock/gmock.h>

#include <fstream>
#include <numeric>

#include "collectives/communicator.h"
#include "tests/support/served_network.h"
#include "transport/clock.h"
#include "transport/port.h"
#include "transport/rung.h"

namespace tarpon::test::xdp_serve_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class XdpServe : public ServedNetworkTest {
 protected:
  void TearDown() override {
    far_helper_.reset();
    ServedNetworkTest::TearDown();
  }

  void serve_both() {
    serve();
    Command command = tool(serve_words("vb"));
    command.arguments.insert(command.arguments.begin(), {"nsenter", "--net=" + far_->path()});
    far_helper_ = std::make_unique<Process>(command);
    ASSERT_TRUE(far_helper_->says("vb: serves ranks at /run/tarpon/vb.sock"));
  }

  static CommunicatorOptions options_of(Rank rank) {
    CommunicatorOptions options;
    options.rendezvous.rank = rank;
    options.rendezvous.world_size = 2;
    options.rendezvous.address = std::string("tcp://") + kHere + ":29500";
    options.datapath = Datapath::xdp;
    options.address = rank == 0 ? kHere : kThere;
    options.interface = rank == 0 ? "va" : "vb";
    options.mtu = 1500;
    return options;
  }

  /// A rank that makes `calls` calls, and reports its datapath if all of them are right. It says
  /// "connected" before the first.
  static std::string run_rank(Rank rank, int calls, int said) {
    auto communicator = Communicator::connect(options_of(rank));
    if (!communicator) return communicator.error().message;
    if (said >= 0 && ::write(said, "c", 1) != 1) return "no pipe";
    constexpr std::size_t kCount = 100'000;
    for (int call = 0; call < calls; ++call) {
      std::vector<float> values(kCount, static_cast<float>(rank + 1));
      AllreduceArguments arguments;
      arguments.input = arguments.output = values.data();
      arguments.count = kCount;
      arguments.deadline = 20s;
      const auto report = (*communicator)->allreduce(arguments);
      if (!report) return report.error().message;
      if (report->status != Status::complete) return report->detail;
      if (values != std::vector<float>(kCount, 3.0f)) return "a wrong sum";
    }
    const RankInfo& info = (*communicator)->ranks()[rank];
    const auto statistics = (*communicator)->port_statistics();
    if (auto closed = (*communicator)->close(20s); !closed) return closed.error().message;
    return fmt::format("{}: {}; by the kernel: {}", info.datapath, info.datapath_reason,
                       statistics.slow_path);
  }

  std::unique_ptr<UserProcess> start(Rank rank, const std::function<std::string()>& body) {
    std::optional<testing_support::Inside> inside;
    if (rank == 1) inside.emplace(*far_);
    return std::make_unique<UserProcess>(rank == 0 ? kUser : kOtherUser, body);
  }

  std::unique_ptr<UserProcess> start_rank(Rank rank, int calls, int said = -1) {
    return start(rank, [=] { return run_rank(rank, calls, said); });
  }

  /// A rank that says "connected", and shrinks the job once the helper is dead.
  static std::string shrink_rank(Rank rank, int said) {
    auto communicator = Communicator::connect(options_of(rank));
    if (!communicator) return communicator.error().message;
    if (::write(said, "c", 1) != 1) return "no pipe";
    for (int i = 0; i < 2000 && xdp::look_for_helper(rank == 0 ? "va" : "vb"); ++i) {
      ::usleep(10'000);
    }
    auto fresh = (*communicator)->shrink(20s);
    if (!fresh) return fresh.error().message;
    const RankInfo& info = (*fresh)->ranks()[rank];
    return fmt::format("{}: {}", info.datapath, info.datapath_reason);
  }

  void expect_job_runs(int calls = 5) {
    const auto there = start_rank(1, calls);
    const auto here = start_rank(0, calls);
    EXPECT_THAT(here->text(), StartsWith("xdp: asked for, by tarpon xdp serve: copy mode on va"));
    EXPECT_THAT(there->text(), StartsWith("xdp: asked for, by tarpon xdp serve: copy mode on vb"));
  }

  /// Opens queue 0, and closes it. On a busy host the kernel takes long to release the queue of the
  /// client before.
  std::string open_when_free() const {
    std::string error;
    for (int i = 0; i < 50; ++i) {
      error = ServedRank(interface_).error;
      if (error.find("another AF_XDP socket has it") == std::string::npos) break;
    }
    return error;
  }

  std::uint64_t ring_packets() const {
    const auto program = xdp::Program::find(interface_);
    const auto verdicts = program ? program->maps().verdicts() : fail(program.error());
    return verdicts ? (*verdicts)[TARPON_VERDICT_RING] : 0;
  }

  std::unique_ptr<Process> far_helper_;
};

TEST_F(XdpServe, a_job_of_users_without_privileges_runs_on_af_xdp) {
  serve_both();
  expect_job_runs();
  EXPECT_GT(ring_packets(), 1000u);
  EXPECT_TRUE(ports_become(0));
}

TEST_F(XdpServe, without_a_helper_the_refusal_names_it) {
  const auto said = as_user(kUser, [] {
    auto options = options_of(0);
    options.rendezvous.world_size = 1;
    const auto alone = Communicator::connect(options);
    return alone ? std::string("connected") : alone.error().message;
  });
  EXPECT_THAT(said, HasSubstr("; or have root run tarpon xdp serve va"));
}

TEST_F(XdpServe, auto_sees_the_program_through_the_helper) {
  const auto facts = [] {
    return as_user(kUser, [] {
      const RungFacts found = read_rung_facts("va", 1500);
      return fmt::format("{}{}", found.served ? "served: " : "", found.against_zero_copy);
    });
  };
  EXPECT_EQ(facts(), "not loaded on va");
  serve();
  EXPECT_EQ(facts(), "served: the driver of va has no zero-copy and would copy");
  kill_helper();
  EXPECT_THAT(facts(), StartsWith("tarpon xdp serve does not run"));
}

TEST_F(XdpServe, the_helper_keeps_three_capabilities) {
  serve();
  const std::string status = content_of(fmt::format("/proc/{}/status", helper_->pid()));
  // CAP_NET_ADMIN (12), CAP_NET_RAW (13), CAP_BPF (39)
  EXPECT_THAT(status, AllOf(HasSubstr("CapEff:\t0000008000003000"),
                            HasSubstr("CapPrm:\t0000008000003000"), HasSubstr("NoNewPrivs:\t1")));
}

TEST_F(XdpServe, a_socket_serves_its_interface_and_its_queue_alone) {
  serve();
  const auto said = as_user(kUser, [this]() -> std::string {
    const FileDescriptor own = udp_socket(kHere);
    auto access = xdp::ServedPort::claim("va", own.get(), 7);
    if (!access) return access.error().message;
    auto umem = xdp::Umem::map(64);
    xdp::SocketOptions options{.interface = interface_, .source = (*access)->source()};
    auto socket = xdp::Socket::create(*umem, options);
    if (!socket) return socket.error().message;
    const int lo = static_cast<int>(::if_nametoindex("lo"));
    if (::setsockopt(socket->fd(), SOL_SOCKET, SO_BINDTODEVICE, "", 0) == 0) return "unbound";
    if (xdp::bind_socket(socket->fd(), static_cast<unsigned>(lo), 0, XDP_COPY) != EINVAL) {
      return "bound to lo";
    }
    // The rank may bind it to another queue of the interface, but the helper sees that.
    if (const int error = xdp::bind_socket(socket->fd(), interface_, 1, XDP_COPY); error != 0) {
      return std::strerror(error);
    }
    return fmt::format("{}", (*access)->source()->bind(0, XDP_COPY));
  });
  EXPECT_EQ(said, fmt::format("{}", EBUSY));
  EXPECT_EQ(open_ports(), 0u);
}

TEST_F(XdpServe, a_killed_rank_frees_its_port_and_its_queue) {
  serve();
  const auto first = std::make_unique<UserProcess>(kUser, [this] {
    const ServedRank rank(interface_);
    if (!rank.error.empty()) return rank.error;
    for (;;) ::pause();
  });
  ASSERT_TRUE(ports_become(1));
  const auto second = [this] {
    return as_user(kOtherUser, [this] { return ServedRank(interface_).error; });
  };
  EXPECT_EQ(second(), "queue 0: another rank of tarpon xdp serve has it");
  const auto beside = as_user(kOtherUser, [this] { return ServedRank(interface_, 1).error; });
  EXPECT_EQ(beside, "");
  first->kill();
  EXPECT_TRUE(ports_become(0));
  EXPECT_EQ(as_user(kOtherUser, [this] { return open_when_free(); }), "");
}

TEST_F(XdpServe, a_thousand_clients_in_turn_leave_nothing) {
  serve();
  const auto before = descriptors();
  const auto said = as_user(kUser, [this]() -> std::string {
    for (int i = 0; i < 1000; ++i) {
      const FileDescriptor own = udp_socket(kHere);
      auto access = xdp::ServedPort::claim("va", own.get(), 7);
      if (!access) return fmt::format("client {}: {}", i, access.error().message);
      auto socket = (*access)->source()->make(0, false);
      if (!socket) return fmt::format("client {}: {}", i, socket.error().message);
      if (i % 25 != 0) continue;
      access->reset();
      const std::string error = open_when_free();
      if (!error.empty()) return fmt::format("client {}: {}", i, error);
    }
    return "";
  });
  EXPECT_EQ(said, "");
  EXPECT_TRUE(ports_become(0));
  EXPECT_TRUE(descriptors_become(before)) << descriptors() << ", before " << before;
}

TEST_F(XdpServe, a_running_job_survives_the_helper_and_a_new_helper_takes_over) {
  serve_both();
  int said[2];
  ASSERT_EQ(::pipe(said), 0);
  const auto there = start_rank(1, 300, said[1]);
  const auto here = start_rank(0, 300, said[1]);
  ::close(said[1]);  // the ranks alone have it: it ends with them
  char both[2];
  ASSERT_EQ(::read(said[0], both, 1) + ::read(said[0], both, 1), 2) << here->text();
  kill_helper();
  EXPECT_TRUE(attached()) << "the pin keeps it";
  serve();  // while the job runs: it has queue 0, and another client gets the next one
  EXPECT_EQ(as_user(kUser, [this] { return ServedRank(interface_, 1).error; }), "");
  const auto taken = as_user(kUser, [this] { return ServedRank(interface_, 0).error; });
  EXPECT_THAT(taken, AnyOf("", HasSubstr("another AF_XDP socket has it")));
  EXPECT_THAT(here->text(), StartsWith("xdp: asked for, by tarpon xdp serve"));
  EXPECT_THAT(there->text(), StartsWith("xdp: asked for, by tarpon xdp serve"));
  EXPECT_EQ(open_ports(), 1u) << "of the first job, which the new helper does not know";
  EXPECT_EQ(as_user(kUser, [this] { return open_when_free(); }), "");
  EXPECT_TRUE(ports_become(0)) << "it goes with the next owner of its queue";
  expect_job_runs();
  ::close(said[0]);
}

TEST_F(XdpServe, a_job_that_shrinks_after_the_helper_s_death_takes_sockets) {
  serve_both();
  int said[2];
  ASSERT_EQ(::pipe(said), 0);
  const auto there = start(1, [&] { return shrink_rank(1, said[1]); });
  const auto here = start(0, [&] { return shrink_rank(0, said[1]); });
  ::close(said[1]);
  char both[2];
  ASSERT_EQ(::read(said[0], both, 1) + ::read(said[0], both, 1), 2) << here->text();
  ::close(said[0]);
  far_helper_.reset();
  kill_helper();
  const std::string text = here->text();
  EXPECT_THAT(text, AllOf(Not(StartsWith("xdp")),
                          HasSubstr(": tarpon xdp serve does not run (/run/tarpon/va.sock); ")));
  EXPECT_THAT(there->text(), HasSubstr("tarpon xdp serve does not run (/run/tarpon/vb.sock); "));
}

TEST_F(XdpServe, a_stopped_helper_removes_its_socket_and_leaves_the_program) {
  serve();
  const Ended second = xdp_tool({"serve", "va"});
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.error,
              HasSubstr("/run/tarpon/va.sock: another tarpon xdp serve listens there"));
  ::kill(helper_->pid(), SIGTERM);
  EXPECT_EQ(helper_->wait().exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists("/run/tarpon/va.sock"));
  EXPECT_TRUE(attached());
  EXPECT_EQ(xdp_tool({"unload", "va"}).exit_code, 0);
}

TEST_F(XdpServe, a_second_helper_loads_nothing) {
  const ScratchDirectory directory;
  const std::string path = directory / "sock";
  const FileDescriptor other(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(other.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(other.get(), 1), 0);
  const Ended refused = xdp_tool({"serve", "va", "--socket", path});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.error, HasSubstr("another tarpon xdp serve listens there"));
  EXPECT_FALSE(attached());
}

TEST_F(XdpServe, a_helper_without_its_program_ends) {
  serve();
  {
    auto program = xdp::Program::find(interface_);
    ASSERT_TRUE(program) << program.error().message;
    ASSERT_TRUE(program->detach());
  }
  const Ended ended = helper_->wait();
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.error, HasSubstr("the XDP program is no longer on va: restart"));
}

TEST_F(XdpServe, wrong_options_are_refused_before_anything_is_loaded) {
  const Ended group = xdp_tool({"serve", "va", "--group", "no-such-group"});
  EXPECT_EQ(group.exit_code, 1);
  EXPECT_THAT(group.error, HasSubstr("--group no-such-group: there is no such group"));
  EXPECT_FALSE(attached());
  std::ofstream("/run/file") << "ordinary";
  const Ended file = xdp_tool({"serve", "va", "--socket", "/run/file"});
  EXPECT_EQ(file.exit_code, 1);
  EXPECT_THAT(file.error, HasSubstr("/run/file is there, and is not a socket"));
}

}  // namespace
}  // namespace tarpon::test::xdp_serve_test
