// The C interface: reports, and the functions that all ranks call together beside AllReduce.
#include "collectives/tarpon.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/c_pair.h"

namespace {

using namespace tarpon::testing_support;
using ::testing::HasSubstr;

TEST_F(CApi, summary__of_an_older_and_a_newer_header) {
  on_both([&](std::size_t rank) {
    float value = 1;
    const tarpon_arguments call = call_on(&value, 1, 3);
    tarpon_report* report = nullptr;
    ASSERT_EQ(tarpon_allreduce(ranks_[rank], &call, &report), TARPON_OK);
    tarpon_summary older{};
    std::memset(&older, 0x5a, sizeof older);
    older.size = offsetof(tarpon_summary, operation);
    EXPECT_EQ(tarpon_report_summary(report, &older), TARPON_OK);
    EXPECT_EQ(older.status, TARPON_STATUS_COMPLETE);
    EXPECT_EQ(older.tag, 3u);
    EXPECT_EQ(older.operation, 0x5a5a5a5au) << "beyond the size";
    Newer<tarpon_summary> newer;
    newer.more[0] = newer.more[1] = 7;
    EXPECT_EQ(tarpon_report_summary(report, newer.get()), TARPON_OK);
    EXPECT_EQ(newer.known.tag, 3u);
    EXPECT_EQ(newer.known.size, sizeof newer);
    EXPECT_EQ(newer.more[0] + newer.more[1], 0u);
    older.size = 3;
    EXPECT_EQ(tarpon_report_summary(report, &older), TARPON_ERROR_INVALID_ARGUMENT);
    tarpon_report_free(report);
  });
}

TEST_F(CApi, collective__each_one_with_counts_and_a_root) {
  on_both([&](std::size_t rank) {
    const std::vector<float> all = {1, 2, 3, 4, 5};
    const std::uint64_t counts[] = {2, 3};
    const std::size_t first = rank == 0 ? 0 : 2, own = counts[rank];
    const std::vector<float> mine(all.begin() + static_cast<std::ptrdiff_t>(first),
                                  all.begin() + static_cast<std::ptrdiff_t>(first + own));
    std::vector<float> out(5);
    tarpon_collective_arguments call{};
    call.size = sizeof call;
    call.counts = counts;
    call.deadline_us = 20 * kSecond;
    call.input = all.data();
    call.output = out.data();
    call.collective = TARPON_REDUCE_SCATTER;
    ASSERT_EQ(tarpon_collective(ranks_[rank], &call, nullptr), TARPON_OK) << tarpon_error_text();
    for (std::size_t i = 0; i < own; ++i) EXPECT_EQ(out[i], 2 * mine[i]);
    call.input = mine.data();
    for (const std::uint32_t gathers : {TARPON_ALL_GATHER, TARPON_GATHER}) {
      call.collective = gathers;
      call.root = gathers == TARPON_GATHER ? 1 : 0;
      out.assign(5, 0);
      tarpon_call* started = nullptr;
      ASSERT_EQ(tarpon_collective_start(ranks_[rank], &call, &started), TARPON_OK);
      ASSERT_EQ(tarpon_wait(started, nullptr), TARPON_OK) << tarpon_error_text();
      tarpon_call_free(started);
      EXPECT_EQ(out, gathers == TARPON_ALL_GATHER || rank == 1 ? all : std::vector<float>(5));
    }
    call.collective = TARPON_SCATTER;
    call.input = rank == 1 ? all.data() : nullptr;
    ASSERT_EQ(tarpon_collective(ranks_[rank], &call, nullptr), TARPON_OK) << tarpon_error_text();
    EXPECT_EQ(std::vector<float>(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(own)),
              mine);
    call.counts = nullptr;
    call.count = 5;
    call.collective = TARPON_BROADCAST;
    out.assign(5, 0);
    ASSERT_EQ(tarpon_collective(ranks_[rank], &call, nullptr), TARPON_OK) << tarpon_error_text();
    EXPECT_EQ(out, all);
    call.collective = TARPON_REDUCE;
    call.input = all.data();
    call.output = rank == 1 ? out.data() : nullptr;
    call.function = TARPON_MAX;
    ASSERT_EQ(tarpon_collective(ranks_[rank], &call, nullptr), TARPON_OK) << tarpon_error_text();
  });
}

TEST_F(CApi, collective__bounded_reduce_scatter) {
  on_both([&](std::size_t rank) {
    const std::vector<float> in = {1, 2, 3, 4};
    std::vector<float> out(2);
    tarpon_collective_arguments call{};
    call.size = sizeof call;
    call.collective = TARPON_REDUCE_SCATTER;
    call.input = in.data(), call.output = out.data();
    call.count = 2;
    call.deadline_us = 20 * kSecond;
    call.mode = TARPON_BOUNDED;
    call.bound_us = 10 * kSecond;
    tarpon_report* report = nullptr;
    ASSERT_EQ(tarpon_collective(ranks_[rank], &call, &report), TARPON_OK) << tarpon_error_text();
    tarpon_summary summary{};
    summary.size = sizeof summary;
    ASSERT_EQ(tarpon_report_summary(report, &summary), TARPON_OK);
    tarpon_report_free(report);
    EXPECT_EQ(summary.mode, static_cast<std::uint32_t>(TARPON_BOUNDED));
    EXPECT_EQ(summary.bound_us, 10 * kSecond);
    EXPECT_EQ(summary.lost_fraction, 0);
    EXPECT_EQ(out, rank == 0 ? (std::vector<float>{2, 4}) : (std::vector<float>{6, 8}));
    call.reserved = 1;
    EXPECT_EQ(tarpon_collective(ranks_[rank], &call, nullptr), TARPON_ERROR_INVALID_ARGUMENT);
    EXPECT_THAT(tarpon_error_text(), HasSubstr("reserved is set"));
  });
}

TEST_F(CApi, collective__bounded_all_gather_of_integers) {
  on_both([&](std::size_t rank) {
    const auto mine = static_cast<std::int32_t>(rank + 1);
    std::vector<std::int32_t> out(2);
    tarpon_collective_arguments call{};
    call.size = sizeof call;
    call.collective = TARPON_ALL_GATHER;
    call.input = &mine, call.output = out.data();
    call.count = 1;
    call.type = TARPON_INT32;
    call.deadline_us = 20 * kSecond;
    call.mode = TARPON_BOUNDED;
    call.bound_us = 10 * kSecond;
    tarpon_report* report = nullptr;
    ASSERT_EQ(tarpon_collective(ranks_[rank], &call, &report), TARPON_OK) << tarpon_error_text();
    tarpon_summary summary{};
    summary.size = sizeof summary;
    ASSERT_EQ(tarpon_report_summary(report, &summary), TARPON_OK);
    tarpon_report_free(report);
    EXPECT_EQ(summary.mode, static_cast<std::uint32_t>(TARPON_BOUNDED));
    EXPECT_EQ(summary.lost_fraction, 0);
    EXPECT_EQ(out, (std::vector<std::int32_t>{1, 2}));
  });
}

TEST_F(CApi, collective__what_makes_no_sense_is_refused_and_later_calls_match) {
  on_both([&](std::size_t rank) {
    float in[4] = {1, 2, 3, 4}, out[4];
    tarpon_collective_arguments call{};
    call.size = sizeof call;
    call.input = in, call.output = out;
    call.count = 2;
    call.collective = 99;
    call.deadline_us = 20 * kSecond;
    EXPECT_EQ(tarpon_collective(ranks_[rank], &call, nullptr), TARPON_ERROR_NO_RESULT);
    EXPECT_THAT(tarpon_error_text(), HasSubstr("collective 99"));
    call.collective = TARPON_ALL_TO_ALL;
    ASSERT_EQ(tarpon_collective(ranks_[rank], &call, nullptr), TARPON_OK) << tarpon_error_text();
    EXPECT_EQ(out[0], rank == 0 ? 1 : 3);
    call.size = 4;
    EXPECT_EQ(tarpon_collective(ranks_[rank], &call, nullptr), TARPON_ERROR_INVALID_ARGUMENT);
    EXPECT_THAT(tarpon_error_text(), HasSubstr("sizeof(tarpon_collective_arguments)"));
  });
}

TEST_F(CApi, collective__all_to_all_with_counts_of_each_pair) {
  on_both([&](std::size_t rank) {
    const std::uint64_t to[2][2] = {{1, 2}, {0, 3}}, from[2][2] = {{1, 0}, {2, 3}};
    const std::vector<float> in =
        rank == 0 ? std::vector<float>{1, 2, 3} : std::vector<float>{4, 5, 6};
    std::vector<float> out(rank == 0 ? 1 : 5);
    tarpon_collective_arguments call{};
    call.size = sizeof call;
    call.collective = TARPON_ALL_TO_ALL;
    call.input = in.data(), call.output = out.data();
    call.counts = to[rank], call.output_counts = from[rank];
    call.deadline_us = 20 * kSecond;
    ASSERT_EQ(tarpon_collective(ranks_[rank], &call, nullptr), TARPON_OK) << tarpon_error_text();
    EXPECT_EQ(out, rank == 0 ? std::vector<float>{1} : (std::vector<float>{2, 3, 4, 5, 6}));
  });
}

tarpon_message message_on(float* data, std::size_t count, std::size_t peer) {
  tarpon_message message{};
  message.size = sizeof message;
  message.data = data;
  message.bytes = count * sizeof *data;
  message.peer = static_cast<std::uint32_t>(peer);
  message.deadline_us = 20 * kSecond;
  return message;
}

TEST_F(CApi, message__is_found_by_a_probe_and_received) {
  on_both([&](std::size_t rank) {
    std::vector<float> data(1000, rank == 0 ? 7.0f : 0.0f);
    tarpon_message message = message_on(data.data(), data.size(), 1 - rank);
    message.tag = 3;
    if (rank == 0) {
      ASSERT_EQ(tarpon_send(ranks_[0], &message, nullptr), TARPON_OK) << tarpon_error_text();
      return;
    }
    std::uint32_t peer = 9;
    ASSERT_EQ(tarpon_probe(ranks_[1], 3, 20 * kSecond, &peer), TARPON_OK) << tarpon_error_text();
    EXPECT_EQ(peer, 0u);
    ASSERT_EQ(tarpon_recv(ranks_[1], &message, nullptr), TARPON_OK) << tarpon_error_text();
    EXPECT_EQ(data, std::vector<float>(1000, 7.0f));
    EXPECT_EQ(tarpon_probe(ranks_[1], 3, 0, &peer), TARPON_ERROR_TIMEOUT);
    EXPECT_THAT(tarpon_error_text(), HasSubstr("no rank has sent a message of tag 3"));
    EXPECT_EQ(tarpon_probe(ranks_[1], 3, 0, nullptr), TARPON_ERROR_INVALID_ARGUMENT);
  });
}

TEST_F(CApi, message__what_makes_no_sense_is_refused_and_later_messages_match) {
  on_both([&](std::size_t rank) {
    const auto run = [&](const tarpon_message& message) {
      return rank == 0 ? tarpon_send(ranks_[0], &message, nullptr)
                       : tarpon_recv(ranks_[1], &message, nullptr);
    };
    float data[4] = {};
    tarpon_message message = message_on(data, 4, rank);
    EXPECT_EQ(run(message), TARPON_ERROR_INVALID_ARGUMENT);
    EXPECT_THAT(tarpon_error_text(), HasSubstr("is this rank"));
    message.peer = static_cast<std::uint32_t>(1 - rank);
    if (rank == 1) message.refusal = "the tensor is not contiguous";
    EXPECT_EQ(run(message), TARPON_ERROR_NO_RESULT);
    EXPECT_THAT(tarpon_error_text(),
                HasSubstr(rank == 1 ? "the tensor is not contiguous" : "rank 1 refused the call"));
    message.refusal = nullptr;
    EXPECT_EQ(run(message), TARPON_OK) << tarpon_error_text();
  });
}

TEST_F(CApi, group__starts_its_calls_together) {
  on_both([&](std::size_t rank) {
    std::vector<float> own(50'000, static_cast<float>(rank)), others(50'000, -1.0f);
    std::vector<float> sums = {1, 2};
    tarpon_message out = message_on(own.data(), own.size(), 1 - rank);
    tarpon_message in = message_on(others.data(), others.size(), 1 - rank);
    tarpon_arguments add = call_on(sums.data(), sums.size());
    ASSERT_EQ(tarpon_group_start(), TARPON_OK);
    ASSERT_EQ(tarpon_group_start(), TARPON_OK);
    // Without a group both ranks would wait for each other here.
    EXPECT_EQ(tarpon_send(ranks_[rank], &out, nullptr), TARPON_OK) << tarpon_error_text();
    EXPECT_EQ(tarpon_group_end(), TARPON_OK);
    EXPECT_EQ(tarpon_recv(ranks_[rank], &in, nullptr), TARPON_OK) << tarpon_error_text();
    EXPECT_EQ(tarpon_allreduce(ranks_[rank], &add, nullptr), TARPON_OK) << tarpon_error_text();
    EXPECT_EQ(tarpon_group_end(), TARPON_OK) << tarpon_error_text();
    EXPECT_EQ(others, std::vector<float>(50'000, static_cast<float>(1 - rank)));
    EXPECT_EQ(sums, (std::vector<float>{2, 4}));
  });
}

TEST_F(CApi, group__tells_the_first_error_of_its_calls) {
  on_both([&](std::size_t rank) {
    float data[4] = {};
    tarpon_message good = message_on(data, 4, 1 - rank), bad = good;
    bad.tag = 1;
    if (rank == 1) bad.bytes = 8;
    tarpon_report* report = nullptr;
    tarpon_arguments add = call_on(data, 4);
    ASSERT_EQ(tarpon_group_start(), TARPON_OK);
    const auto run = rank == 0 ? tarpon_send : tarpon_recv;
    EXPECT_EQ(run(ranks_[rank], &bad, nullptr), TARPON_OK);
    EXPECT_EQ(run(ranks_[rank], &good, nullptr), TARPON_OK);
    EXPECT_EQ(tarpon_group_end(), TARPON_ERROR_NO_RESULT);
    EXPECT_THAT(tarpon_error_text(), HasSubstr("mismatch"));
    ASSERT_EQ(tarpon_group_start(), TARPON_OK);
    EXPECT_EQ(tarpon_allreduce(ranks_[rank], &add, &report), TARPON_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(tarpon_group_end(), TARPON_ERROR_INVALID_ARGUMENT);
    EXPECT_THAT(tarpon_error_text(), HasSubstr("a group has no reports: give NULL"));
    EXPECT_EQ(tarpon_group_end(), TARPON_ERROR_INVALID_ARGUMENT);
    EXPECT_THAT(tarpon_error_text(), HasSubstr("no group is open"));
    EXPECT_EQ(tarpon_allreduce(ranks_[rank], &add, nullptr), TARPON_OK) << tarpon_error_text();
  });
}

TEST_F(CApi, follow__takes_the_results_that_a_rank_missed) {
  constexpr std::uint32_t kMissed = 3;
  constexpr std::uint64_t kCount = 50'000;
  std::array<std::vector<float>, kMissed + 2> results_of_0;
  const auto bounded = [](std::vector<float>& data, std::int64_t bound_us) {
    tarpon_arguments call = call_on(data.data(), data.size());
    call.mode = TARPON_BOUNDED;
    call.bound_us = bound_us;
    return call;
  };
  on_both([&](std::size_t rank) {
    if (rank == 1) return;  // it stands still
    for (std::uint32_t i = 0; i <= kMissed; ++i) {
      results_of_0[i].assign(kCount, static_cast<float>(i + 1));
      const tarpon_arguments call = bounded(results_of_0[i], kSecond / 50);
      ASSERT_EQ(tarpon_allreduce(ranks_[0], &call, nullptr), TARPON_OK) << tarpon_error_text();
    }
  });
  std::vector<float> data(kCount, 1);
  tarpon_arguments call = bounded(data, kSecond / 50);
  ASSERT_EQ(tarpon_allreduce(ranks_[1], &call, nullptr), TARPON_OK) << tarpon_error_text();
  EXPECT_EQ(data, results_of_0[0]);
  call.flags = TARPON_FOLLOW;
  call.input = nullptr;
  std::uint32_t behind = 0;
  for (std::uint32_t i = 1; i <= kMissed; ++i) {
    ASSERT_EQ(tarpon_behind(ranks_[1], 0, &behind), TARPON_OK);
    EXPECT_EQ(behind, kMissed - i + 1);
    data.assign(kCount, std::numeric_limits<float>::quiet_NaN());
    tarpon_report* report = nullptr;
    ASSERT_EQ(tarpon_allreduce(ranks_[1], &call, &report), TARPON_OK) << tarpon_error_text();
    const tarpon_summary summary = summary_of(report);
    tarpon_report_free(report);
    EXPECT_EQ(summary.status, TARPON_STATUS_LATE_SELF);
    EXPECT_EQ(summary.nonfinite, 0u);
    EXPECT_EQ(data, results_of_0[i]) << i;
  }
  // Now there is nothing to follow, and the refused call has taken no number.
  data.assign(kCount, 7);
  EXPECT_EQ(tarpon_allreduce(ranks_[1], &call, nullptr), TARPON_ERROR_UNAVAILABLE);
  EXPECT_EQ(data, std::vector<float>(kCount, 7)) << "the output is as it was";
  EXPECT_THAT(tarpon_error_text(), HasSubstr("no other rank has ended the next call of tag 0"));
  tarpon_call* started = nullptr;
  EXPECT_EQ(tarpon_allreduce_start(ranks_[1], &call, &started), TARPON_ERROR_UNAVAILABLE);
  on_both([&](std::size_t rank) {
    std::vector<float> values(kCount, 1);
    const tarpon_arguments together = bounded(values, 5 * kSecond);
    ASSERT_EQ(tarpon_allreduce(ranks_[rank], &together, nullptr), TARPON_OK);
    EXPECT_EQ(values.back(), 2.0f);
  });
}

TEST_F(CApi, agree__one_verdict) {
  on_both([&](std::size_t rank) {
    tarpon_loss loss{};
    loss.size = sizeof loss;
    loss.lost_fraction = rank == 1 ? 0.2 : 0;
    tarpon_step_verdict verdict{};
    verdict.size = sizeof verdict;
    ASSERT_EQ(tarpon_agree(ranks_[rank], 4, &loss, 5 * kSecond, &verdict), TARPON_OK);
    EXPECT_EQ(verdict.verdict, TARPON_STEP_SKIP);
    EXPECT_EQ(verdict.step, 4u);
    EXPECT_EQ(verdict.lost_fraction, 0.2);
    EXPECT_EQ(verdict.reporters, 3u);
    EXPECT_NE(verdict.detail[0], '\0');
    ASSERT_EQ(tarpon_agree(ranks_[rank], 5, nullptr, 5 * kSecond, &verdict), TARPON_OK);
    EXPECT_EQ(verdict.verdict, TARPON_STEP_APPLY);
    EXPECT_STREQ(verdict.detail, "");
  });
}

TEST_F(CApi, barrier_and_resync__and_deadlines_that_have_passed) {
  on_both([&](std::size_t rank) {
    EXPECT_EQ(tarpon_barrier(ranks_[rank], 5 * kSecond), TARPON_OK) << tarpon_error_text();
    char text[8] = "-------";
    if (rank == 1) std::memcpy(text, "weights", 8);
    EXPECT_EQ(tarpon_resync(ranks_[rank], 1, text, sizeof text, 5 * kSecond), TARPON_OK)
        << tarpon_error_text();
    EXPECT_STREQ(text, "weights");
  });
  EXPECT_EQ(tarpon_resync(ranks_[0], 70'000, nullptr, 0, kSecond), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(), HasSubstr("no such rank"));
  EXPECT_NE(tarpon_barrier(ranks_[0], -1), TARPON_OK);
  EXPECT_THAT(tarpon_error_text(), HasSubstr("deadline must be positive"));
}

TEST_F(CApi, split__calls_in_the_order_that_is_given) {
  const uint32_t ranks[] = {1, 0};
  on_both([&](std::size_t rank) {
    tarpon_communicator* part = nullptr;
    ASSERT_EQ(tarpon_split(ranks_[rank], ranks, 2, 5, 10 * kSecond, &part), TARPON_OK)
        << tarpon_error_text();
    EXPECT_EQ(tarpon_rank(part), 1 - rank);
    EXPECT_EQ(tarpon_world_size(part), 2u);
    float value = 1;
    const tarpon_arguments call = call_on(&value, 1);
    EXPECT_EQ(tarpon_allreduce(part, &call, nullptr), TARPON_OK) << tarpon_error_text();
    EXPECT_EQ(tarpon_close(part, 10 * kSecond), TARPON_OK) << tarpon_error_text();
    tarpon_communicator_free(part);
  });
  tarpon_communicator* part = nullptr;
  const auto refused = [&](const uint32_t* list, uint32_t count, uint32_t number) {
    EXPECT_EQ(tarpon_split(ranks_[0], list, count, number, kSecond, &part),
              TARPON_ERROR_INVALID_ARGUMENT);
    return std::string(tarpon_error_text());
  };
  EXPECT_EQ(refused(nullptr, 2, 6), "tarpon_split: ranks is NULL");
  EXPECT_THAT(refused(ranks, 2, 5), HasSubstr("number 5 was given before"));
  EXPECT_THAT(refused(ranks, 2, 70'000), HasSubstr("give one up to 65535"));
  const uint32_t beyond[] = {0, 70'000};
  EXPECT_THAT(refused(beyond, 2, 6), HasSubstr("of 2"));
  expect_pairs(0, 0);
}

TEST_F(CApi, abort__ends_calls_and_shrink_goes_on) {
  on_both([&](std::size_t rank) {
    float value = 1;
    if (rank == 0) {
      EXPECT_EQ(tarpon_abort(ranks_[0], "enough"), TARPON_OK);
    } else {
      const tarpon_arguments call = call_on(&value, 1);
      EXPECT_EQ(tarpon_allreduce(ranks_[1], &call, nullptr), TARPON_ERROR_NO_RESULT);
      EXPECT_THAT(tarpon_error_text(), HasSubstr("enough"));
    }
    tarpon_communicator* fresh = nullptr;
    ASSERT_EQ(tarpon_shrink(ranks_[rank], 10 * kSecond, &fresh), TARPON_OK) << tarpon_error_text();
    tarpon_communicator_free(ranks_[rank]);
    ranks_[rank] = fresh;
    EXPECT_STREQ(tarpon_left_out(fresh), "");
  });
  expect_pairs(0, 0);
}

}  // namespace
