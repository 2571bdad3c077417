// `tarpon allreduce --input --output`: real arrays through the tool, compared with sums made here.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/support/child_program.h"
#include "tools/collective/npy.h"
#include "transport/random.h"

namespace tarpon::test::cli_files_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kRanks = 3;

template <typename T>
constexpr NpyType kType = sizeof(T) == 4 ? NpyType::float32 : NpyType::float64;

template <typename T>
std::vector<T> gradients(int rank, std::size_t count) {
  Random random(static_cast<std::uint64_t>(rank) + 17);
  std::vector<T> values(count);
  for (T& value : values) {
    value = static_cast<T>(static_cast<double>(random.next() >> 11) * 0x1p-53 * 2 - 1);
  }
  return values;
}

template <typename T>
void save(const std::string& path, const std::vector<std::size_t>& shape,
          const std::vector<T>& values) {
  auto file = write_npy(path, kType<T>, shape, std::as_bytes(std::span(values)));
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_TRUE(file->commit());
}

Command job(const ScratchDirectory& scratch, std::vector<std::string> more) {
  more.insert(more.begin(), {"allreduce", "--local-ranks", std::to_string(kRanks), "--input",
                             scratch / "in{rank}.npy", "--output", scratch / "out{rank}.npy"});
  return tool(std::move(more));
}

/// Each rank's result against the sum over `ranks` in double precision, divided by `divisor`.
template <typename T>
void expect_reduced(const ScratchDirectory& scratch, const std::vector<std::size_t>& shape,
                    std::size_t count, double divisor) {
  std::string first;
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto result = read_npy(scratch / fmt::format("out{}.npy", rank));
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_EQ(result->type, kType<T>);
    EXPECT_EQ(result->shape, shape);
    ASSERT_EQ(result->elements(), count);
    std::vector<double> expected(count);
    for (int from = 0; from < kRanks; ++from) {
      const auto values = gradients<T>(from, count);
      for (std::size_t i = 0; i < count; ++i) expected[i] += static_cast<double>(values[i]);
    }
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) {
      T got;
      std::memcpy(&got, result->data.data() + i * sizeof(T), sizeof got);
      const double difference = std::abs(static_cast<double>(got) - expected[i] / divisor);
      if (!(difference <= 4 * kRanks * std::numeric_limits<T>::epsilon())) ++wrong;
    }
    EXPECT_EQ(wrong, 0u) << "rank " << rank;
    const std::string bytes = content_of(scratch / fmt::format("out{}.npy", rank));
    if (rank == 0) first = bytes;
    EXPECT_EQ(bytes, first) << "rank " << rank;
  }
}

template <typename T>
void reduce_and_compare(const char* op, double divisor) {
  const ScratchDirectory scratch;
  const std::vector<std::size_t> shape{7, 1433};
  const std::size_t count = 7 * 1433;
  for (int rank = 0; rank < kRanks; ++rank) {
    save(scratch / fmt::format("in{}.npy", rank), shape, gradients<T>(rank, count));
  }
  const Ended ended = run(job(scratch, {"--op", op}));
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_EQ(ended.error, "");
  EXPECT_THAT(ended.out, HasSubstr("# lost                 : nothing\n"));
  EXPECT_THAT(ended.out, HasSubstr("the same bits on all ranks; 0 of 10031 values wrong"));
  EXPECT_THAT(ended.out, HasSubstr("# Out of bounds values : 0 OK\n"));
  expect_reduced<T>(scratch, shape, count, divisor);
  EXPECT_THAT(scratch.names(),
              ElementsAre("in0.npy", "in1.npy", "in2.npy", "out0.npy", "out1.npy", "out2.npy"));
}

TEST(CliFiles, float32__sum) {
  reduce_and_compare<float>("sum", 1);
}
TEST(CliFiles, float32__avg) {
  reduce_and_compare<float>("avg", kRanks);
}
TEST(CliFiles, float64__avg) {
  reduce_and_compare<double>("avg", kRanks);
}

TEST(CliFiles, repeated_calls_and_faults__the_same_result) {
  const ScratchDirectory scratch;
  const std::vector<std::size_t> shape{50000};
  for (int rank = 0; rank < kRanks; ++rank) {
    save(scratch / fmt::format("in{}.npy", rank), shape, gradients<float>(rank, shape[0]));
  }
  const Ended ended = run(job(
      scratch, {"-n", "5", "-w", "1", "--inject-loss", "3%", "--json", scratch / "report.json"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_THAT(ended.out, HasSubstr("# lost                 : nothing\n"));
  expect_reduced<float>(scratch, shape, shape[0], 1);
  EXPECT_THAT(content_of(scratch / "report.json"), HasSubstr("\"place\": \"in\""));
}

/// The result of call number `before`, as bytes of its file.
std::string result_after(int before, const ScratchDirectory& scratch,
                         const std::vector<std::string>& more,
                         const std::map<std::string, std::string>& environment = {}) {
  Command command = job(scratch, {"-n", "1", "-w", std::to_string(before), "--algorithm", "tar"});
  command.arguments.insert(command.arguments.end(), more.begin(), more.end());
  command.environment = environment;
  const Ended ended = run(command);
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  return content_of(scratch / "out0.npy");
}

TEST(CliFiles, order_fixed__the_same_bits_in_a_later_call_and_another_run) {
  const ScratchDirectory scratch;
  for (int rank = 0; rank < kRanks; ++rank) {
    save(scratch / fmt::format("in{}.npy", rank), {20'003}, gradients<float>(rank, 20'003));
  }
  const std::string first = result_after(0, scratch, {"--order", "fixed"});
  EXPECT_EQ(result_after(1, scratch, {"--order", "fixed"}), first);
  EXPECT_EQ(result_after(2, scratch, {}, {{"TARPON_ORDER", "fixed"}}), first);
  const std::string rotated = result_after(1, scratch, {});
  EXPECT_NE(rotated, result_after(0, scratch, {}));
  const std::vector<std::string> rotating{"--order", "rotating"};
  EXPECT_EQ(result_after(1, scratch, rotating, {{"TARPON_ORDER", "fixed"}}), rotated);
}

TEST(CliFiles, bounded__says_what_was_lost) {
  const ScratchDirectory scratch;
  const std::vector<std::size_t> shape{200000};
  for (int rank = 0; rank < kRanks; ++rank) {
    save(scratch / fmt::format("in{}.npy", rank), shape, gradients<float>(rank, shape[0]));
  }
  const Ended ended =
      run(job(scratch, {"--mode", "bounded", "--bound", "50ms", "--inject-loss", "20%", "--op",
                        "avg", "--without", "repair", "--without", "scatter-repair"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_THAT(ended.out, ::testing::ContainsRegex("# lost  +: [0-9.]+ % of the contributions"));
  EXPECT_THAT(ended.out, HasSubstr(" 0 of 200000 values wrong"));
}

TEST(CliFiles, interrupt__leaves_the_figures_so_far) {
  const ScratchDirectory scratch;
  for (int rank = 0; rank < kRanks; ++rank) {
    save(scratch / fmt::format("in{}.npy", rank), {100}, gradients<float>(rank, 100));
  }
  // Nothing tells when the calls have begun: longer and longer, until one has ended.
  for (useconds_t wait_us = 200'000; wait_us < 20'000'000; wait_us *= 2) {
    Process running(job(scratch, {"-n", "20000000", "-J", scratch / "j"}));
    ::usleep(wait_us);
    ::kill(running.pid(), SIGINT);
    const Ended ended = running.wait();
    EXPECT_EQ(ended.exit_code, 128 + SIGINT) << ended.error;
    const auto report = nlohmann::json::parse(content_of(scratch / "j"), nullptr, false);
    if (!report.is_object() || report["partial"].is_null()) continue;
    EXPECT_THAT(ended.out, ::testing::ContainsRegex("# interrupted          : 400 B in-place: "
                                                    "[0-9]+ of 20000000 iterations, mean "));
    EXPECT_EQ(report["interrupted"], true);
    EXPECT_EQ(report["partial"]["size"], 400);
    EXPECT_EQ(report["partial"]["place"], "in");
    EXPECT_GT(report["partial"]["time_us"].size(), 0u);
    return;
  }
  FAIL() << "no call ended before the signal";
}

TEST(CliFiles, empty_and_single__pass) {
  const ScratchDirectory scratch;
  for (int rank = 0; rank < kRanks; ++rank) {
    save(scratch / fmt::format("in{}.npy", rank), {0}, std::vector<float>{});
  }
  const Ended none = run(job(scratch, {}));
  EXPECT_EQ(none.exit_code, 0) << none.error;
  const auto result = read_npy(scratch / "out2.npy");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->elements(), 0u);

  save(scratch / "alone.npy", {}, std::vector<double>{2.5});
  const Ended one = run(tool({"allreduce", "--local-ranks", "1", "--input", scratch / "alone.npy",
                              "--output", scratch / "alone-out.npy"}));
  EXPECT_EQ(one.exit_code, 0) << one.error;
  EXPECT_EQ(content_of(scratch / "alone-out.npy"), content_of(scratch / "alone.npy"));
}

TEST(CliFiles, not_finite__passes_through) {
  const ScratchDirectory scratch;
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  save<float>(scratch / "in0.npy", {5}, {nan, inf, 3e38f, 1, nan});
  save<float>(scratch / "in1.npy", {5}, {1, -inf, 3e38f, 2, nan});
  save<float>(scratch / "in2.npy", {5}, {2, 1, 3e38f, inf, nan});
  for (const char* op : {"sum", "avg", "min", "max", "prod"}) {
    const Ended ended = run(job(scratch, {"--op", op}));
    EXPECT_EQ(ended.exit_code, 0) << op << ended.out << ended.error;
    EXPECT_THAT(ended.out, HasSubstr(" 0 of 5 values wrong")) << op;
  }
}

TEST(CliFiles, other_inputs_in_rank_0s_place__unchecked) {
  const ScratchDirectory scratch;
  for (const char* host : {"a", "b"}) std::filesystem::create_directory(scratch / host);
  save<float>(scratch / "a/in0.npy", {4}, {1, 2, 3, 4});
  save<float>(scratch / "b/in1.npy", {4}, {1, 2, 3, 4});
  for (const std::vector<float>& other : {std::vector<float>{9}, std::vector<float>{1, 2, 3, 5}}) {
    save<float>(scratch / "a/in1.npy", {other.size()}, other);
    auto ranks = ranks_by_hand(2, free_meeting_point(),
                               {"--input", "in{rank}.npy", "--output", "out{rank}.npy"});
    ranks[0].directory = scratch / "a";
    ranks[1].directory = scratch / "b";
    const auto ended = run_together(ranks);
    for (const Ended& one : ended) EXPECT_EQ(one.exit_code, 0) << one.error;
    EXPECT_THAT(ended[0].out, HasSubstr("the same bits on all ranks; rank 0 cannot read the "
                                        "others' inputs: sums unchecked"));
    EXPECT_EQ(content_of(scratch / "a/out0.npy"), content_of(scratch / "b/out1.npy"));
  }
}

TEST(CliFiles, wrong_result__fails_on_all_ranks_and_is_not_written) {
  const ScratchDirectory scratch;
  for (int rank = 0; rank < 2; ++rank) {
    save(scratch / fmt::format("in{}.npy", rank), {200000}, gradients<float>(rank, 200000));
  }
  const auto ended = run_together(ranks_by_hand(
      2, free_meeting_point(),
      {"--input", scratch / "in{rank}.npy", "--output", scratch / "out{rank}.npy", "--mode",
       "bounded", "--bound", "50ms", "--integrity", "none", "--inject-corrupt", "20%"}));
  for (const Ended& one : ended) {
    EXPECT_EQ(one.exit_code, 1);
    EXPECT_EQ(one.error, "") << "nobody has left";
  }
  EXPECT_THAT(ended[0].out, HasSubstr("written              : nothing, because values are wrong"));
  EXPECT_THAT(scratch.names(), ElementsAre("in0.npy", "in1.npy"));
}

TEST(CliFiles, one_output_not_writable__nothing_appears) {
  const ScratchDirectory scratch;
  for (int rank = 0; rank < kRanks; ++rank) {
    save(scratch / fmt::format("in{}.npy", rank), {8}, gradients<float>(rank, 8));
  }
  std::filesystem::create_directory(scratch / "out1.npy");
  const Ended ended = run(job(scratch, {}));
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.error, HasSubstr("rank 1: "));
  EXPECT_THAT(ended.error, HasSubstr("out1.npy: is not a regular file"));
  EXPECT_THAT(scratch.names(), ElementsAre("in0.npy", "in1.npy", "in2.npy", "out1.npy"));
}

TEST(CliFiles, failed_job__leaves_earlier_results_alone) {
  const ScratchDirectory scratch;
  for (int rank = 0; rank < kRanks; ++rank) {
    save(scratch / fmt::format("in{}.npy", rank), {8}, gradients<float>(rank, 8));
    save(scratch / fmt::format("out{}.npy", rank), {1}, std::vector<float>{1});
  }
  const std::string before = content_of(scratch / "out1.npy");
  std::filesystem::resize_file(scratch / "in2.npy",
                               std::filesystem::file_size(scratch / "in2.npy") - 4);
  const Ended ended = run(job(scratch, {}));
  EXPECT_NE(ended.exit_code, 0);
  EXPECT_THAT(ended.error, HasSubstr("in2.npy: truncated"));
  for (const char* name : {"out0.npy", "out1.npy", "out2.npy"}) {
    EXPECT_EQ(content_of(scratch / name), before);
  }
}

TEST(CliFiles, disk_full__no_part_of_a_file) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting a small file system needs root";
  const ScratchDirectory scratch;
  for (int rank = 0; rank < kRanks; ++rank) {
    save(scratch / fmt::format("in{}.npy", rank), {65536}, gradients<float>(rank, 65536));
  }
  std::filesystem::create_directory(scratch / "small");
  const Command command{
      {"unshare", "--mount", "sh", "-c",
       "mount -t tmpfs -o size=64k none small || exit 99\n" TARPON_TOOL
       " allreduce --local-ranks 3 --input 'in{rank}.npy' --output 'small/out{rank}.npy'\n"
       "code=$?; ls -A small; exit $code"},
      {},
      scratch.path()};
  const Ended ended = run(command);
  if (ended.exit_code == 99) GTEST_SKIP() << "no mount here: " << ended.error;
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_EQ(ended.out, "") << "nothing stays in the directory";
  EXPECT_THAT(ended.error, HasSubstr("small/out"));
  EXPECT_THAT(ended.error, HasSubstr("No space left on device"));
  EXPECT_EQ(lines_of(ended.error).size(), 1u) << ended.error;
}

}  // namespace
}  // namespace tarpon::test::cli_files_test
