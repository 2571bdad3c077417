// Who attaches, who joins, what is left behind.
#include "xdp/program.h"

#include <bpf/libbpf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/if_link.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "tests/support/foreign_program.h"
#include "tests/support/private_network.h"
#include "xdp/queue.h"

namespace tarpon::xdp::program_test {
namespace {

using testing::HasSubstr;
using testing_support::VethPair;

/// A process that does `start` and then waits to be killed.
class Victim {
 public:
  template <typename Start>
  explicit Victim(Start start) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    child_ = ::fork();
    if (child_ == 0) {
      const auto held = start();
      const char result = held ? 'y' : 'n';
      if (::write(ready[1], &result, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char result = 0;
    EXPECT_EQ(::read(ready[0], &result, 1), 1);
    EXPECT_EQ(result, 'y');
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Victim() { kill(); }
  pid_t process() const { return child_; }
  void kill() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = 0;
  }

 private:
  pid_t child_ = 0;
};

tarpon_port_entry entry_of(std::uint64_t queues, std::uint32_t index) {
  tarpon_port_entry entry{};
  entry.queues = queues;
  entry.index = index;
  return entry;
}

/// Links vanish a moment after their last holder.
bool vanishes(unsigned interface) {
  for (int i = 0; i < 500; ++i) {
    const auto attached = attached_to(interface);
    if (attached && !*attached) return true;
    ::usleep(10'000);
  }
  return false;
}

TEST(ProgramTest, the_first_attaches_the_others_join_and_it_goes_with_the_last) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const VethPair pair;
  auto none = attached_to(pair.a());
  ASSERT_TRUE(none) << none.error().message;
  EXPECT_FALSE(*none);
  {
    auto first = Program::use(pair.a(), AttachMode::native);
    ASSERT_TRUE(first) << first.error().message;
    EXPECT_TRUE(first->attached_here());
    auto second = Program::use(pair.a(), AttachMode::native);
    ASSERT_TRUE(second) << second.error().message;
    EXPECT_FALSE(second->attached_here());
    EXPECT_EQ(second->id(), first->id());
    const auto attached = attached_to(pair.a());
    ASSERT_TRUE(attached && *attached);
    EXPECT_TRUE((*attached)->ours);
    EXPECT_EQ((*attached)->mode, AttachMode::native);
    first = fail(Error::Code::io, "gone");
    EXPECT_TRUE(*attached_to(pair.a()));
  }
  EXPECT_TRUE(vanishes(pair.a()));
}

TEST(ProgramTest, sigkill_of_the_one_who_attached_leaves_nothing_or_the_others) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const VethPair pair;
  const auto use = [&] { return Program::use(pair.a(), AttachMode::native); };
  {
    Victim alone(use);
    EXPECT_TRUE(*attached_to(pair.a()));
  }
  EXPECT_TRUE(vanishes(pair.a()));
  {
    Victim first(use);
    auto second = use();
    ASSERT_TRUE(second) << second.error().message;
    EXPECT_FALSE(second->attached_here());
    first.kill();
    const auto attached = attached_to(pair.a());
    ASSERT_TRUE(attached && *attached);
    EXPECT_EQ((*attached)->id, second->id());
    ASSERT_TRUE(second->maps().open_port({1, 2, 0}, entry_of(1, 0)));
  }
  EXPECT_TRUE(vanishes(pair.a()));
}

TEST(ProgramTest, what_is_attached_and_held_by_no_link_is_about_to_go) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const VethPair pair;
  const auto left = Program::use(pair.b(), AttachMode::native);
  ASSERT_TRUE(left) << left.error().message;
  const auto index = static_cast<int>(pair.a());
  // Looks like a program whose last holder has just closed its link.
  ASSERT_EQ(::bpf_xdp_attach(index, left->fd(), XDP_FLAGS_DRV_MODE, nullptr), 0);
  std::thread kernel([&] {  // of the same namespace
    ::usleep(20'000);
    EXPECT_EQ(::bpf_xdp_detach(index, XDP_FLAGS_DRV_MODE, nullptr), 0);
  });
  const auto program = Program::use(pair.a(), AttachMode::native);
  kernel.join();
  ASSERT_TRUE(program) << program.error().message;
  EXPECT_TRUE(program->attached_here());
  EXPECT_GE(program->link_fd(), 0);
  EXPECT_NE(program->id(), left->id());
}

TEST(ProgramTest, jobs_that_come_and_go_at_once_each_have_the_program) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const VethPair pair;
  const auto come_and_go = [&] {
    for (int i = 0; i < 30 && !testing::Test::HasFailure(); ++i) {
      auto program = Program::use(pair.a(), AttachMode::native);
      ASSERT_TRUE(program) << program.error().message;
      EXPECT_GE(program->link_fd(), 0);
      const auto attached = attached_to(pair.a());
      ASSERT_TRUE(attached) << attached.error().message;
      ASSERT_TRUE(*attached);
      EXPECT_EQ((*attached)->id, program->id());
    }
  };
  std::thread other(come_and_go);
  come_and_go();
  other.join();
}

TEST(ProgramTest, a_stranger_is_named_and_left_alone) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const VethPair pair;
  const FileDescriptor stranger = testing_support::load_foreign_program();
  ASSERT_TRUE(stranger) << std::strerror(errno);
  const FileDescriptor link = testing_support::attach_foreign_program(stranger, pair.a());
  ASSERT_TRUE(link) << std::strerror(errno);
  const auto refused = Program::use(pair.a(), AttachMode::native);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Error::Code::unavailable);
  EXPECT_THAT(refused.error().message, HasSubstr("stranger"));
  const auto attached = attached_to(pair.a());
  ASSERT_TRUE(attached && *attached);
  EXPECT_EQ((*attached)->name, "stranger");
  EXPECT_FALSE((*attached)->ours);
}

TEST(ProgramTest, a_port_on_a_queue_replaces_the_dead_one) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const VethPair pair;
  auto program = Program::use(pair.a(), AttachMode::native);
  ASSERT_TRUE(program) << program.error().message;
  for (std::uint32_t i = 0; i < 3 * TARPON_MAX_PORTS; ++i) {
    const auto opened = program->maps().open_port({i, 7, 0}, entry_of(1, 0));
    ASSERT_TRUE(opened) << opened.error().message;
  }
  ASSERT_TRUE(program->maps().open_port({1, 8, 0}, entry_of(2, 1)));
  ASSERT_TRUE(program->maps().close_port({1, 8, 0}));
  ASSERT_TRUE(program->maps().close_port({1, 8, 0}));
}

TEST(ProgramTest, a_group_belongs_to_one_port_and_goes_with_it) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const VethPair pair;
  auto program = Program::use(pair.a(), AttachMode::native);
  ASSERT_TRUE(program) << program.error().message;
  ASSERT_TRUE(program->maps().open_port({1, 7, 0}, entry_of(1, 0)));
  ASSERT_TRUE(program->maps().open_port({2, 7, 0}, entry_of(2, 1)));
  ASSERT_TRUE(program->maps().open_group({9, 7, 0}, entry_of(1, 0)));
  EXPECT_EQ(program->maps().ports().size(), 3u);
  const auto taken = program->maps().open_group({9, 7, 0}, entry_of(2, 1));
  ASSERT_FALSE(taken);
  EXPECT_THAT(taken.error().message, HasSubstr("another port of this interface"));
  ASSERT_TRUE(program->maps().open_port({3, 7, 0}, entry_of(1, 0))) << "on the queue of the first";
  EXPECT_EQ(program->maps().ports().size(), 2u);
  ASSERT_TRUE(program->maps().open_group({9, 7, 0}, entry_of(2, 1)));
}

struct Held {
  Result<Program> program;
  Result<Queue> queue;
  pid_t child = 0;  // shares nothing of it

  explicit operator bool() const { return program && queue && child >= 0; }
};

QueueOptions queue_of(unsigned interface) {
  QueueOptions options;
  options.socket.interface = interface;
  return options;
}

Held hold(unsigned interface) {
  return {Program::use(interface, AttachMode::native), Queue::open(queue_of(interface))};
}

/// Forks a child that outlives this process, in the process group of this process.
Held fork_beside(Held held) {
  ::setpgid(0, 0);
  held.child = ::fork();
  if (held.child != 0) return held;
  ::alarm(60);
  for (;;) ::pause();
}

/// Kills a process group.
struct GroupEnd {
  pid_t group;
  ~GroupEnd() { ::kill(-group, SIGKILL); }
};

TEST(ProgramTest, killed__while_a_forked_child_lives_frees_the_program_and_the_queue) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const VethPair pair;
  Victim victim([&] { return fork_beside(hold(pair.a())); });
  const GroupEnd end{victim.process()};
  const auto attached = attached_to(pair.a());
  ASSERT_TRUE(attached && *attached);
  victim.kill();
  EXPECT_TRUE(vanishes(pair.a()));
  const auto queue = Queue::open(queue_of(pair.a()));
  EXPECT_TRUE(queue) << queue.error().message;
}

TEST(ProgramTest, a_taken_queue__names_the_process_that_has_it) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const VethPair pair;
  const Victim victim([&] { return hold(pair.a()); });
  const auto queue = Queue::open(queue_of(pair.a()));
  ASSERT_FALSE(queue);
  EXPECT_EQ(queue.error().code, Error::Code::unavailable);
  EXPECT_THAT(queue.error().message,
              HasSubstr("queue 0 of va: another AF_XDP socket has it, of process " +
                        std::to_string(victim.process()) + " ("));
  const auto program = Program::use(pair.b(), AttachMode::native);
  const auto own = Queue::open(queue_of(pair.b()));
  ASSERT_TRUE(own) << own.error().message;
  const auto second = Queue::open(queue_of(pair.b()));
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, HasSubstr("of this process"));
}

}  // namespace
}  // namespace tarpon::xdp::program_test
