// Our program beside a foreign one, which xdp-loader attached: `tarpon xdp load --shared`.
#include <bpf/bpf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/bpf.h>
#include <signal.h>

#include <string_view>

#include "tests/guest/jobs.h"
#include "xdp/attached.h"
#include "xdp/program.h"

namespace tarpon::guest {
namespace {

using testing::HasSubstr;

constexpr const char* kStrangerFile = "/stranger.bpf.o";
constexpr const char* kBefore = "10";  // priorities of libxdp's dispatcher; ours has 50
constexpr const char* kAfter = "90";

/// The foreign program on the first host, by its own loader.
class Stranger {
 public:
  explicit Stranger(const char* priority) {
    set_mtu(1500);
    run_on(kHosts[0], {"xdp-loader", "load", "--mode", "native", "--prio", priority,
                       kHosts[0].interface, kStrangerFile});
    enter(kHosts[0]);
  }
  ~Stranger() { run_on(kHosts[0], {"xdp-loader", "unload", kHosts[0].interface, "--all"}); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  /// Packets that it has seen.
  std::uint64_t count() const {
    std::uint32_t id = 0;
    while (::bpf_map_get_next_id(id, &id) == 0) {
      const FileDescriptor map(::bpf_map_get_fd_by_id(id));
      bpf_map_info info{};
      std::uint32_t length = sizeof info;
      if (!map || ::bpf_obj_get_info_by_fd(map.get(), &info, &length) != 0 ||
          std::string_view(info.name) != "stranger_count") {
        continue;
      }
      const std::uint32_t zero = 0;
      std::uint64_t count = 0;
      EXPECT_EQ(::bpf_map_lookup_elem(map.get(), &zero, &count), 0);
      return count;
    }
    ADD_FAILURE() << "no map stranger_count";
    return 0;
  }

  /// Whether it sees the kernel's own traffic.
  void expect_at_work() const {
    const std::uint64_t before = count();
    run_on(kHosts[1], {"busybox", "ping", "-c", "3", "-i", "0.2", "-W", "5", kHosts[0].address});
    EXPECT_GE(count(), before + 3);
  }
};

std::vector<std::string> components() {
  const auto attached = xdp::attached_to(enter(kHosts[0]));
  EXPECT_TRUE(attached) << attached.error().message;
  std::vector<std::string> names;
  if (!attached || !*attached) return names;
  EXPECT_EQ((*attached)->mode, xdp::AttachMode::native);
  for (const xdp::Component& each : (*attached)->components) names.push_back(each.name);
  return names;
}

std::uint64_t redirected() {
  const auto program = xdp::Program::find(enter(kHosts[0]));
  EXPECT_TRUE(program) << program.error().message;
  const auto verdicts = program ? program->maps().verdicts() : fail(program.error());
  return verdicts ? (*verdicts)[TARPON_VERDICT_RING] : 0;
}

void load_shared() {
  const std::string said =
      run_on(kHosts[0], {"tarpon", "xdp", "load", kHosts[0].interface, "--shared"});
  EXPECT_THAT(said, HasSubstr("shared by libxdp's dispatcher"));
}

void unload() {
  run_on(kHosts[0], {"tarpon", "xdp", "unload", kHosts[0].interface});
}

TEST(SharedTest, a_stranger_before_ours_sees_every_packet_and_the_job_is_exact) {
  const Stranger stranger(kBefore);
  stranger.expect_at_work();
  load_shared();
  EXPECT_THAT(components(), testing::ElementsAre("stranger", "tarpon_xdp"));
  stranger.expect_at_work();
  const std::uint64_t before = stranger.count();
  allreduce({{"--datapath", "xdp"}, best_copy_mode()});
  EXPECT_GT(redirected(), kLeastPackets);
  EXPECT_GE(stranger.count(), before + redirected());
  unload();
  EXPECT_THAT(components(), testing::ElementsAre("stranger"));
  stranger.expect_at_work();
}

TEST(SharedTest, a_stranger_after_ours_sees_what_is_not_ours) {
  const Stranger stranger(kAfter);
  load_shared();
  EXPECT_THAT(components(), testing::ElementsAre("tarpon_xdp", "stranger"));
  allreduce({{"--datapath", "xdp"}, best_copy_mode()});
  EXPECT_GT(redirected(), kLeastPackets);
  stranger.expect_at_work();
  unload();
  EXPECT_THAT(components(), testing::ElementsAre("stranger"));
  stranger.expect_at_work();
}

test::Command load_to_be_confirmed(const char* limit) {
  return command_on(kHosts[0],
                    {"tarpon", "xdp", "load", kHosts[0].interface, "--shared", "--confirm", limit});
}

TEST(SharedTest, a_load_that_nobody_confirms_is_undone) {
  const Stranger stranger(kBefore);
  const test::Ended ended = test::run(load_to_be_confirmed("1s"));
  EXPECT_EQ(ended.exit_code, 1) << ended.out << ended.error;
  EXPECT_THAT(components(), testing::ElementsAre("stranger"));
  stranger.expect_at_work();
}

TEST(SharedTest, clean_removes_what_a_killed_load_left_and_nothing_else) {
  const Stranger stranger(kBefore);
  test::Command command = load_to_be_confirmed("60s");
  // The end of its input would end it too: this one stays open.
  command.arguments.insert(command.arguments.begin(), {"sh", "-c", "sleep 60 | \"$@\"", "sh"});
  {
    test::Process load(command);
    ASSERT_TRUE(load.says("attached"));
    ::kill(-load.pid(), SIGKILL);
    load.wait();
    EXPECT_TRUE(load.left_nothing());
  }
  EXPECT_THAT(components(), testing::ElementsAre("stranger", "tarpon_xdp"));
  EXPECT_THAT(run_on(kHosts[0], {"tarpon", "xdp", "clean"}), HasSubstr("detached"));
  EXPECT_THAT(components(), testing::ElementsAre("stranger"));
  EXPECT_THAT(run_on(kHosts[0], {"tarpon", "xdp", "clean"}), HasSubstr("nothing to remove"));
  stranger.expect_at_work();
}

TEST(SharedTest, without_it_a_job_names_the_stranger_and_does_not_touch_it) {
  const Stranger stranger(kBefore);
  const test::Ended refused =
      test::run(command_on(kHosts[0], {"tarpon", "xdp", "load", kHosts[0].interface}));
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.error, HasSubstr("--shared"));
  EXPECT_THAT(components(), testing::ElementsAre("stranger"));
  stranger.expect_at_work();
}

}  // namespace
}  // namespace tarpon::guest
