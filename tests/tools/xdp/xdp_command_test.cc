// `tarpon xdp` from outside, in namespaces of its own.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/foreign_program.h"
#include "tests/support/frames.h"
#include "tests/support/xdp_network.h"
#include "transport/clock.h"
#include "xdp/program.h"

namespace tarpon::test::xdp_command_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using testing_support::attach_foreign_program;
using testing_support::Frame;
using testing_support::kFrameAddress;
using testing_support::kFrameJob;
using testing_support::kFramePort;
using testing_support::load_foreign_program;

/// One line that starts with "tarpon: " and holds `parts`; nothing on standard output.
void expect_refused(const Ended& ended, const std::vector<std::string>& parts, int code = 1) {
  EXPECT_EQ(ended.exit_code, code);
  EXPECT_EQ(lines_of(ended.error).size(), 1u) << ended.error;
  EXPECT_THAT(ended.error, StartsWith("tarpon: "));
  EXPECT_LT(ended.error.size(), 400u);
  for (const std::string& part : parts) EXPECT_THAT(ended.error, HasSubstr(part));
  EXPECT_EQ(ended.out, "");
}

class XdpCommand : public XdpNetworkTest {
 protected:
  Ended load(std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"load", "va"});
    return xdp_tool(more);
  }

  /// `frame` arrives at va.
  void arrive(const std::vector<std::byte>& frame) {
    const FileDescriptor socket(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0));
    sockaddr_ll to{};
    to.sll_family = AF_PACKET;
    to.sll_ifindex = static_cast<int>(pair_->b());
    ASSERT_EQ(::sendto(socket.get(), frame.data(), frame.size(), 0,
                       reinterpret_cast<const sockaddr*>(&to), sizeof to),
              static_cast<ssize_t>(frame.size()));
  }
};

/// The status of the process `tarpon WORDS` that has these capabilities. Its output has no room at
/// first, so that it does not end before; then it succeeds.
std::string status_with(const std::string& capabilities, const std::string& words) {
  const ScratchDirectory scratch;
  const std::string fifo = scratch / "full";
  EXPECT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const FileDescriptor full(::open(fifo.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  const std::string page(4096, ' ');
  while (::write(full.get(), page.data(), page.size()) > 0) {
  }
  Process process({{"sh", "-c", fmt::format("exec {} {} >{}", TARPON_TOOL, words, fifo)}, {}, "."});
  const std::string file = fmt::format("/proc/{}/status", process.pid());
  const Time until = monotonic_now() + kHang;
  std::string status;
  do {
    status = content_of(file);
  } while (status.find("CapPrm:\t" + capabilities) == std::string::npos && monotonic_now() < until);
  std::array<char, 4096> room{};
  while (::read(full.get(), room.data(), room.size()) > 0) {
  }
  EXPECT_EQ(process.wait().exit_code, 0) << words;
  return status;
}

TEST_F(XdpCommand, load_unload_and_clean__drop_capabilities) {
  // CAP_DAC_READ_SEARCH (2), CAP_NET_ADMIN (12), CAP_SYS_PTRACE (19), CAP_SYS_ADMIN (21),
  // CAP_BPF (39).
  const std::string kept = "0000008000281004";
  for (const char* words : {"xdp load va", "xdp unload va", "xdp clean"}) {
    EXPECT_THAT(status_with(kept, words),
                AllOf(HasSubstr("CapPrm:\t" + kept), HasSubstr("CapEff:\t" + kept),
                      HasSubstr("NoNewPrivs:\t1")));
  }
  EXPECT_TRUE(vanishes(pair_->a()));
}

TEST_F(XdpCommand, load__stays_until_unload) {
  const Ended loaded = load();
  ASSERT_EQ(loaded.exit_code, 0) << loaded.error;
  EXPECT_THAT(loaded.out, HasSubstr("driver veth resets nothing"));
  EXPECT_THAT(loaded.out, HasSubstr("va: loaded (native, id "));
  EXPECT_EQ(loaded.error, "");
  EXPECT_TRUE(attached());
  EXPECT_THAT(bpf_files(), Contains(EndsWith("-va/link")));
  EXPECT_THAT(bpf_files(), Contains(EndsWith("-va/tarpon_ports")));
  const auto status = status_of("va");
  EXPECT_EQ(status.at("program").at("name"), "tarpon_xdp");
  EXPECT_EQ(status.at("program").at("mode"), "native");
  EXPECT_EQ(status.at("program").at("ours"), true);
  EXPECT_EQ(status.at("program").at("pins").size(), 1u);
  EXPECT_THAT(status.at("program").at("holders"), IsEmpty());
  EXPECT_EQ(status.at("counters").size(), TARPON_VERDICT_COUNT);

  const Ended unloaded = xdp_tool({"unload", "va"});
  EXPECT_EQ(unloaded.exit_code, 0) << unloaded.error;
  EXPECT_THAT(unloaded.out, StartsWith("va: unloaded tarpon_xdp (id "));
  EXPECT_FALSE(attached());
  EXPECT_THAT(bpf_files(), IsEmpty());
  expect_refused(xdp_tool({"unload", "va"}), {"va: no XDP program loaded"});
  EXPECT_THAT(xdp_tool({"status", "va"}).out, HasSubstr("<no XDP program loaded>"));
}

TEST_F(XdpCommand, load__again_changes_nothing) {
  ASSERT_EQ(load().exit_code, 0);
  const auto id = status_of("va").at("program").at("id");
  const Ended again = load();
  EXPECT_EQ(again.exit_code, 0) << again.error;
  EXPECT_THAT(again.out, StartsWith("va: already loaded (native, id "));
  EXPECT_EQ(status_of("va").at("program").at("id"), id);
  expect_refused(load({"--mode", "skb"}), {"in native mode", "tarpon xdp unload va first"});
  expect_refused(load({"--shared"}), {"alone", "tarpon xdp unload va first"});
}

TEST_F(XdpCommand, load__what_a_job_attached_stays_then) {
  auto job = xdp::Program::use(pair_->a(), xdp::AttachMode::native);
  ASSERT_TRUE(job) << job.error().message;
  EXPECT_EQ(status_of("va").at("program").at("holders").at(0), ::getpid());
  expect_refused(xdp_tool({"unload", "va"}), {"goes with its job", fmt::format("{}", ::getpid())});
  const Ended loaded = load();
  EXPECT_EQ(loaded.exit_code, 0) << loaded.error;
  EXPECT_THAT(loaded.out, StartsWith("va: already loaded by a job, stays now"));
  const std::uint32_t id = job->id();
  job = fail(Error::Code::io, "gone");
  ::usleep(50'000);
  EXPECT_EQ(status_of("va").at("program").at("id"), id);
  EXPECT_EQ(xdp_tool({"unload", "va"}).exit_code, 0);
  EXPECT_TRUE(vanishes(pair_->a()));
}

TEST_F(XdpCommand, unload__a_running_job_keeps_its_program) {
  ASSERT_EQ(load().exit_code, 0);
  auto job = xdp::Program::find(pair_->a());
  ASSERT_TRUE(job) << job.error().message;
  const Ended unloaded = xdp_tool({"unload", "va"});
  EXPECT_EQ(unloaded.exit_code, 0) << unloaded.error;
  EXPECT_THAT(unloaded.out, AllOf(HasSubstr("it goes with that"),
                                  HasSubstr(fmt::format("process {}", ::getpid()))));
  EXPECT_THAT(bpf_files(), IsEmpty());
  EXPECT_TRUE(attached());
  job = fail(Error::Code::io, "gone");
  EXPECT_TRUE(vanishes(pair_->a()));
}

TEST_F(XdpCommand, stranger__named_and_left_alone) {
  const FileDescriptor program = load_foreign_program();
  const FileDescriptor link = attach_foreign_program(program, pair_->a());
  ASSERT_TRUE(link) << std::strerror(errno);
  const auto id = (*xdp::attached_to(pair_->a()))->id;
  const std::string named = fmt::format("stranger (id {})", id);
  expect_refused(load(), {"va", named, "of somebody else"});
  expect_refused(xdp_tool({"unload", "va"}), {named, "stays"});
  EXPECT_EQ(xdp_tool({"clean"}).out, "nothing to remove\n");
  const auto status = status_of("va");
  EXPECT_EQ(status.at("program").at("name"), "stranger");
  EXPECT_EQ(status.at("program").at("ours"), false);
  EXPECT_FALSE(status.contains("counters"));
  EXPECT_EQ((*xdp::attached_to(pair_->a()))->id, id);
  const Ended shared = load({"--shared"});
  EXPECT_EQ(shared.exit_code, 1);
  EXPECT_EQ((*xdp::attached_to(pair_->a()))->id, id);
}

TEST_F(XdpCommand, load__skb_mode) {
  const Ended loaded = load({"--mode", "skb"});
  ASSERT_EQ(loaded.exit_code, 0) << loaded.error;
  EXPECT_THAT(loaded.out, HasSubstr("va: loaded (skb, id "));
  EXPECT_EQ(status_of("va").at("program").at("mode"), "skb");
  EXPECT_EQ(xdp_tool({"unload", "va"}).exit_code, 0);
  expect_refused(load({"--mode", "fast"}), {"--mode", "\"fast\"", "native, skb"}, 2);
}

TEST_F(XdpCommand, load__shared_or_a_clear_refusal) {
  const Ended shared = load({"--shared"});
  if (shared.exit_code == 0) {
    EXPECT_THAT(shared.out, HasSubstr("shared by libxdp's dispatcher"));
    EXPECT_TRUE(xdp::Program::find(pair_->a()));
    EXPECT_THAT(load({"--shared"}).out, HasSubstr("already loaded"));
    EXPECT_EQ(xdp_tool({"unload", "va"}).exit_code, 0);
  } else {
    expect_refused(shared, {"--shared", "type ext", "load without --shared"});
  }
  EXPECT_FALSE(attached());
  EXPECT_THAT(bpf_files(), ::testing::Each(::testing::Not(HasSubstr("-va"))));
  expect_refused(load({"--shared", "--pin", "/sys/fs/bpf/x"}), {"--pin", "--shared"}, 2);
}

TEST_F(XdpCommand, load__in_a_directory_of_choice) {
  expect_refused(load({"--pin", "/tmp/no-bpf-here"}), {"/tmp/no-bpf-here", "not on a BPF file"});
  EXPECT_FALSE(attached());
  const Ended loaded = load({"--pin", "/sys/fs/bpf/some/where"});
  ASSERT_EQ(loaded.exit_code, 0) << loaded.error;
  EXPECT_EQ(status_of("va").at("program").at("pins").at(0), "/sys/fs/bpf/some/where/link");
  const ScratchDirectory scratch;
  std::filesystem::create_directory_symlink("/sys/fs/bpf/some/where", scratch / "where");
  for (const std::string& directory :
       {std::string("/sys/fs/bpf/some/where"), std::string("/sys/fs/bpf/some/where/"),
        std::string("/sys/fs/bpf//some/./where"), std::string("/sys/fs/bpf/some/../some/where"),
        scratch / "where"}) {
    expect_refused(xdp_tool({"load", "vb", "--pin", directory}),
                   {"/sys/fs/bpf/some/where is taken"});
    EXPECT_TRUE(attached()) << directory;
  }
  EXPECT_EQ(xdp_tool({"unload", "va"}).exit_code, 0);
  EXPECT_THAT(bpf_files(), ::testing::ElementsAre("some"));
}

TEST_F(XdpCommand, load__ordinary_files_in_the_directory_of_choice_stay) {
  const ScratchDirectory scratch;
  const std::vector<std::string> files{"link", "tarpon_notes"};
  for (const std::string& file : files) std::ofstream(scratch / file) << "mine";
  expect_refused(load({"--pin", scratch.path()}), {"not on a BPF file"});
  for (const std::string& file : files) EXPECT_EQ(content_of(scratch / file), "mine");
}

TEST_F(XdpCommand, load__refusals_name_thing_and_remedy) {
  expect_refused(xdp_tool({"load", "nope"}), {"no interface \"nope\"", "lo, ", "va", "vb"});
  expect_refused(xdp_tool({"status", "nope"}), {"no interface \"nope\""});
  expect_refused(xdp_tool({"unload", "nope"}), {"no interface \"nope\""});
  expect_refused(xdp_tool({}), {"load, serve, status, unload or clean"}, 2);
  expect_refused(xdp_tool({"lod"}), {"\"xdp lod\" is not a command: did you mean load?"}, 2);
  expect_refused(xdp_tool({"load"}),
                 {"INTERFACE is missing: write tarpon xdp load [OPTION...] INTERFACE"}, 2);
  expect_refused(load({"--confirm", "30"}), {"--confirm", "\"30\" has no unit"}, 2);
  const Ended loopback = xdp_tool({"load", "lo"});
  EXPECT_EQ(loopback.exit_code, 1);
  EXPECT_THAT(loopback.error, HasSubstr("lo is loopback, which has no native XDP"));
  EXPECT_THAT(bpf_files(), IsEmpty());
}

TEST_F(XdpCommand, load__too_few_queues) {
  testing_support::run_command(
      "ip link add vc numtxqueues 2 numrxqueues 1 type veth peer name vd numtxqueues 2 numrxqueues "
      "2");
  const Ended refused = xdp_tool({"load", "vc"});
  testing_support::run_command("ip link del vc");
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.error, AllOf(HasSubstr("queues"), HasSubstr("ethtool -L vc rx N")));
}

TEST_F(XdpCommand, load__without_privileges) {
  const std::vector<std::string> nobody{"setpriv", "--reuid",        "65534",    "--regid",
                                        "65534",   "--clear-groups", TARPON_TOOL};
  const auto as_nobody = [&](const std::vector<std::string>& arguments) {
    Command command{nobody, {}, "."};
    command.arguments.insert(command.arguments.end(), arguments.begin(), arguments.end());
    return run(command);
  };
  if (as_nobody({"--version"}).exit_code != 0) GTEST_SKIP() << "nobody cannot run the tool here";
  expect_refused(as_nobody({"xdp", "load", "va"}), {"CAP_BPF", "run as root"});
  expect_refused(as_nobody({"xdp", "serve", "va"}), {"run as root, sudo tarpon xdp serve va"});
  ASSERT_EQ(load().exit_code, 0);
  expect_refused(as_nobody({"xdp", "status", "va"}), {"CAP_SYS_ADMIN"});
}

TEST_F(XdpCommand, load__refused_where_the_mount_would_not_last) {
  // As `ip netns exec` does: a mount namespace for the command alone.
  Command command = tool({"xdp", "load", "va"});
  command.arguments.insert(command.arguments.begin(), {"unshare", "--mount"});
  expect_refused(run(command), {"/sys/fs/bpf", "ip netns exec", "nsenter"});
  EXPECT_FALSE(attached());
}

TEST_F(XdpCommand, confirm__end_of_input_detaches) {
  const Ended ended = load({"--confirm", "30s"});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.out, HasSubstr("the line \"yes\" within 30s keeps it"));
  EXPECT_EQ(ended.error, "tarpon: va: not confirmed (standard input ended): detached again\n");
  EXPECT_TRUE(vanishes(pair_->a()));
  EXPECT_THAT(bpf_files(), IsEmpty());
}

TEST_F(XdpCommand, confirm__yes_keeps_other_lines_do_not) {
  const std::string load_command = TARPON_TOOL " xdp load va --confirm 30s";
  const Ended no = run({{"sh", "-c", "echo no | " + load_command}, {}, "."});
  EXPECT_EQ(no.exit_code, 1);
  EXPECT_TRUE(vanishes(pair_->a()));
  const Ended yes = run({{"sh", "-c", "(echo what; echo yes) | " + load_command}, {}, "."});
  EXPECT_EQ(yes.exit_code, 0) << yes.error;
  EXPECT_THAT(yes.out, HasSubstr("va: loaded"));
  EXPECT_TRUE(attached());
}

TEST_F(XdpCommand, confirm__time_and_signals_detach) {
  const ScratchDirectory scratch;
  ASSERT_EQ(::mkfifo((scratch / "in").c_str(), 0600), 0);
  const FileDescriptor silent(::open((scratch / "in").c_str(), O_RDWR | O_CLOEXEC));
  const auto with_silence = [&](const char* limit) {
    return Command{
        {"sh", "-c",
         fmt::format("exec {} xdp load va --confirm {} <{}", TARPON_TOOL, limit, scratch / "in")},
        {},
        "."};
  };
  const Ended late = run(with_silence("50ms"));
  EXPECT_EQ(late.exit_code, 1);
  EXPECT_THAT(late.error, HasSubstr("the time passed"));
  EXPECT_TRUE(vanishes(pair_->a()));
  for (const int signal : {SIGINT, SIGTERM, SIGKILL}) {
    Process process(with_silence("1h"));
    ASSERT_TRUE(process.says("keeps it"));
    EXPECT_TRUE(attached());
    // CAP_NET_ADMIN (12), CAP_SYS_ADMIN (21), CAP_BPF (39): the others are dropped.
    EXPECT_THAT(content_of(fmt::format("/proc/{}/status", process.pid())),
                AllOf(HasSubstr("CapPrm:\t0000008000201000"), HasSubstr("NoNewPrivs:\t1")));
    ::kill(process.pid(), signal);
    const Ended ended = process.wait();
    if (signal != SIGKILL) {
      EXPECT_EQ(ended.exit_code, 1);
      EXPECT_THAT(ended.error, HasSubstr("interrupted"));
      EXPECT_THAT(bpf_files(), IsEmpty());
    }
    EXPECT_TRUE(vanishes(pair_->a())) << signal;
  }
  EXPECT_EQ(xdp_tool({"clean"}).out, "nothing to remove\n");
  EXPECT_THAT(bpf_files(), IsEmpty());
}

TEST_F(XdpCommand, confirm__detaches_under_a_job_that_came_meanwhile) {
  const ScratchDirectory scratch;
  ASSERT_EQ(::mkfifo((scratch / "in").c_str(), 0600), 0);
  const FileDescriptor silent(::open((scratch / "in").c_str(), O_RDWR | O_CLOEXEC));
  const std::string command =
      fmt::format("exec {} xdp load va --confirm 1h <{}", TARPON_TOOL, scratch / "in");
  Process process({{"sh", "-c", command}, {}, "."});
  ASSERT_TRUE(process.says("keeps it"));
  auto job = xdp::Program::use(pair_->a(), xdp::AttachMode::native);
  ASSERT_TRUE(job) << job.error().message;
  EXPECT_FALSE(job->attached_here());
  ::kill(process.pid(), SIGTERM);
  const Ended ended = process.wait();
  EXPECT_EQ(ended.error, "tarpon: va: not confirmed (interrupted): detached again\n");
  EXPECT_FALSE(attached());
  EXPECT_THAT(bpf_files(), IsEmpty());
}

TEST_F(XdpCommand, status__ports_and_counters) {
  ASSERT_EQ(load().exit_code, 0);
  {
    auto program = xdp::Program::find(pair_->a());
    ASSERT_TRUE(program) << program.error().message;
    const tarpon_port_key key{htonl(kFrameAddress), htons(kFramePort), 0};
    auto windows = program->maps().open_port(key, testing_support::frame_entry(3, 2));
    ASSERT_TRUE(windows) << windows.error().message;
    windows->publish(9, 100);
  }
  Frame frame(64);
  arrive(frame.bytes());
  frame.header.tag = 9;
  frame.header.operation = 99;
  arrive(frame.bytes());
  frame.header.magic = 1;
  arrive(frame.bytes());
  const auto status = status_of("va");
  EXPECT_EQ(status.at("counters").at("ring"), 1);
  EXPECT_EQ(status.at("counters").at("closed"), 1);
  EXPECT_EQ(status.at("counters").at("magic"), 1);
  const auto& port = status.at("ports").at(0);
  EXPECT_EQ(port.at("address"), "10.9.9.9");
  EXPECT_EQ(port.at("port"), kFramePort);
  EXPECT_EQ(port.at("queues"), (nlohmann::json{0, 1}));
  EXPECT_FALSE(port.contains("job")) << "the cookie is not shown";
  EXPECT_EQ(port.at("alive"), false);
  EXPECT_EQ(port.at("late"), (nlohmann::json{{"0", 1}}));
  EXPECT_TRUE(status.contains("sockets"));
  const std::string text = xdp_tool({"status"}).out;
  EXPECT_THAT(text, HasSubstr("10.9.9.9:7000, queues 0, 1, late: rank 0: 1"));
  EXPECT_THAT(text, HasSubstr("closed 1, ring 1"));
  EXPECT_THAT(text, HasSubstr("vb              <no XDP program loaded>"));
  for (const std::string& line : lines_of(text)) EXPECT_LT(line.size(), 160u) << line;
}

TEST_F(XdpCommand, status__late_packets_of_a_group_are_its_port_s) {
  ASSERT_EQ(load().exit_code, 0);
  {
    auto program = xdp::Program::find(pair_->a());
    ASSERT_TRUE(program) << program.error().message;
    tarpon_port_entry entry = testing_support::frame_entry(1, 0);
    auto windows = program->maps().open_port({htonl(kFrameAddress), htons(kFramePort), 0}, entry);
    ASSERT_TRUE(windows) << windows.error().message;
    entry.mac[0] = 1;  // a multicast address
    ASSERT_TRUE(program->maps().open_group({htonl(0xef010203), htons(kFramePort), 0}, entry));
    windows->publish(9, 100);
  }
  Frame frame(64);
  frame.header.tag = 9;
  frame.header.operation = 99;
  arrive(frame.bytes());
  std::map<std::string, nlohmann::json> late;  // by address
  const auto status = status_of("va");
  for (const auto& port : status.at("ports")) late[port.at("address")] = port.at("late");
  EXPECT_EQ(late["10.9.9.9"], (nlohmann::json{{"0", 1}}));
  EXPECT_EQ(late["239.1.2.3"], nlohmann::json::object());
}

TEST_F(XdpCommand, status__watch_until_interrupted) {
  for (const bool json : {false, true}) {
    Command command = tool({"xdp", "status", "va", "--watch"});
    if (json) command.arguments.emplace_back("--json");
    Process process(command);
    ASSERT_TRUE(process.says(json ? "}\n{" : "\n\nInterface"));  // a second block
    ::kill(process.pid(), SIGINT);
    const Ended ended = process.wait();
    EXPECT_EQ(ended.exit_code, 0);
    EXPECT_EQ(ended.error, "");
    EXPECT_EQ(ended.out.find('\033'), std::string::npos);
  }
}

TEST_F(XdpCommand, load__a_dead_pin_gives_way) {
  ASSERT_EQ(load().exit_code, 0);
  pair_.reset();
  pair_.emplace();
  const Ended again = load();
  EXPECT_EQ(again.exit_code, 0) << again.error;
  EXPECT_EQ(status_of("va").at("program").at("pins").size(), 1u);
}

}  // namespace
}  // namespace tarpon::test::xdp_command_test
