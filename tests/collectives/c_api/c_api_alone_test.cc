// The C interface without a job: names, null pointers, options that make no sense, listening.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "tests/support/c_calls.h"

namespace {

using namespace tarpon::testing_support;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(CApiAlone, names__and_unknown_numbers) {
  EXPECT_THAT(tarpon_version(), ::testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_STREQ(tarpon_error_name(TARPON_ERROR_TIMEOUT), "timeout");
  EXPECT_STREQ(tarpon_error_name(-1), "?");
  EXPECT_STREQ(tarpon_error_name(99), "?");
  EXPECT_STREQ(tarpon_status_name(TARPON_STATUS_PEER_LATE), "peer_late");
  EXPECT_STREQ(tarpon_status_name(99), "?");
}

TEST(CApiAlone, null_pointers__are_named) {
  tarpon_options options{};
  options.size = sizeof options;
  tarpon_communicator* job = nullptr;
  const auto refused = [](int code, const char* text) {
    EXPECT_EQ(code, TARPON_ERROR_INVALID_ARGUMENT) << text;
    EXPECT_STREQ(tarpon_error_text(), text);
  };
  refused(tarpon_connect(nullptr, &job), "tarpon_connect: options is NULL");
  refused(tarpon_connect(&options, nullptr), "tarpon_connect: communicator is NULL");
  refused(tarpon_connect_from_environment(nullptr, nullptr),
          "tarpon_connect_from_environment: communicator is NULL");
  refused(tarpon_check_environment(nullptr), "tarpon_check_environment: options is NULL");
  tarpon_arguments call{};
  refused(tarpon_allreduce(nullptr, &call, nullptr), "tarpon_allreduce: communicator is NULL");
  refused(tarpon_allreduce_start(nullptr, &call, nullptr),
          "tarpon_allreduce_start: communicator is NULL");
  int done = 0;
  refused(tarpon_test(nullptr, &done), "tarpon_test: call is NULL");
  refused(tarpon_wait(nullptr, nullptr), "tarpon_wait: call is NULL");
  tarpon_summary summary{};
  refused(tarpon_report_summary(nullptr, &summary), "tarpon_report_summary: report is NULL");
  tarpon_loss loss{};
  refused(tarpon_report_loss(nullptr, &loss), "tarpon_report_loss: report is NULL");
  std::uint32_t calls = 0;
  refused(tarpon_behind(nullptr, 0, &calls), "tarpon_behind: communicator is NULL");
  refused(tarpon_set_loss_target(nullptr, 0.1), "tarpon_set_loss_target: communicator is NULL");
  refused(tarpon_barrier(nullptr, 1), "tarpon_barrier: communicator is NULL");
  refused(tarpon_abort(nullptr, "x"), "tarpon_abort: communicator is NULL");
  tarpon_step_verdict verdict{};
  refused(tarpon_agree(nullptr, 0, nullptr, 1, &verdict), "tarpon_agree: communicator is NULL");
  const uint32_t ranks[] = {0, 1};
  refused(tarpon_split(nullptr, ranks, 2, 1, 1, &job), "tarpon_split: communicator is NULL");
  refused(tarpon_shrink(nullptr, 1, &job), "tarpon_shrink: communicator is NULL");
  refused(tarpon_rejoin(nullptr, 1, &job), "tarpon_rejoin: communicator is NULL");
  refused(tarpon_resync(nullptr, 0, &done, 4, 1), "tarpon_resync: communicator is NULL");
  refused(tarpon_close(nullptr, 1), "tarpon_close: communicator is NULL");
  EXPECT_EQ(tarpon_rank(nullptr), UINT32_MAX);
  EXPECT_EQ(tarpon_world_size(nullptr), 0u);
  EXPECT_STREQ(tarpon_report_text(nullptr), "");
  EXPECT_STREQ(tarpon_left_out(nullptr), "");
  EXPECT_STREQ(tarpon_integrity_name(nullptr), "");
  EXPECT_STREQ(tarpon_exposed(nullptr), "");
  tarpon_call_free(nullptr);
  tarpon_report_free(nullptr);
  tarpon_communicator_free(nullptr);
}

/// The refusal of `options`, which must come before anything is waited for.
std::string refusal(const tarpon_options& options) {
  tarpon_communicator* job = nullptr;
  EXPECT_NE(tarpon_connect(&options, &job), TARPON_OK);
  EXPECT_EQ(job, nullptr);
  return tarpon_error_text();
}

TEST(CApiAlone, connect__sizes_that_make_no_sense) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{4}, std::size_t{20}, SIZE_MAX - 7}) {
    tarpon_options options{};
    options.size = size;
    EXPECT_THAT(refusal(options), AllOf(StartsWith("tarpon_options: size is "),
                                        HasSubstr("set it to sizeof(tarpon_options)")));
  }
}

TEST(CApiAlone, connect__members_that_make_no_sense) {
  const auto with = [](const std::function<void(tarpon_options&)>& change) {
    tarpon_options options{};
    options.size = sizeof options;
    options.world_size = 2;
    options.rendezvous = "127.0.0.1:1";
    options.rendezvous_timeout_us = 100'000;
    change(options);
    return refusal(options);
  };
  EXPECT_THAT(with([](auto& o) { o.world_size = 0; }), HasSubstr("world size 0"));
  EXPECT_THAT(with([](auto& o) { o.world_size = 4097; }), HasSubstr("world size 4097"));
  EXPECT_THAT(with([](auto& o) { o.rendezvous = nullptr; }), HasSubstr("rendezvous address ''"));
  EXPECT_THAT(with([](auto& o) { o.rendezvous = "host"; }), HasSubstr("tcp://HOST:PORT"));
  EXPECT_THAT(with([](auto& o) { o.datapath = 7; }), StartsWith("tarpon_options: datapath is 7"));
  EXPECT_THAT(with([](auto& o) { o.loss_target = 1; }), HasSubstr("loss_target is 1"));
  EXPECT_THAT(with([](auto& o) { o.loss_target = -1; }), HasSubstr("loss_target is -1"));
  EXPECT_THAT(with([](auto& o) { o.skip_above = -1; }), HasSubstr("skip_above is -1"));
  EXPECT_THAT(with([](auto& o) { o.halt_above = 1.5; }), HasSubstr("halt_above is 1.5"));
  EXPECT_THAT(with([](auto& o) { o.halt_above = 0.1, o.skip_above = 0.2; }),
              HasSubstr("skip_above is 0.2: give at most halt_above"));
  EXPECT_THAT(with([](auto& o) { o.silent_after_us = -1; }), HasSubstr("silent_after_us is -1"));
  EXPECT_THAT(with([](auto& o) { o.lanes = 5; }), HasSubstr("lanes is 5: give 1 to 4"));
  EXPECT_THAT(with([](auto& o) { o.encrypt = 2; }), HasSubstr("encrypt is 2"));
  EXPECT_THAT(with([](auto& o) { o.secret_file = ""; }),
              HasSubstr("secret_file is empty: name a file, or give NULL"));
  EXPECT_THAT(with([](auto& o) { o.secret_file = "/nope"; }),
              HasSubstr("'/nope' cannot be opened"));
  EXPECT_THAT(with([](auto& o) { o.encrypt = 1; }), HasSubstr("need a secret"));
  EXPECT_THAT(with([](auto& o) { o.dead_after_us = -1; }), HasSubstr("dead_after_us is -1"));
  EXPECT_THAT(with([](auto& o) { o.rendezvous_timeout_us = -1; }),
              HasSubstr("rendezvous_timeout_us is -1"));
  EXPECT_THAT(with([](auto& o) { o.ports = "9-8"; }),
              StartsWith("tarpon_options: ports: \"9-8\" is not a range of ports"));
  EXPECT_THAT(with([](auto& o) { o.max_bytes_per_second = -1; }),
              HasSubstr("max_bytes_per_second is -1"));
  EXPECT_THAT(with([](auto& o) { o.rank = 1; }), HasSubstr("cannot reach rank 0"));
}

TEST(CApiAlone, connect__one_rank_and_a_struct_of_an_older_header) {
  tarpon_options options{};
  options.size = offsetof(tarpon_options, rendezvous);
  options.world_size = 1;
  options.datapath = 99;  // beyond the size: not read
  tarpon_communicator* job = nullptr;
  ASSERT_EQ(tarpon_connect(&options, &job), TARPON_OK) << tarpon_error_text();
  EXPECT_EQ(tarpon_world_size(job), 1u);
  tarpon_communicator_free(job);
}

TEST(CApiAlone, connect__a_struct_of_a_newer_header) {
  Newer<tarpon_options> options;
  options.known.world_size = 1;
  tarpon_communicator* job = nullptr;
  ASSERT_EQ(tarpon_connect(options.get(), &job), TARPON_OK) << tarpon_error_text();
  tarpon_communicator_free(job);
  options.more[1] = 1;
  EXPECT_EQ(tarpon_connect(options.get(), &job), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(),
              AllOf(HasSubstr("byte at offset " + std::to_string(sizeof(tarpon_options) + 8)),
                    HasSubstr(tarpon_version()), HasSubstr("use a newer library")));
}

TEST(CApiAlone, connect_from_environment__place_and_options) {
  ::setenv("RANK", "0", 1);
  ::setenv("WORLD_SIZE", "1", 1);
  tarpon_communicator* job = nullptr;
  EXPECT_EQ(tarpon_connect_from_environment(nullptr, &job), TARPON_OK) << tarpon_error_text();
  EXPECT_EQ(tarpon_rank(job), 0u);
  tarpon_communicator_free(job);
  tarpon_options options{};
  options.size = sizeof options;
  options.rank = 1;
  EXPECT_EQ(tarpon_connect_from_environment(&options, &job), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(), HasSubstr("rank is 1 and world_size 0"));
  options.world_size = 1;  // takes precedence over the environment
  EXPECT_EQ(tarpon_connect_from_environment(&options, &job), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(), HasSubstr("must be 0 to 0"));
  options.rank = options.world_size = 0;
  options.interface = "nope7";
  EXPECT_EQ(tarpon_connect_from_environment(&options, &job), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(), HasSubstr("nope7: no such interface"));
  options.interface = nullptr;
  options.rendezvous = "nonsense";
  EXPECT_EQ(tarpon_connect_from_environment(&options, &job), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(), StartsWith("tarpon_options: rendezvous nonsense: write HOST"));
  options.rendezvous = nullptr;
  ::setenv("TARPON_DATAPATH", "warp", 1);
  EXPECT_EQ(tarpon_connect_from_environment(&options, &job), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(), StartsWith("TARPON_DATAPATH=warp"));
  EXPECT_EQ(tarpon_check_environment(&options), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(), StartsWith("TARPON_DATAPATH=warp"));
  options.datapath = TARPON_DATAPATH_MMSG;  // takes precedence
  EXPECT_EQ(tarpon_check_environment(&options), TARPON_OK) << tarpon_error_text();
  EXPECT_EQ(tarpon_connect_from_environment(&options, &job), TARPON_OK) << tarpon_error_text();
  tarpon_communicator_free(job);
  ::unsetenv("TARPON_DATAPATH");
  ::setenv("TARPON_MULTICAST", "yes", 1);
  EXPECT_EQ(tarpon_check_environment(&options), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(tarpon_error_text(), "TARPON_MULTICAST=yes: use on or off");
  options.multicast = 1;  // takes precedence
  EXPECT_EQ(tarpon_check_environment(&options), TARPON_OK) << tarpon_error_text();
  ::unsetenv("TARPON_MULTICAST");
  ::setenv("TARPON_PORTS", "many", 1);
  EXPECT_EQ(tarpon_check_environment(&options), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(), StartsWith("TARPON_PORTS: \"many\""));
  tarpon_listener* listener = nullptr;
  EXPECT_EQ(tarpon_listen("127.0.0.1", nullptr, &listener), TARPON_ERROR_INVALID_ARGUMENT);
  ::setenv("TARPON_PORTS", "24170-24179", 1);
  EXPECT_EQ(tarpon_listen("127.0.0.1", nullptr, &listener), TARPON_OK) << tarpon_error_text();
  EXPECT_THAT(tarpon_listener_address(listener), StartsWith("tcp://127.0.0.1:2417"));
  tarpon_listener_free(listener);
  ::unsetenv("TARPON_PORTS");
  ::setenv("TARPON_RENDEZVOUS_TIMEOUT", "long", 1);
  EXPECT_EQ(tarpon_check_environment(&options), TARPON_ERROR_INVALID_ARGUMENT);
  options.rendezvous_timeout_us = 1'000'000;  // takes precedence
  EXPECT_EQ(tarpon_check_environment(&options), TARPON_OK) << tarpon_error_text();
  ::unsetenv("TARPON_RENDEZVOUS_TIMEOUT");
  ::setenv("TARPON_ORDER", "any", 1);
  EXPECT_EQ(tarpon_check_environment(&options), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(tarpon_error_text(), "TARPON_ORDER=any: use rotating or fixed");
  options.fixed_order = 1;  // takes precedence
  EXPECT_EQ(tarpon_check_environment(&options), TARPON_OK) << tarpon_error_text();
  ::unsetenv("TARPON_ORDER");
  ::setenv("MASTER_ADDR", "::1", 1);  // one rank meets nobody: no route is needed
  ::setenv("MASTER_PORT", "29500", 1);
  EXPECT_EQ(tarpon_connect_from_environment(nullptr, &job), TARPON_OK) << tarpon_error_text();
  tarpon_communicator_free(job);
  ::unsetenv("MASTER_ADDR");
  ::unsetenv("MASTER_PORT");
  ::setenv("RANK", "1", 1);
  EXPECT_EQ(tarpon_connect_from_environment(nullptr, &job), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(tarpon_error_text(), "RANK=1: must be 0 to 0");
  ::unsetenv("RANK");
  ::unsetenv("WORLD_SIZE");
}

TEST(CApiAlone, listen__the_ranks_meet_at_its_address) {
  tarpon_listener* listener = nullptr;
  ASSERT_EQ(tarpon_listen("localhost", nullptr, &listener), TARPON_OK) << tarpon_error_text();
  const std::string address = tarpon_listener_address(listener);
  EXPECT_THAT(address, StartsWith("tcp://127.0.0.1:"));
  on_both([&](std::size_t rank) {
    tarpon_options options{};
    options.size = sizeof options;
    options.rank = static_cast<std::uint32_t>(rank);
    options.world_size = 2;
    options.codec = TARPON_CODEC_OFF;
    if (rank == 0) options.listener = listener;
    if (rank == 1) options.rendezvous = address.c_str();
    tarpon_communicator* job = nullptr;
    ASSERT_EQ(tarpon_connect_from_environment(&options, &job), TARPON_OK) << tarpon_error_text();
    EXPECT_EQ(tarpon_world_size(job), 2u);
    EXPECT_EQ(tarpon_barrier(job, 5 * kSecond), TARPON_OK) << tarpon_error_text();
    EXPECT_EQ(tarpon_close(job, 5 * kSecond), TARPON_OK) << tarpon_error_text();
    tarpon_communicator_free(job);
  });
  tarpon_options again{};
  again.size = sizeof again;
  again.world_size = 2;
  again.listener = listener;
  EXPECT_THAT(refusal(again), HasSubstr("listener has served a connect"));
  tarpon_listener_free(listener);
}

TEST(CApiAlone, listen__what_makes_no_sense) {
  tarpon_listener* listener = nullptr;
  EXPECT_EQ(tarpon_listen(nullptr, nullptr, nullptr), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(), HasSubstr("listener is NULL"));
  EXPECT_EQ(tarpon_listen(nullptr, "nope7", &listener), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(), HasSubstr("nope7"));
  EXPECT_EQ(listener, nullptr);
  EXPECT_STREQ(tarpon_listener_address(nullptr), "");
  tarpon_listener_free(nullptr);
  ASSERT_EQ(tarpon_listen(nullptr, "lo", &listener), TARPON_OK) << tarpon_error_text();
  tarpon_options options{};
  options.size = sizeof options;
  options.rank = 1;
  options.world_size = 2;
  options.listener = listener;
  EXPECT_THAT(refusal(options), HasSubstr("listener is given to rank 1"));
  options.rank = 0;
  options.rendezvous = "127.0.0.1:1";
  EXPECT_THAT(refusal(options), HasSubstr("listener and rendezvous are given"));
  options.rendezvous = nullptr;
  options.codec = 3;
  EXPECT_THAT(refusal(options), HasSubstr("codec is 3"));
  options.codec = 0;
  options.multicast = 2;
  EXPECT_THAT(refusal(options), HasSubstr("multicast is 2"));
  options.multicast = 0;
  options.fixed_order = 2;
  EXPECT_THAT(refusal(options), HasSubstr("fixed_order is 2"));
  options.fixed_order = 0;
  options.no_shared_memory = 2;
  EXPECT_THAT(refusal(options), HasSubstr("no_shared_memory is 2"));
  tarpon_listener_free(listener);
}

TEST(CApiAlone, error_text__is_of_the_thread) {
  EXPECT_NE(tarpon_barrier(nullptr, 1), TARPON_OK);
  std::thread([] { EXPECT_STREQ(tarpon_error_text(), ""); }).join();
  EXPECT_THAT(tarpon_error_text(), StartsWith("tarpon_barrier"));
}

}  // namespace
