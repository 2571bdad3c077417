// Work on the buffers of calls, piece by piece, in virtual time: while a piece runs, its rank is
// not driven, but other threads submit, abort and tell news.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

#include "collectives/engine/coded/coded_calls.h"
#include "collectives/engine/coded/coding.h"
#include "collectives/engine/learning/work_rate.h"
#include "tests/support/large_memory.h"
#include "tests/support/simulated_job.h"
#include "transport/ports/forwarding_port.h"

namespace tarpon::testing_support::pieces_test {
namespace {

using testing::ElementsAre;

constexpr std::uint64_t kCount = 1'000'000;
constexpr std::uint64_t kBytes = kCount * sizeof(float);
constexpr std::uint64_t kPiece = 64 << 10;

/// What one pass over the bucket takes.
Duration one_pass() {
  return Duration(static_cast<std::int64_t>(kBytes / kWorkBytesPerSecond * 1e9));
}

/// A bucket that can be taken away: touching it then ends the test program.
class Guarded {
 public:
  Guarded()
      : data_(static_cast<float*>(
            ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~Guarded() { ::munmap(data_, kBytes); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  float* data() { return data_; }
  void take_away() { ASSERT_EQ(::mprotect(data_, kBytes, PROT_NONE), 0); }

 private:
  float* data_;
};

class BreakingPort : public ForwardingPort {
 public:
  using ForwardingPort::ForwardingPort;
  bool broken = false;
  bool keeps = false;  // holds() says so
  bool holds(Lender lender) const override { return keeps || ForwardingPort::holds(lender); }
  std::optional<Error> failure() const override {
    if (!broken) return std::nullopt;
    return Error::make(Error::Code::io, "broken by a test");
  }
};

class PiecesTest : public testing::Test {
 protected:
  void make_job(CodecRule codec = CodecRule::on, std::uint16_t ranks = 2) {
    SimulatedJobOptions options{.ranks = ranks, .piece_bytes = kPiece};
    options.mechanisms.codec = codec;
    options.call_memory = {&memory_};
    job_.emplace(options, [this](Rank rank, std::unique_ptr<Port> inner) {
      auto port = std::make_unique<BreakingPort>(std::move(inner));
      if (rank == 0) port_ = port.get();
      return port;
    });
    guarded_.clear();
    for (Rank rank = 0; rank < ranks; ++rank) {
      Guarded& one = guarded_.emplace_back();
      for (std::uint64_t i = 0; i < kCount; ++i) one.data()[i] = value(rank, i);
    }
    job_->run_for(1us);
  }

  static float value(Rank rank, std::uint64_t i) {
    return static_cast<float>((i * 7 + rank * 13u) % 101);
  }

  AllreduceArguments arguments(Rank rank) {
    AllreduceArguments result;
    result.input = result.output = guarded_[rank].data();
    result.count = kCount;
    result.mode = Mode::bounded;
    result.bound = 100ms;
    result.deadline = 4s;
    return result;
  }

  std::vector<std::shared_ptr<PendingCall>> submit_all() {
    std::vector<std::shared_ptr<PendingCall>> calls;
    for (Rank rank = 0; rank < job_->ranks(); ++rank) {
      calls.push_back(job_->submit(rank, arguments(rank)));
    }
    return calls;
  }

  /// Small exact calls of `tag`, on all ranks.
  std::vector<std::shared_ptr<PendingCall>> submit_small(std::uint32_t tag) {
    small_.emplace_back(job_->ranks(), 100, false);
    std::vector<std::shared_ptr<PendingCall>> calls;
    for (Rank rank = 0; rank < job_->ranks(); ++rank) {
      auto one = small_.back().arguments(rank, DataType::float32, ReduceOp::sum);
      one.tag = tag;
      calls.push_back(job_->submit(rank, one));
    }
    return calls;
  }

  /// The next call of tag 0 has this number, and is right.
  void expect_next(std::uint32_t number) {
    const auto calls = submit_small(0);
    ASSERT_TRUE(job_->finish());
    for (const auto& call : calls) {
      EXPECT_EQ(call->report.status, Status::complete) << call->report.detail;
      EXPECT_EQ(call->report.operation, number);
    }
    EXPECT_TRUE(same_bits(small_.back().outputs[0], small_.back().expected(ReduceOp::sum, number)));
  }

  void run_until_encoding(Rank rank) {
    ASSERT_TRUE(job_->run_until([&] { return job_->is_working(rank); }));
  }
  /// After the end of the operation.
  void run_until_decoding(Rank rank, const PendingCall& call) {
    ASSERT_TRUE(job_->run_until(
        [&] { return job_->is_working(rank) && call.report.stage == CallStage::result; }));
  }

  void expect_sum(Rank rank, double tolerance) {
    for (std::uint64_t i = 0; i < kCount; ++i) {
      float sum = 0;
      for (Rank from = 0; from < job_->ranks(); ++from) sum += value(from, i);
      ASSERT_NEAR(guarded_[rank].data()[i], sum, tolerance) << "element " << i;
    }
  }

  LargeMemory memory_;  // of rank 0
  std::deque<Guarded> guarded_;
  std::deque<Buffers<float>> small_;
  BreakingPort* port_ = nullptr;  // of rank 0
  std::optional<SimulatedJob> job_;
};

TEST_F(PiecesTest, their_time_is_part_of_the_call) {
  make_job();
  const auto calls = submit_all();
  ASSERT_TRUE(job_->finish());
  for (Rank rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(calls[rank]->report.status, Status::complete) << calls[rank]->report.detail;
    ASSERT_TRUE(calls[rank]->report.coded);
    EXPECT_GT(calls[rank]->report.elapsed, 2 * one_pass()) << "encoding and decoding";
    const WorkRate& rate = (*job_)[rank].learnt().coded_work;
    EXPECT_GE(rate.of(kBytes), one_pass() * 99 / 100);
    EXPECT_LT(rate.of(kBytes), 2 * one_pass());
    EXPECT_EQ((*job_)[rank].learnt().uncoded_work.of(kBytes), WorkRate().of(kBytes)) << "unknown";
    expect_sum(rank, 2e-2);
  }
  expect_next(1);
}

TEST_F(PiecesTest, later_calls_of_a_tag_wait_while_one_is_encoded_and_others_run) {
  make_job();
  const auto calls = submit_all();
  run_until_encoding(0);
  const auto behind = submit_small(0);
  const auto beside = submit_small(1);
  ASSERT_TRUE(job_->run_until([&] {
    return std::all_of(beside.begin(), beside.end(), [](auto& one) { return one->done.load(); });
  }));
  for (Rank rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(beside[rank]->report.status, Status::complete);
    EXPECT_LT(beside[rank]->report.elapsed, one_pass() / 2);
    EXPECT_FALSE(behind[rank]->done);
    EXPECT_EQ(calls[rank]->report.bytes_sent, 0u) << "it has not begun";
  }
  ASSERT_TRUE(job_->finish());
  for (Rank rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(calls[rank]->report.operation, 0u);
    EXPECT_EQ(behind[rank]->report.operation, 1u);
    EXPECT_EQ(calls[rank]->report.status, Status::complete);
    EXPECT_EQ(behind[rank]->report.status, Status::complete);
  }
}

TEST_F(PiecesTest, calls_of_another_tag_complete_while_one_is_decoded) {
  make_job();
  const auto calls = submit_all();
  run_until_decoding(0, *calls[0]);
  const auto beside = submit_small(1);
  ASSERT_TRUE(job_->run_until([&] { return beside[0]->done.load(); }));
  EXPECT_FALSE(calls[0]->done);
  EXPECT_LT(beside[0]->report.elapsed, one_pass() / 2);
  ASSERT_TRUE(job_->finish());
  EXPECT_EQ(calls[0]->report.status, Status::complete);
}

TEST_F(PiecesTest, abort_while_encoding_ends_the_call_with_its_piece) {
  make_job();
  const auto calls = submit_all();
  run_until_encoding(0);
  (*job_)[0].abort(job_->now());
  EXPECT_FALSE(calls[0]->done) << "a piece reads the buffer";
  EXPECT_EQ((*job_)[0].outstanding(), 1u);
  (*job_)[0].abort(job_->now());
  const Time aborted = job_->now();
  ASSERT_TRUE(job_->run_until([&] { return calls[0]->done.load(); }));
  guarded_[0].take_away();
  EXPECT_LT(job_->now() - aborted, 20us) << "no other piece ran";
  EXPECT_EQ((*job_)[0].outstanding(), 0u);
  ASSERT_TRUE(job_->finish());
  EXPECT_EQ(calls[0]->report.stage, CallStage::queued);
  for (const auto& call : calls) {
    EXPECT_EQ(call->report.status, Status::aborted) << call->report.detail;
    EXPECT_THAT(call->report.blamed, ElementsAre(0));
  }
  expect_next(1);
}

TEST_F(PiecesTest, abort_for_good_while_encoding_ends_it_and_what_waits_behind_it) {
  make_job();
  const auto calls = submit_all();
  run_until_encoding(0);
  const auto behind = submit_small(0);
  (*job_)[0].abort_for_good(0, "a test", job_->now());
  EXPECT_TRUE(behind[0]->done);
  EXPECT_FALSE(calls[0]->done);
  ASSERT_TRUE(job_->run_until([&] { return calls[0]->done.load(); }));
  guarded_[0].take_away();
  EXPECT_EQ(calls[0]->report.status, Status::aborted);
  EXPECT_EQ((*job_)[0].outstanding(), 0u);
  job_->run_for(10ms);
}

/// Its rows are spread over all pages: the first piece would pay for them all.
TEST_F(PiecesTest, a_fresh_buffer_is_touched_before_it_is_encoded_and_once) {
  make_job();
  for (const bool fresh : {true, false}) {
    const Time begin = job_->now();
    const auto calls = submit_all();
    ASSERT_TRUE(job_->run_until([&] { return calls[0]->report.bytes_sent > 0; }));
    const Duration least = fresh ? 2 * one_pass() : one_pass();
    EXPECT_GT(job_->now() - begin, least);
    EXPECT_LT(job_->now() - begin, least + one_pass() / 2);
    ASSERT_TRUE(job_->finish());
  }
}

/// The others have this rank's part by then.
TEST_F(PiecesTest, abort_while_decoding_leaves_the_result) {
  make_job();
  const auto calls = submit_all();
  run_until_decoding(0, *calls[0]);
  (*job_)[0].abort(job_->now());
  EXPECT_FALSE(calls[0]->done);
  ASSERT_TRUE(job_->run_until([&] { return calls[0]->done.load(); }));
  EXPECT_EQ(calls[0]->report.status, Status::complete);
  expect_sum(0, 2e-2);
  guarded_[0].take_away();
  ASSERT_TRUE(job_->finish());
  expect_next(1);
}

TEST_F(PiecesTest, drop_calls__ends_a_call_that_needs_more_work_as_aborted) {
  make_job();
  port_->keeps = true;  // or the pieces of its output would begin
  const auto calls = submit_all();
  ASSERT_TRUE(job_->run_until([&] { return calls[1]->done.load(); }));
  EXPECT_EQ(calls[0]->report.status, Status::complete) << calls[0]->report.detail;
  EXPECT_FALSE(calls[0]->done);
  ASSERT_FALSE(job_->is_working(0));
  (*job_)[0].drop_calls(job_->now());
  guarded_[0].take_away();
  ASSERT_TRUE(calls[0]->done);
  EXPECT_EQ(calls[0]->report.status, Status::aborted);
  EXPECT_THAT(calls[0]->report.blamed, ElementsAre(0));
  EXPECT_EQ((*job_)[0].outstanding(), 0u);
  EXPECT_FALSE((*job_)[0].pieces().any());
  job_->run_for(10ms);
}

TEST_F(PiecesTest, abort_while_the_shard_is_copied_ends_the_call) {
  make_job(CodecRule::off, 3);
  const auto call = job_->submit(0, arguments(0));
  (void)job_->submit(1, arguments(1));
  ASSERT_TRUE(job_->run_until(
      [&] { return job_->is_working(0) && call->report.stages[1].elapsed > Duration::zero(); }));
  EXPECT_EQ(call->report.stage, CallStage::queued) << "the operation is open";
  (*job_)[0].abort(job_->now());
  EXPECT_FALSE(call->done);
  ASSERT_TRUE(job_->run_until([&] { return call->done.load(); }));
  guarded_[0].take_away();
  EXPECT_EQ(call->report.status, Status::aborted);
  const auto late = job_->submit(2, arguments(2));
  ASSERT_TRUE(job_->finish());
  EXPECT_EQ(late->report.status, Status::aborted);
  expect_next(1);
}

TEST_F(PiecesTest, abort_while_the_shard_is_settled_ends_the_call) {
  make_job(CodecRule::off, 3);
  const auto call = job_->submit(0, arguments(0));
  (void)job_->submit(1, arguments(1));
  ASSERT_TRUE(job_->run_until([&] { return job_->is_working(0); }));
  EXPECT_EQ(call->report.stages[0].closing, Closing::bound);
  EXPECT_EQ(call->report.stages[1].elapsed, Duration::zero()) << "the gather goes on";
  (*job_)[0].abort(job_->now());
  EXPECT_FALSE(call->done);
  ASSERT_TRUE(job_->run_until([&] { return call->done.load(); }));
  guarded_[0].take_away();
  EXPECT_EQ(call->report.status, Status::aborted);
}

/// The late rank has its result from the copy.
TEST_F(PiecesTest, the_copy_for_late_ranks_is_whole) {
  make_job(CodecRule::off, 3);
  std::vector<std::shared_ptr<PendingCall>> calls(3);
  for (const Rank rank : std::array<Rank, 2>{0, 2})
    calls[rank] = job_->submit(rank, arguments(rank));
  ASSERT_TRUE(job_->finish());
  EXPECT_LT((*job_)[0].learnt().uncoded_work.of(kBytes), WorkRate().of(kBytes)) << "known by now";
  calls[1] = job_->submit(1, arguments(1));
  ASSERT_TRUE(job_->finish());
  EXPECT_EQ(calls[1]->report.status, Status::late_self) << calls[1]->report.detail;
  const std::vector<ContributorRun>& runs = calls[1]->report.runs;
  for (const ContributorRun& run : runs) {
    for (std::uint64_t i = run.first; i < run.first + run.count; ++i) {
      const float sum = (value(0, i) + value(2, i)) * 3 / 2;
      ASSERT_EQ(guarded_[1].data()[i], run.contributors == 0 ? 0 : sum) << "element " << i;
    }
  }
  for (const Rank rank : std::array<Rank, 2>{0, 2}) {
    for (const ContributorRun& run : calls[rank]->report.runs) {
      if (run.contributors != 0) continue;
      EXPECT_TRUE(std::all_of(guarded_[rank].data() + run.first,
                              guarded_[rank].data() + run.first + run.count,
                              [](float x) { return x == 0; }));
    }
  }
}

TEST_F(PiecesTest, a_deadline_ends_the_call_while_it_is_encoded) {
  make_job();
  AllreduceArguments short_one = arguments(0);
  short_one.deadline = one_pass() / 4;
  short_one.bound = short_one.deadline;
  const auto call = job_->submit(0, short_one);
  ASSERT_TRUE(job_->finish());
  guarded_[0].take_away();
  EXPECT_EQ(call->report.status, Status::peer_late);
  EXPECT_EQ(call->report.stage, CallStage::queued);
  EXPECT_LT(call->report.elapsed, one_pass() / 2);
  EXPECT_THAT(call->report.late_ranks, ElementsAre());
  (void)job_->submit(1, arguments(1));
  ASSERT_TRUE(job_->finish());
  expect_next(1);
}

TEST_F(PiecesTest, exclusion_ends_the_call_while_it_is_encoded) {
  make_job();
  const auto call = job_->submit(0, arguments(0));
  run_until_encoding(0);
  (*job_)[0].learn(evicted(0), job_->now());
  EXPECT_FALSE(call->done);
  ASSERT_TRUE(job_->finish());
  guarded_[0].take_away();
  EXPECT_EQ(call->report.status, Status::evicted);
  EXPECT_EQ(call->report.first_missed, 0u);
  job_->run_for(10ms);
}

TEST_F(PiecesTest, a_broken_port_ends_the_call_while_it_is_encoded) {
  make_job();
  const auto call = job_->submit(0, arguments(0));
  run_until_encoding(0);
  port_->broken = true;
  ASSERT_TRUE(job_->finish());
  guarded_[0].take_away();
  EXPECT_EQ(call->report.status, Status::failed);
  job_->run_for(10ms);
}

TEST_F(PiecesTest, a_broken_port_leaves_the_result_that_is_decoded) {
  make_job();
  const auto calls = submit_all();
  run_until_decoding(0, *calls[0]);
  port_->broken = true;
  ASSERT_TRUE(job_->run_until([&] { return calls[0]->done.load(); }));
  EXPECT_EQ(calls[0]->report.status, Status::complete);
  expect_sum(0, 2e-2);
}

TEST_F(PiecesTest, refused_memory_for_the_bucket_ends_that_call_alone) {
  make_job();
  memory_.refuses = true;
  const auto calls = submit_all();
  ASSERT_TRUE(job_->finish());
  for (const auto& call : calls) {
    EXPECT_EQ(call->report.status, Status::aborted);
    EXPECT_EQ(call->report.abort_reason, AbortReason::memory);
    EXPECT_THAT(call->report.blamed, ElementsAre(0));
  }
  memory_.refuses = false;
  for (const auto& call : submit_all()) EXPECT_FALSE(call->done);
  ASSERT_TRUE(job_->finish());
  expect_sum(0, 2e-2);
  expect_next(2);
}

TEST_F(PiecesTest, a_bucket_is_given_up_where_the_epoch_turns_the_codec_off) {
  make_job(CodecRule::automatic);
  for (Rank rank = 0; rank < 2; ++rank) (*job_)[rank].coded_calls().decided({{64, true}, {}});
  const auto calls = submit_all();
  run_until_encoding(0);
  for (Rank rank = 0; rank < 2; ++rank) (*job_)[rank].coded_calls().decided({{128, false}, {}});
  ASSERT_TRUE(job_->finish());
  for (Rank rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(calls[rank]->report.status, Status::complete);
    EXPECT_EQ(calls[rank]->report.epoch, 128);
    EXPECT_FALSE(calls[rank]->report.coded);
    expect_sum(rank, 0);
  }
}

TEST_F(PiecesTest, a_bucket_holds_for_the_next_epoch_that_is_coded) {
  make_job(CodecRule::automatic);
  for (Rank rank = 0; rank < 2; ++rank) (*job_)[rank].coded_calls().decided({{64, true}, {}});
  const auto calls = submit_all();
  run_until_encoding(0);
  for (Rank rank = 0; rank < 2; ++rank) (*job_)[rank].coded_calls().decided({{128, true}, {}});
  ASSERT_TRUE(job_->finish());
  for (Rank rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(calls[rank]->report.epoch, 128);
    EXPECT_TRUE(calls[rank]->report.coded);
    expect_sum(rank, 2e-2);
  }
  EXPECT_EQ(memory_.large, 1) << "beside the first bucket";
}

TEST_F(PiecesTest, nonfinite_input_in_any_piece_makes_all_of_it_nan) {
  for (const std::uint64_t at : {std::uint64_t{0}, kCount / 2, kCount - 1}) {
    make_job();
    guarded_[1].data()[at] = std::numeric_limits<float>::infinity();
    const auto calls = submit_all();
    ASSERT_TRUE(job_->finish());
    for (Rank rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(calls[rank]->report.nonfinite);
      EXPECT_THAT(calls[rank]->report.nonfinite_ranks, ElementsAre(1));
      EXPECT_TRUE(std::all_of(guarded_[rank].data(), guarded_[rank].data() + kCount,
                              [](float x) { return std::isnan(x); }));
    }
  }
}

TEST_F(PiecesTest, buffers_are_made_and_touched_before_the_codec_is_on) {
  make_job(CodecRule::automatic);
  std::vector<std::vector<float>> others(2, std::vector<float>(kCount, 1.0f));
  const auto run_two = [&] {
    std::vector<std::shared_ptr<PendingCall>> calls = submit_all();
    for (Rank rank = 0; rank < 2; ++rank) {
      AllreduceArguments other = arguments(rank);
      other.input = other.output = others[rank].data();
      calls.push_back(job_->submit(rank, other));
    }
    EXPECT_TRUE(job_->finish());
    return calls;
  };
  run_two();
  const int before = memory_.large;
  for (Rank rank = 0; rank < 2; ++rank) (*job_)[rank].coded_calls().decided({{64, true}, {{0, 2}}});
  EXPECT_EQ(memory_.large, before + 2);
  EXPECT_TRUE((*job_)[0].pieces().any());
  job_->run_for(10ms);
  EXPECT_FALSE((*job_)[0].pieces().any());
  for (const auto& call : run_two()) EXPECT_TRUE(call->report.coded);
  EXPECT_EQ(memory_.large, before + 2);
}

TEST_F(PiecesTest, refused_memory_for_buffers_before_the_codec_is_on_is_no_error) {
  make_job(CodecRule::automatic);
  submit_all();
  ASSERT_TRUE(job_->finish());
  memory_.refuses = true;
  for (Rank rank = 0; rank < 2; ++rank) (*job_)[rank].coded_calls().decided({{64, true}, {{0, 1}}});
  job_->run_for(10ms);
  memory_.refuses = false;
  for (const auto& call : submit_all()) EXPECT_FALSE(call->done);
  ASSERT_TRUE(job_->finish());
}

}  // namespace
}  // namespace tarpon::testing_support::pieces_test
