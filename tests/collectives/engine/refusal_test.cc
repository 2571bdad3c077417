// Calls that one rank refuses, or comes to too late: they end on all ranks, and the next ones pair.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory_resource>
#include <new>
#include <stdexcept>

#include "tests/support/simulated_job.h"

namespace tarpon::testing_support::refusal_test {
namespace {

using Ranks = std::vector<Rank>;
using testing::ElementsAre;

/// Throws at the n-th allocation from now on, once: std::bad_alloc, or another exception.
class RefusingMemory : public std::pmr::memory_resource {
 public:
  void refuse_after(int allocations) { left_ = allocations; }
  void throw_another() { another_ = true; }
  bool has_refused() const { return left_ < 0; }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (left_ >= 0 && left_-- == 0) {
      if (another_) throw std::runtime_error("planted");
      throw std::bad_alloc();
    }
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    std::pmr::new_delete_resource()->deallocate(memory, bytes, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  int left_ = -1;
  bool another_ = false;
};

class RefusalTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kCount = 4000;

  void make_job(Mechanisms mechanisms = {}) {
    job_.emplace(SimulatedJobOptions{
        .ranks = 3, .mechanisms = mechanisms, .call_memory = {nullptr, &memory_, nullptr}});
  }

  AllreduceArguments arguments(Rank rank, bool bounded) {
    AllreduceArguments result = buffers_.back().arguments(rank, DataType::float32, ReduceOp::sum);
    result.tag = 5;
    if (bounded) {
      result.mode = Mode::bounded;
      result.bound = 20ms;
    }
    return result;
  }

  /// One call in which rank 1 passes what `change` makes of its arguments. Returns the reports.
  std::vector<Report> run(bool bounded, const std::function<void(AllreduceArguments&)>& change) {
    buffers_.emplace_back(3, count_, false, buffers_.size() + 1);
    std::vector<std::shared_ptr<PendingCall>> calls;
    for (const Rank rank : Ranks{0, 1, 2}) {
      AllreduceArguments own = arguments(rank, bounded);
      if (rank == 1) change(own);
      calls.push_back(job_->submit(rank, own));
    }
    EXPECT_TRUE(job_->finish(1s));
    std::vector<Report> reports;
    for (const auto& call : calls) reports.push_back(call->report);
    return reports;
  }

  /// All ranks end a call as refused by rank 1 for `reason`, and the next one is right.
  void expect_refused(bool bounded, AbortReason reason,
                      const std::function<void(AllreduceArguments&)>& change) {
    SCOPED_TRACE(std::string(name(reason)) + (bounded ? " bounded" : " exact"));
    for (const Report& report : run(bounded, change)) {
      EXPECT_EQ(report.status, Status::aborted) << report.detail;
      EXPECT_EQ(report.abort_reason, reason) << report.detail;
      EXPECT_THAT(report.blamed, ElementsAre(1)) << report.detail;
      EXPECT_FALSE(report.detail.empty());
    }
    expect_right();
  }

  /// One call for each allocation that rank 1 makes in a call: it throws there, and that call alone
  /// ends for `reason`. Returns how many of the calls ended so on all ranks.
  int expect_each_allocation_refused(const Mechanisms& mechanisms, bool bounded,
                                     AbortReason reason) {
    SCOPED_TRACE(std::string(name(reason)) + (bounded ? " bounded" : " exact"));
    int on_all = 0;
    for (int allocations = 0; allocations < 100; ++allocations) {
      make_job(mechanisms);
      expect_right();
      memory_.refuse_after(allocations);
      const std::vector<Report> reports = run(bounded, [](AllreduceArguments&) {});
      const bool refused = memory_.has_refused();
      memory_.refuse_after(-1);
      int ended = 0;
      for (const Report& report : reports) {
        // A peer may have had all that it needs.
        if (report.status == Status::complete) continue;
        ++ended;
        EXPECT_EQ(report.status, Status::aborted) << report.detail;
        EXPECT_EQ(report.abort_reason, reason) << report.detail;
        EXPECT_THAT(report.blamed, ElementsAre(1)) << report.detail;
      }
      on_all += ended == 3;
      EXPECT_EQ(reports[1].status, refused ? Status::aborted : Status::complete) << allocations;
      expect_right();
      if (!refused) return on_all;
    }
    ADD_FAILURE() << "too many allocations";
    return on_all;
  }

  void expect_right() {
    const std::vector<Report> reports = run(false, [](AllreduceArguments&) {});
    for (const Report& report : reports)
      EXPECT_EQ(report.status, Status::complete) << report.detail;
    const auto expected = buffers_.back().expected(ReduceOp::sum, reports[0].operation);
    for (Rank rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(reports[rank].operation, reports[0].operation);
      EXPECT_TRUE(same_bits(buffers_.back().outputs[rank], expected)) << "rank " << rank;
    }
  }

  std::uint64_t count_ = kCount;  // of the calls of run()
  RefusingMemory memory_;         // of rank 1
  std::deque<Buffers<float>> buffers_;
  std::optional<SimulatedJob> job_;
};

TEST_F(RefusalTest, arguments__take_the_number_of_the_call_on_every_rank) {
  make_job();
  for (const bool bounded : {false, true}) {
    const auto refused = [&](AbortReason reason, const auto& change) {
      expect_refused(bounded, reason, change);
    };
    refused(AbortReason::argument, [](AllreduceArguments& own) { own.input = nullptr; });
    refused(AbortReason::argument, [](AllreduceArguments& own) { own.output = nullptr; });
    refused(AbortReason::argument, [](AllreduceArguments& own) { own.group_size = 3; });
    refused(AbortReason::argument, [](AllreduceArguments& own) {
      own.algorithm = Algorithm::two_level_tar;
      own.group_size = 2;
    });
    refused(AbortReason::argument, [](AllreduceArguments& own) { own.late_rank = 1; });
    refused(AbortReason::argument,  // 3 ranks
            [](AllreduceArguments& own) { own.algorithm = Algorithm::late_rank; });
    for (const std::vector<double>& weights :
         {std::vector<double>{}, {0, 0, 0}, {1, -1, 1}, {1, NAN, 1}, {1, 1}}) {
      refused(AbortReason::argument,
              [&](AllreduceArguments& own) { own.shares = Shares(weights); });
    }
    refused(AbortReason::argument, [](AllreduceArguments& own) {
      own.algorithm = Algorithm::ring;
      own.shares = Shares(std::vector<double>{1, 1, 2});
    });
    refused(AbortReason::argument, [](AllreduceArguments& own) { own.bound = Duration(-1); });
    refused(AbortReason::argument,
            [](AllreduceArguments& own) { own.count = std::uint64_t{1} << 60; });
    refused(AbortReason::argument,
            [](AllreduceArguments& own) { own.type = static_cast<DataType>(200); });
    refused(AbortReason::argument,
            [](AllreduceArguments& own) { own.function = static_cast<ReduceOp>(200); });
    refused(AbortReason::argument, [](AllreduceArguments& own) {
      own.output = static_cast<std::byte*>(const_cast<void*>(own.input)) + 4;
    });
    refused(AbortReason::deadline, [](AllreduceArguments& own) { own.deadline = 0ms; });
    refused(AbortReason::deadline, [](AllreduceArguments& own) { own.deadline = -1ms; });
  }
}

// Its owner needs no gather: all that it waits for besides are the contributions.
TEST_F(RefusalTest, one_shard__what_came_before_the_refusal_is_no_result) {
  make_job();
  count_ = 1;
  for (int call = 0; call < 20; ++call) {
    expect_refused(true, AbortReason::argument,
                   [](AllreduceArguments& own) { own.input = nullptr; });
  }
}

TEST_F(RefusalTest, memory__refused_at_any_allocation_ends_that_call_alone) {
  Mechanisms coded;
  coded.codec = CodecRule::on;
  for (const Mechanisms& mechanisms : {Mechanisms{}, coded}) {
    for (const bool bounded : {false, true}) {
      EXPECT_GT(expect_each_allocation_refused(mechanisms, bounded, AbortReason::memory), 0);
    }
  }
}

// The first allocations are those of submit() and start(), the last ones those of finish().
TEST_F(RefusalTest, exception__at_any_allocation_ends_that_call_alone) {
  memory_.throw_another();
  Mechanisms coded;
  coded.codec = CodecRule::on;
  for (const Mechanisms& mechanisms : {Mechanisms{}, coded}) {
    for (const bool bounded : {false, true}) {
      EXPECT_GT(expect_each_allocation_refused(mechanisms, bounded, AbortReason::exception), 0);
    }
  }
}

TEST_F(RefusalTest, queued__a_refused_call_keeps_its_place) {
  make_job();
  std::vector<std::vector<std::shared_ptr<PendingCall>>> calls(3);
  const Ranks ranks{0, 1, 2};
  for (int call = 0; call < 12; ++call) {
    buffers_.emplace_back(3, kCount, false, static_cast<std::uint64_t>(call) + 1);
    for (const Rank rank : ranks) {
      AllreduceArguments own = arguments(rank, false);
      if (rank == 1 && (call == 9 || call == 10)) own.input = nullptr;
      calls[rank].push_back(job_->submit(rank, own));
    }
  }
  ASSERT_TRUE(job_->finish(1s));
  for (std::uint32_t call = 0; call < 12; ++call) {
    const bool refused = call == 9 || call == 10;
    for (const Rank rank : ranks) {
      const Report& report = calls[rank][call]->report;
      EXPECT_EQ(report.operation, call);
      EXPECT_EQ(report.status, refused ? Status::aborted : Status::complete) << report.detail;
      if (refused) continue;
      EXPECT_TRUE(
          same_bits(buffers_[call].outputs[rank], buffers_[call].expected(ReduceOp::sum, call)));
    }
  }
}

TEST_F(RefusalTest, one_rank__is_told_the_reason_as_well) {
  SimulatedJob alone({.ranks = 1});
  Buffers<float> buffers(1, 10, false);
  AllreduceArguments own = buffers.arguments(0, DataType::float32, ReduceOp::sum);
  own.deadline = 0ms;
  const auto call = alone.submit(0, own);
  EXPECT_TRUE(call->done);
  EXPECT_EQ(call->report.status, Status::aborted);
  EXPECT_EQ(call->report.abort_reason, AbortReason::deadline);
}

/// Exact calls with deadlines of 500 ms, to which rank 1 comes late once.
class LateExactTest : public RefusalTest {
 protected:
  void submit(Rank rank, std::size_t call) {
    while (buffers_.size() <= call) buffers_.emplace_back(3, kCount, false, buffers_.size() + 1);
    AllreduceArguments own = buffers_[call].arguments(rank, DataType::float32, ReduceOp::sum);
    own.deadline = 500ms;
    calls_[rank].push_back(job_->submit(rank, own));
  }
  /// Each rank makes the next call as soon as its last one has ended.
  void run_in_turn(std::size_t calls, Rank late, Duration pause) {
    job_->run_for(1us);
    Time resumes{};
    const Time limit = job_->now() + 20s;
    for (bool more = true; more && job_->now() < limit;) {
      more = false;
      for (Rank rank = 0; rank < 3; ++rank) {
        const std::size_t made = calls_[rank].size();
        if (made > 0 && !calls_[rank].back()->done) {
          more = true;
          continue;
        }
        if (made == calls) continue;
        more = true;
        if (rank == late && made == 2 && resumes == Time{}) resumes = job_->now() + pause;
        if (rank == late && made == 2 && job_->now() < resumes) continue;
        submit(rank, made);
      }
      job_->run_for(100us);
    }
  }
  std::array<std::vector<std::shared_ptr<PendingCall>>, 3> calls_;
};

TEST_F(LateExactTest, one_late_call_costs_one_call) {
  make_job();
  run_in_turn(6, 1, 600ms);
  for (Rank rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(calls_[rank].size(), 6u);
    for (std::size_t call = 0; call < 6; ++call) {
      const Report& report = calls_[rank][call]->report;
      SCOPED_TRACE(testing::Message()
                   << "rank " << rank << " call " << call << ": " << report.detail);
      if (call != 2) {
        EXPECT_EQ(report.status, Status::complete);
        EXPECT_LT(report.elapsed, call == 3 && rank != 1 ? 200ms : 10ms);
        EXPECT_TRUE(same_bits(buffers_[call].outputs[rank],
                              buffers_[call].expected(ReduceOp::sum, report.operation)));
      } else if (rank == 1) {
        EXPECT_EQ(report.status, Status::aborted);
        EXPECT_EQ(report.abort_reason, AbortReason::late);
        EXPECT_THAT(report.blamed, ElementsAre(1));
        EXPECT_LT(report.elapsed, 10ms) << "it learns it at once";
      } else {
        EXPECT_EQ(report.status, Status::peer_late);
        EXPECT_THAT(report.late_ranks, ElementsAre(1));
      }
    }
  }
}

TEST_F(LateExactTest, many_missed_calls_are_given_up_at_once) {
  make_job();
  run_in_turn(40, 1, 6s);  // the others end a dozen calls meanwhile
  int missed = 0;
  for (const auto& call : calls_[1]) {
    if (call->report.status == Status::complete) continue;
    ++missed;
    EXPECT_EQ(call->report.status, Status::aborted) << call->report.detail;
    EXPECT_EQ(call->report.abort_reason, AbortReason::late);
    EXPECT_THAT(call->report.blamed, ElementsAre(1));
    EXPECT_LT(call->report.elapsed, 150ms);
  }
  EXPECT_GE(missed, 11);
  EXPECT_LE(missed, 14);
  for (Rank rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(calls_[rank].size(), 40u);
    for (std::size_t call = 20; call < 40; ++call) {
      EXPECT_EQ(calls_[rank][call]->report.status, Status::complete);
      EXPECT_TRUE(
          same_bits(buffers_[call].outputs[rank],
                    buffers_[call].expected(ReduceOp::sum, static_cast<std::uint32_t>(call))));
    }
  }
}

/// A rank leaves in order.
class LeavingTest : public RefusalTest {
 protected:
  std::vector<std::shared_ptr<PendingCall>> submit(const Ranks& ranks, bool bounded) {
    buffers_.emplace_back(3, kCount, false, buffers_.size() + 1);
    std::vector<std::shared_ptr<PendingCall>> calls;
    for (const Rank rank : ranks) calls.push_back(job_->submit(rank, arguments(rank, bounded)));
    return calls;
  }
  void leave(Rank rank) {
    const Fact fact = left(rank, (*job_)[rank].unpassed());
    for (Rank other = 0; other < 3; ++other) {
      if (other != rank) (*job_)[other].learn(fact, job_->now());
    }
  }
};

TEST_F(LeavingTest, later_exact_calls_end_at_once_and_say_so) {
  make_job();
  submit({0, 1, 2}, false);
  ASSERT_TRUE(job_->finish());
  const auto running = submit({0, 1}, false);
  job_->run_for(1ms);
  leave(2);
  job_->run_for(1ms);
  for (const auto& calls : {running, submit({0, 1}, false)}) {
    job_->run_for(1ms);
    for (const auto& call : calls) {
      ASSERT_TRUE(call->done);
      EXPECT_EQ(call->report.status, Status::peer_left) << call->report.detail;
      EXPECT_THAT(call->report.blamed, ElementsAre(2));
      EXPECT_EQ(call->report.detail, "rank 2 left the communicator");
    }
  }
}

TEST_F(LeavingTest, bounded_calls_go_on_without_it) {
  make_job();
  submit({0, 1, 2}, true);
  ASSERT_TRUE(job_->finish());
  leave(2);
  for (int call = 0; call < 5; ++call) {
    for (const auto& one : submit({0, 1}, true)) {
      ASSERT_TRUE(job_->finish(10ms)) << "long before the bounds";
      EXPECT_EQ(one->report.status, Status::partial) << one->report.detail;
      EXPECT_THAT(one->report.late_ranks, ElementsAre(2));
    }
  }
}

TEST_F(LeavingTest, calls_that_it_has_made_complete_all_the_same) {
  make_job();
  const auto first = submit({0, 2}, false);
  job_->run_for(1ms);  // rank 2 ends when rank 1 has come
  leave(2);
  job_->run_for(1ms);
  for (const auto& call : first) EXPECT_FALSE(call->done) << call->report.detail;
  EXPECT_EQ((*job_)[0].take_passed(), 0u);
  const auto late = job_->submit(1, arguments(1, false));
  ASSERT_TRUE(job_->finish(100ms));
  EXPECT_EQ(late->report.status, Status::complete) << late->report.detail;
  for (const auto& call : first) EXPECT_EQ(call->report.status, Status::complete);
  for (const Rank rank : Ranks{0, 1}) {
    EXPECT_EQ((*job_)[rank].take_passed(), 0b100u);
    EXPECT_EQ((*job_)[rank].take_passed(), 0u) << "told once";
  }
}

// What it has made before counts as long as it serves, also while the others go on.
TEST_F(LeavingTest, its_own_calls_are_served_while_the_others_make_more) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    FaultOptions faults;
    faults.loss = 0.2;
    job_.emplace(SimulatedJobOptions{.ranks = 3, .faults = faults, .seed = seed});
    const auto first = submit({0, 1, 2}, false);
    job_->stop(2);
    job_->run_for(1ms);
    leave(2);
    for (int call = 0; call < 3; ++call) submit({0, 1}, false);
    job_->resume(2);
    ASSERT_TRUE(job_->finish(9s)) << seed;
    for (const auto& call : first) {
      EXPECT_EQ(call->report.status, Status::complete) << seed << ": " << call->report.detail;
    }
  }
}

TEST_F(LeavingTest, nothing_that_it_has_not_made_is_retained_for_it) {
  make_job();
  submit({0, 1, 2}, true);
  ASSERT_TRUE(job_->finish());
  leave(2);
  for (int call = 0; call < 200; ++call) {
    submit({0, 1}, true);
    ASSERT_TRUE(job_->finish(50ms)) << "call " << call;
  }
  // The last call may still be asked for by the other one that stays; the one that it has made may
  // be by itself, until it says how far it is.
  EXPECT_LE((*job_)[0].endpoint().memory().retained_entries, 2u);
  job_->run_for(400ms);
  EXPECT_LE((*job_)[0].endpoint().memory().retained_entries, 1u);
}

TEST_F(LeavingTest, when_it_no_longer_serves_its_calls_end_too) {
  make_job();
  const auto first = submit({0, 2}, false);
  job_->run_for(1ms);
  leave(2);
  const Fact gone{.rank = 2, .standing = Standing::left};
  (*job_)[0].learn(gone, job_->now());
  job_->run_for(1ms);
  ASSERT_TRUE(first[0]->done);
  EXPECT_EQ(first[0]->report.status, Status::peer_left);
  EXPECT_EQ((*job_)[0].take_passed(), 0u);
}

}  // namespace
}  // namespace tarpon::testing_support::refusal_test
