// `tarpon xdp clean`: what dead owners left goes, everything else stays.
#include <bpf/bpf.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <iterator>
#include <sstream>

#include "tests/support/frames.h"
#include "tests/support/xdp_network.h"
#include "xdp/program.h"

namespace tarpon::test::xdp_clean_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing_support::kFrameAddress;
using testing_support::kFramePort;

using XdpClean = XdpNetworkTest;

TEST_F(XdpClean, clean__what_the_dead_left) {
  ASSERT_EQ(xdp_tool({"load", "va"}).exit_code, 0);
  ASSERT_EQ(xdp_tool({"load", "vb"}).exit_code, 0);
  const FileDescriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(kFrameAddress);
  address.sin_port = htons(kFramePort);
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  {
    auto program = xdp::Program::find(pair_->a());
    ASSERT_TRUE(program) << program.error().message;
    const tarpon_port_key alive{htonl(kFrameAddress), htons(kFramePort), 0};
    const tarpon_port_key dead{htonl(kFrameAddress), htons(kFramePort + 1), 0};
    ASSERT_TRUE(program->maps().open_port(alive, testing_support::frame_entry(1, 0)));
    ASSERT_TRUE(program->maps().open_port(dead, testing_support::frame_entry(2, 1)));
  }
  EXPECT_EQ(xdp_tool({"clean"}).out, "removed port 10.9.9.9:7001 of va: its socket is gone\n");
  EXPECT_EQ(status_of("va").at("ports").size(), 1u);
  EXPECT_EQ(status_of("va").at("ports").at(0).at("alive"), true);
  EXPECT_EQ(xdp_tool({"clean"}).out, "nothing to remove\n");

  pair_.reset();
  const Ended cleaned = xdp_tool({"clean"});
  EXPECT_EQ(cleaned.exit_code, 0) << cleaned.error;
  EXPECT_THAT(cleaned.out, HasSubstr("-va/link: its interface is gone"));
  EXPECT_THAT(cleaned.out, HasSubstr("-vb/link: its interface is gone"));
  EXPECT_THAT(bpf_files(), IsEmpty());
}

TEST_F(XdpClean, clean__live_pins_stay_among_many_files) {
  ASSERT_EQ(xdp_tool({"load", "va"}).exit_code, 0);
  // Later files come first in a listing of this file system.
  ASSERT_TRUE(std::filesystem::create_directory("/sys/fs/bpf/others"));
  const FileDescriptor map(::bpf_map_create(BPF_MAP_TYPE_ARRAY, "other", 4, 4, 1, nullptr));
  for (int i = 0; i < 5000; ++i) {
    ASSERT_EQ(::bpf_obj_pin(map.get(), fmt::format("/sys/fs/bpf/others/{}", i).c_str()), 0);
  }
  EXPECT_EQ(xdp_tool({"clean"}).out, "nothing to remove\n");
  EXPECT_TRUE(attached());
  const Ended unloaded = xdp_tool({"unload", "va"});
  EXPECT_EQ(unloaded.exit_code, 0) << unloaded.error;
  EXPECT_FALSE(attached());
}

TEST_F(XdpClean, clean__a_failure_is_named_and_the_rest_goes_on) {
  ASSERT_EQ(xdp_tool({"load", "vb"}).exit_code, 0);
  const std::string directory = xdp::default_pin_directory(pair_->a());
  ASSERT_TRUE(std::filesystem::create_directories(directory + "/mine"));
  const std::string empty = directory + "2";
  ASSERT_TRUE(std::filesystem::create_directory(empty));
  const Ended cleaned = xdp_tool({"clean"});
  EXPECT_EQ(cleaned.exit_code, 1);
  EXPECT_EQ(cleaned.out, fmt::format("removed {}: it holds no link\n", empty));
  EXPECT_EQ(cleaned.error, fmt::format("tarpon: {} holds files that are not ours: remove it by "
                                       "hand\n",
                                       directory));
}

TEST_F(XdpClean, clean__needs_privileges) {
  Command command{
      {"setpriv", "--bounding-set", "-sys_admin", TARPON_TOOL, "xdp", "clean"}, {}, "."};
  const Ended cleaned = run(command);
  EXPECT_EQ(cleaned.exit_code, 1);
  EXPECT_EQ(cleaned.error,
            "tarpon: cleaning up needs CAP_SYS_ADMIN: run as root, sudo tarpon xdp clean\n");
}

TEST_F(XdpClean, clean__what_a_killed_load_left) {
  ASSERT_EQ(xdp_tool({"load", "vb"}).exit_code, 0);
  const std::string directory = xdp::default_pin_directory(pair_->a());
  ASSERT_TRUE(xdp::make_pin_directory(directory));
  EXPECT_EQ(xdp_tool({"clean"}).out, fmt::format("removed {}: it holds no link\n", directory));
  EXPECT_FALSE(std::filesystem::exists(directory));
  EXPECT_EQ(status_of("vb").at("program").at("pins").size(), 1u);
}

/// As `load --shared` leaves it: interface, program, process, when that started.
struct SharedRecordBytes {
  std::uint32_t interface;
  std::uint32_t program;
  std::uint64_t process;
  std::uint64_t started;
};

TEST_F(XdpClean, clean__records_of_shared_programs) {
  ASSERT_EQ(xdp_tool({"load", "vb"}).exit_code, 0);  // mounts it
  ASSERT_EQ(xdp_tool({"unload", "vb"}).exit_code, 0);
  const std::string directory = xdp::default_pin_directory(pair_->a());
  ASSERT_TRUE(xdp::make_pin_directory(directory));
  const FileDescriptor map(::bpf_map_create(BPF_MAP_TYPE_ARRAY, "tarpon_owner", 4,
                                            sizeof(SharedRecordBytes), 1, nullptr));
  const auto write = [&](std::uint64_t process, std::uint64_t started) {
    const std::uint32_t zero = 0;
    const SharedRecordBytes record{pair_->a(), 0, process, started};
    ASSERT_EQ(::bpf_map_update_elem(map.get(), &zero, &record, BPF_ANY), 0);
  };
  ASSERT_EQ(::bpf_obj_pin(map.get(), (directory + "/tarpon_owner").c_str()), 0);
  // Field 22 of the line, after the name in brackets.
  const std::string stat = content_of("/proc/self/stat");
  std::istringstream words(stat.substr(stat.rfind(')') + 2));
  const std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
  const std::uint64_t started = std::stoull(fields.at(19));
  const auto self = static_cast<std::uint64_t>(::getpid());
  write(self, started);
  EXPECT_EQ(xdp_tool({"clean"}).out, "nothing to remove\n");  // about to attach
  write(self, started + 1);                                   // another process of this number
  EXPECT_EQ(xdp_tool({"clean"}).out, fmt::format("removed {}: its program is gone\n", directory));
  EXPECT_THAT(bpf_files(), IsEmpty());

  ASSERT_TRUE(xdp::make_pin_directory(directory));
  ASSERT_EQ(::bpf_obj_pin(map.get(), (directory + "/tarpon_owner").c_str()), 0);
  pair_.reset();
  EXPECT_EQ(xdp_tool({"clean"}).out, fmt::format("removed {}: its program is gone\n", directory));
}

}  // namespace
}  // namespace tarpon::test::xdp_clean_test
