// What ranks exchange over the control channel, and ranks that are missing meanwhile.
#include "collectives/rendezvous/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/rendezvous_job.h"

namespace tarpon::control_exchange_test {
namespace {

using namespace testing_support;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(ControlExchangeTest, sizes__from_nothing_to_a_megabyte) {
  Job job(4);
  job.run([](ControlChannel& channel) {
    for (const std::size_t size : {0u, 1u, 15u, 16u, 17u, 65'536u, 1u << 20}) {
      const auto message = [&](std::size_t rank) {
        return std::string(size, static_cast<char>('a' + rank));
      };
      const auto all = channel.all_gather(message(channel.rank()), late());
      ASSERT_TRUE(all.has_value()) << all.error().message;
      EXPECT_THAT(*all, ElementsAre(message(0), message(1), message(2), message(3)));

      std::vector<Rank> missing{9};
      const auto gathered = channel.gather(message(channel.rank()), late(), missing);
      ASSERT_TRUE(gathered.has_value()) << gathered.error().message;
      EXPECT_THAT(missing, IsEmpty());
      if (channel.rank() == 0) {
        EXPECT_THAT(*gathered, ElementsAre(message(0), message(1), message(2), message(3)));
      } else {
        EXPECT_THAT(*gathered, IsEmpty());
      }

      const auto told = channel.broadcast(channel.rank() == 0 ? message(25) : "ignored", late());
      ASSERT_TRUE(told.has_value()) << told.error().message;
      EXPECT_EQ(*told, message(25));
    }
  });
}

TEST(ControlExchangeTest, message_over_the_limit__is_refused_and_the_others_hear_of_it) {
  Job job(2);
  job.run([](ControlChannel& channel) {
    const std::string mine(channel.rank() == 0 ? (16u << 20) + 1 : 1, 'x');
    const auto all = channel.all_gather(mine, late());
    ASSERT_FALSE(all.has_value());
    EXPECT_EQ(all.error().code, Error::Code::invalid_argument);
    EXPECT_THAT(all.error().message, HasSubstr("16777217 bytes"));
  });
}

TEST(ControlExchangeTest, all_gather__absent_rank_is_named_on_every_rank_and_may_come_back) {
  Job job(4);
  job.run([](ControlChannel& channel) {
    if (channel.rank() == 2) return;
    const auto all = channel.all_gather("first", soon());
    ASSERT_FALSE(all.has_value());
    EXPECT_EQ(all.error().code, Error::Code::timeout);
    EXPECT_THAT(all.error().message, HasSubstr("rank 2 did not answer"));
  });
  // Rank 2 gets the error of the exchange that it missed at once. Rank 0 does not take the data of
  // rank 2 for that exchange as its data for the next one.
  EXPECT_THAT(job[2].all_gather("late", late()).error().message,
              HasSubstr("rank 2 did not answer"));
  job.run([](ControlChannel& channel) {
    const auto all = channel.all_gather("second", late());
    ASSERT_TRUE(all.has_value()) << all.error().message;
    EXPECT_THAT(*all, ElementsAre("second", "second", "second", "second"));
  });
}

TEST(ControlExchangeTest, all_gather__dead_rank_is_named_at_once) {
  Job job(4);
  job.kill(3);
  job.run([](ControlChannel& channel) {
    for (int round = 0; round < 2; ++round) {
      const auto all = channel.all_gather("x", late());
      ASSERT_FALSE(all.has_value());
      EXPECT_EQ(all.error().code, Error::Code::unavailable);
      EXPECT_THAT(all.error().message, HasSubstr("the control channel of rank 3 ended"));
    }
  });
}

TEST(ControlExchangeTest, dead_rank_0__is_named) {
  Job job(3);
  job.kill(0);
  job.run([](ControlChannel& channel) {
    const auto all = channel.all_gather("x", late());
    ASSERT_FALSE(all.has_value());
    EXPECT_EQ(all.error().code, Error::Code::unavailable);
    EXPECT_THAT(all.error().message, HasSubstr("the control channel of rank 0 ended"));
    const auto told = channel.broadcast("", late());
    ASSERT_FALSE(told.has_value());
    EXPECT_THAT(told.error().message, HasSubstr("the control channel of rank 0 ended"));
  });
}

TEST(ControlExchangeTest, absent_rank_0__ends_by_the_deadline) {
  Job job(2);
  const auto all = job[1].all_gather("x", monotonic_now() + 20ms);
  ASSERT_FALSE(all.has_value());
  EXPECT_THAT(all.error().message, HasSubstr("rank 0 did not answer by the deadline"));
  const auto told = job[1].broadcast("", monotonic_now() + 20ms);
  ASSERT_FALSE(told.has_value());
  EXPECT_EQ(told.error().code, Error::Code::timeout);
}

/// Waits, as a rank does that opens its mesh, until the exchange is known to fail.
void await_broken(ControlChannel& channel) {
  const Time until = late();
  while (!channel.is_broken() && monotonic_now() < until) {
    rendezvous::sleep_until(monotonic_now() + 5ms);
  }
  EXPECT_TRUE(channel.is_broken());
}

TEST(ControlExchangeTest, give_up__ends_the_exchange_on_all_ranks_with_one_error) {
  for (const Rank failing : {Rank{0}, Rank{2}}) {
    Job job(4);
    job.run([failing](ControlChannel& channel) {
      ASSERT_TRUE(channel.all_gather("", late()).has_value());
      if (channel.rank() == failing) {
        const Error error = Error::make(Error::Code::io, "rank 7: no descriptor");
        EXPECT_EQ(channel.give_up(error, late()).message, error.message);
        return;
      }
      // Rank 3 is in the exchange; the others still wait for something else.
      if (channel.rank() != 3) await_broken(channel);
      const auto all = channel.all_gather("", late());
      ASSERT_FALSE(all.has_value());
      EXPECT_EQ(all.error().code, Error::Code::io);
      EXPECT_EQ(all.error().message, "rank 7: no descriptor");
    });
  }
}

TEST(ControlExchangeTest, is_broken__by_the_end_of_a_rank_and_not_by_one_that_waits) {
  Job job(3);
  std::thread waiting([&job] { EXPECT_FALSE(job[1].all_gather("", late()).has_value()); });
  rendezvous::sleep_until(monotonic_now() + 20ms);
  EXPECT_FALSE(job[0].is_broken());
  EXPECT_FALSE(job[2].is_broken());
  job.kill(2);
  await_broken(job[0]);
  EXPECT_THAT(job[0].all_gather("", late()).error().message,
              HasSubstr("the control channel of rank 2 ended: its process has ended"));
  waiting.join();
}

TEST(ControlExchangeTest, gather__lists_dead_and_absent_ranks) {
  Job job(5);
  job.kill(1);
  job.run([](ControlChannel& channel) {
    if (channel.rank() == 3) return;
    std::vector<Rank> missing;
    const auto all = channel.gather(fmt::format("{}", channel.rank()), soon(), missing);
    ASSERT_TRUE(all.has_value()) << all.error().message;
    if (channel.rank() != 0) return;
    EXPECT_THAT(*all, ElementsAre("0", "", "2", "", "4"));
    EXPECT_THAT(missing, ElementsAre(1, 3));
  });
}

TEST(ControlExchangeTest, gather__what_comes_late_is_not_taken_for_the_next_one) {
  Job job(2);
  std::vector<Rank> missing;
  EXPECT_TRUE(job[0].gather("", monotonic_now(), missing).has_value());
  EXPECT_THAT(missing, ElementsAre(1));
  std::vector<Rank> none;
  EXPECT_TRUE(job[1].gather("late", late(), none).has_value());
  EXPECT_TRUE(job[1].gather("next", late(), none).has_value());
  const auto all = job[0].gather("", late(), missing);
  EXPECT_THAT(*all, ElementsAre("", "next"));
  EXPECT_THAT(missing, IsEmpty());
}

TEST(ControlExchangeTest, gather__a_rank_may_leave_right_after_it) {
  Job job(2);
  std::vector<Rank> missing;
  EXPECT_TRUE(job[1].gather(std::string(1000, 'r'), late(), missing).has_value());
  job.kill(1);
  const auto all = job[0].gather("", late(), missing);
  EXPECT_THAT(*all, ElementsAre("", std::string(1000, 'r')));
  EXPECT_THAT(missing, IsEmpty());
}

TEST(ControlExchangeTest, broadcast__reaches_the_living_and_names_the_dead) {
  Job job(3);
  job.kill(1);
  // The first delivery may still meet an open connection: the kernel reports the loss afterwards.
  std::vector<Rank> missing;
  job.run([&](ControlChannel& channel) {
    std::vector<Rank> ignored;
    (void)channel.gather("", late(), channel.rank() == 0 ? missing : ignored);
  });
  EXPECT_THAT(missing, ElementsAre(1));
  const auto sent = job[0].broadcast("news", late());
  ASSERT_FALSE(sent.has_value());
  EXPECT_EQ(sent.error().code, Error::Code::unavailable);
  EXPECT_THAT(sent.error().message, HasSubstr("the control channel of rank 1 ended"));
  EXPECT_EQ(*job[2].broadcast("", late()), "news");
}

TEST(ControlExchangeTest, close__right_after_an_exchange_loses_nothing_of_it) {
  Job job(3);
  job.run([](ControlChannel& channel) {
    const auto values = channel.all_gather(std::to_string(channel.rank()), late());
    channel.close();
    ASSERT_TRUE(values) << values.error().message;
    EXPECT_THAT(*values, ElementsAre("0", "1", "2"));
    EXPECT_FALSE(channel.all_gather("more", late()));
    EXPECT_NE(channel.job(), 0u);
  });
}

TEST(ControlExchangeTest, different_calls__are_a_mismatch_on_all_ranks) {
  Job job(2);
  job.run([](ControlChannel& channel) {
    std::vector<Rank> missing;
    if (channel.rank() == 1) {
      EXPECT_TRUE(channel.gather("", late(), missing).has_value());
      return;
    }
    const auto all = channel.all_gather("", late());
    ASSERT_FALSE(all.has_value());
    EXPECT_EQ(all.error().code, Error::Code::mismatch);
    EXPECT_THAT(all.error().message,
                HasSubstr("rank 1 calls gather as exchange 1 where rank 0 calls "
                          "all_gather"));
  });
  Job other(2);
  ASSERT_TRUE(other[0].broadcast("x", late()).has_value());
  const auto all = other[1].all_gather("x", late());
  ASSERT_FALSE(all.has_value());
  EXPECT_EQ(all.error().code, Error::Code::mismatch);
}

TEST(ControlExchangeTest, slow_reader__is_cut_off_by_the_deadline_and_named) {
  Job job(2);
  // More than the socket buffers of loopback take.
  const std::string large(16u << 20, 'x');
  const auto sent = job[0].broadcast(large, monotonic_now() + 20ms);
  ASSERT_FALSE(sent.has_value());
  EXPECT_THAT(sent.error().message, HasSubstr("rank 1 did not take the message by the deadline"));
  const auto told = job[1].broadcast("", late());
  ASSERT_FALSE(told.has_value());
  EXPECT_EQ(told.error().code, Error::Code::unavailable);
}

}  // namespace
}  // namespace tarpon::control_exchange_test
