// A child that fork() makes beside the threads of a live job: what it keeps, what it may call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/tarpon.h"
#include "tests/support/c_calls.h"
#include "tests/support/each_datapath.h"
#include "tests/support/forked_child.h"
#include "tests/support/live_job.h"
#include "tests/support/sanitized.h"
#include "transport/counters.h"
#include "transport/port.h"

namespace tarpon::forked_child_test {
namespace {

using namespace testing_support;
using testing::HasSubstr;

class ForkedChildTest : public CommunicatorTest {};

INSTANTIATE_TEST_SUITE_P(Datapaths, ForkedChildTest,
                         testing::Values(Datapath::mmsg, Datapath::uring, Datapath::automatic),
                         [](const auto& info) { return std::string(name(info.param)); });

/// The numbers of the descriptors that are open, and where each leads.
std::vector<std::pair<int, std::string>> open_descriptors() {
  std::vector<std::pair<int, std::string>> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // that of the iterator itself
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!gone) found.emplace_back(std::stoi(entry.path().filename().string()), target);
  }
  return found;
}

/// How a test in the child ended: 0 for well. What failed is on the test's output.
int outcome() {
  return testing::Test::HasFailure() ? 1 : 0;
}

/// Expects that the child's call was refused, with the reason.
void expect_refused(const Result<void>& called) {
  ASSERT_FALSE(called);
  EXPECT_EQ(called.error().code, Error::Code::unavailable);
  EXPECT_THAT(called.error().message,
              HasSubstr("was forked from process " + std::to_string(::getppid())));
}

template <typename T>
void expect_refused(const Result<T>& called) {
  expect_refused(called ? Result<void>() : Result<void>(fail(called.error())));
}

TEST_P(ForkedChildTest, a_child_keeps_nothing_of_the_job_open) {
  std::set<int> before;
  for (const auto& [number, target] : open_descriptors()) before.insert(number);
  const Ranks job = connect(2, GetParam());
  ASSERT_EQ(job.size(), 2u);
  on_all(2, [&](Rank rank) { EXPECT_TRUE(job[rank]->barrier(20s)); });
  const int ended = in_forked_child([&] {
    for (const auto& [number, target] : open_descriptors()) {
      if (before.count(number) > 0 || target.starts_with("/proc")) continue;
      EXPECT_EQ(target, "/dev/null") << "descriptor " << number;
    }
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      EXPECT_EQ(line.find("io_uring"), std::string::npos) << line;
    }
    return outcome();
  });
  EXPECT_EQ(ended, 0);
  on_all(2, [&](Rank rank) { EXPECT_TRUE(job[rank]->barrier(20s)); });
}

TEST_P(ForkedChildTest, each_function_of_a_communicator__fails_at_once) {
  const Ranks job = connect(2, GetParam());
  ASSERT_EQ(job.size(), 2u);
  std::vector<float> mine = input(0, 5000);
  auto waiting = job[0]->allreduce_async(in_place(mine, 1));
  ASSERT_TRUE(waiting) << waiting.error().message;
  const int ended = in_forked_child([&] {
    std::vector<float> values(5000, 1000.0f);
    expect_refused(job[0]->check_process());
    expect_refused(job[0]->allreduce(in_place(values)));
    expect_refused(job[0]->allreduce_async(in_place(values)));
    expect_refused(job[0]->barrier(20s));
    expect_refused(job[0]->resync(0, values.data(), 4, 20s));
    expect_refused(job[0]->split({0, 1}, 1, 20s));
    expect_refused(job[0]->shrink(20s));
    expect_refused(job[0]->rejoin(20s));
    expect_refused(job[0]->close(20s));
    const StepVerdict verdict = job[0]->agree(1, {}, 20s);
    EXPECT_EQ(verdict.verdict, Verdict::halt);
    EXPECT_THAT(verdict.detail, HasSubstr("was forked"));
    job[0]->abort("not by the child");
    job[0]->poll(20s);
    EXPECT_EQ(job[0]->rejoin_wanted(), 0u);
    EXPECT_EQ(job[0]->flows(), 0u);
    (void)job[0]->port_statistics();
    (void)job[0]->counters();
    EXPECT_EQ(job[0]->world_size(), 2u);
    expect_refused(waiting->check_process());
    EXPECT_TRUE(waiting->done());
    EXPECT_EQ(waiting->wait().status, Status::failed);
    return outcome();
  });
  EXPECT_EQ(ended, 0);
  // The child's calls have changed nothing for the job.
  on_all(2, [&](Rank rank) {
    std::vector<float> other = input(1, 5000);
    if (rank == 1) expect_complete(job[1]->allreduce(in_place(other, 1)));
    if (rank == 0) {
      EXPECT_EQ(waiting->wait().status, Status::complete);
    }
    std::vector<float> values = input(rank, 5000);
    expect_complete(job[rank]->allreduce(in_place(values)));
    EXPECT_EQ(values, sum(2, 5000));
  });
  EXPECT_EQ(mine, sum(2, 5000));
}

TEST_P(ForkedChildTest, a_child_that_frees_what_it_inherited__does_not_hang) {
  Ranks job = connect(2, GetParam());
  ASSERT_EQ(job.size(), 2u);
  std::vector<float> mine = input(0, 5000);
  auto waiting = job[0]->allreduce_async(in_place(mine));
  ASSERT_TRUE(waiting) << waiting.error().message;
  for (int round = 0; round < 10; ++round) {  // the job's threads hold their locks at times
    EXPECT_EQ(in_forked_child([&] {
                job.clear();
                waiting = fail(Error::Code::io, "dropped");
                return 0;
              }),
              0);
  }
  std::vector<float> other = input(1, 5000);
  expect_complete(job[1]->allreduce(in_place(other)));
  EXPECT_EQ(waiting->wait().status, Status::complete);
}

/// Destroyed by exit(), in the child too.
std::unique_ptr<Communicator> global;

TEST_P(ForkedChildTest, exit__with_a_global_communicator_ends_the_child) {
  if (kSanitizer) GTEST_SKIP() << "a sanitizer reports what the child leaks";
  Ranks job = connect(2, GetParam());
  ASSERT_EQ(job.size(), 2u);
  global = std::move(job[0]);
  EXPECT_EQ(in_forked_child([]() -> int { std::exit(7); }), 7);
  global = nullptr;
}

TEST_P(ForkedChildTest, a_child__may_be_a_rank_of_another_job) {
  const Ranks job = connect(2, GetParam());
  ASSERT_EQ(job.size(), 2u);
  EXPECT_EQ(in_forked_child([&] {
              const Ranks own = connect(2, GetParam());
              if (own.size() != 2) return 1;
              on_all(2, [&](Rank rank) { EXPECT_TRUE(own[rank]->barrier(20s)); });
              return outcome();
            }),
            0);
}

/// A job of two ranks over the C interface.
std::array<tarpon_communicator*, 2> connect_by_c(const char* datapath) {
  std::array<tarpon_communicator*, 2> ranks{};
  const std::string meet = "file://" + rendezvous_file();
  on_both([&](std::size_t rank) {
    tarpon_options options{};
    options.size = sizeof options;
    options.rank = static_cast<std::uint32_t>(rank);
    options.world_size = 2;
    options.rendezvous = meet.c_str();
    options.mtu = 1500;
    options.datapath =
        std::string_view(datapath) == "mmsg" ? TARPON_DATAPATH_MMSG : TARPON_DATAPATH_URING;
    EXPECT_EQ(tarpon_connect(&options, &ranks[rank]), TARPON_OK) << tarpon_error_text();
  });
  return ranks;
}

/// Calls each function of `job` and `call` in a child.
void call_in_child(tarpon_communicator* job, tarpon_call* call) {
  const auto expect_no = [](int error) {
    EXPECT_EQ(error, TARPON_ERROR_UNAVAILABLE);
    EXPECT_THAT(tarpon_error_text(), HasSubstr("was forked from process"));
  };
  std::vector<float> values(100, 1000.0f);
  const tarpon_arguments arguments = call_on(values.data(), values.size());
  const std::uint32_t both[] = {0, 1};
  tarpon_communicator* made = nullptr;
  tarpon_call* started = nullptr;
  tarpon_step_verdict verdict{};
  verdict.size = sizeof verdict;
  int done = 0;
  expect_no(tarpon_allreduce(job, &arguments, nullptr));
  EXPECT_THAT(tarpon_error_text(), testing::StartsWith("tarpon_allreduce: process "));
  expect_no(tarpon_allreduce_start(job, &arguments, &started));
  expect_no(tarpon_barrier(job, 20 * kSecond));
  expect_no(tarpon_agree(job, 1, nullptr, 20 * kSecond, &verdict));
  expect_no(tarpon_abort(job, "not by the child"));
  expect_no(tarpon_split(job, both, 2, 1, 20 * kSecond, &made));
  expect_no(tarpon_shrink(job, 20 * kSecond, &made));
  expect_no(tarpon_rejoin(job, 20 * kSecond, &made));
  expect_no(tarpon_resync(job, 0, values.data(), 4, 20 * kSecond));
  expect_no(tarpon_close(job, 20 * kSecond));
  expect_no(tarpon_test(call, &done));
  expect_no(tarpon_wait(call, nullptr));
  tarpon_call_free(call);
  tarpon_communicator_free(job);
}

TEST_P(ForkedChildTest, each_function_of_the_c_interface__fails_at_once) {
  const auto ranks = connect_by_c(name(GetParam()).data());
  ASSERT_TRUE(ranks[0] != nullptr && ranks[1] != nullptr);
  std::array<float, 100> mine{}, other{};
  mine.fill(1);
  other.fill(2);
  tarpon_call* call = nullptr;
  const tarpon_arguments first = call_on(mine.data(), mine.size());
  const tarpon_arguments second = call_on(other.data(), other.size());
  ASSERT_EQ(tarpon_allreduce_start(ranks[0], &first, &call), TARPON_OK);
  EXPECT_EQ(in_forked_child([&] {
              call_in_child(ranks[0], call);
              return outcome();
            }),
            0);
  EXPECT_EQ(tarpon_allreduce(ranks[1], &second, nullptr), TARPON_OK) << tarpon_error_text();
  EXPECT_EQ(tarpon_wait(call, nullptr), TARPON_OK) << tarpon_error_text();
  EXPECT_EQ(mine[99], 3.0f);
  tarpon_call_free(call);
  on_both([&](std::size_t rank) { tarpon_communicator_free(ranks[rank]); });
}

}  // namespace
}  // namespace tarpon::forked_child_test
