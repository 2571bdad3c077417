// Jobs with a secret, from outside.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/child_program.h"

namespace tarpon::test::cli_secret_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string secret_file(const ScratchDirectory& scratch, const std::string& name) {
  const std::string path = scratch / name;
  std::ofstream(path) << std::string(64, name[0]) << "\n";
  EXPECT_EQ(chmod(path.c_str(), 0600), 0);
  return path;
}

const std::vector<std::string> kSmall{"-b", "64K", "-e", "64K", "-n", "2", "-w", "0"};

std::vector<std::string> with(std::vector<std::string> words) {
  words.insert(words.end(), kSmall.begin(), kSmall.end());
  return words;
}

TEST(CliSecret, local_ranks__make_one__and_the_report_says_what_it_does) {
  const ScratchDirectory scratch;
  for (const auto& [integrity, line] :
       {std::pair("keyed", "# secret: connections are TLS 1.3, packets carry tags"),
        std::pair("sealed", "# secret: connections are TLS 1.3, packets are encrypted")}) {
    const std::string json = scratch / integrity;
    const Ended ended = run(tool(with({"allreduce", "--local-ranks", "3", "--hosts", "off",
                                       "--integrity", integrity, "--json", json})));
    EXPECT_EQ(ended.exit_code, 0) << ended.error;
    EXPECT_THAT(ended.out, AllOf(HasSubstr(line), HasSubstr("Out of bounds values : 0 OK")));
    std::ifstream file(json);
    EXPECT_EQ(nlohmann::json::parse(file)["config"]["integrity"], integrity);
  }
  Command variable = tool(with({"allreduce", "--local-ranks", "2"}));
  variable.environment["TARPON_INTEGRITY"] = "sealed";
  EXPECT_THAT(run(variable).out, HasSubstr("packets are encrypted"));
  const Ended plain = run(tool(with({"allreduce", "--local-ranks", "2"})));
  EXPECT_THAT(plain.out, Not(HasSubstr("# secret")));
}

TEST(CliSecret, ranks_by_hand__one_secret__by_file_and_by_variable) {
  const ScratchDirectory scratch;
  const std::string file = secret_file(scratch, "a");
  auto commands = ranks_by_hand(2, "file://" + scratch / "meet", kSmall);
  commands[0].arguments.insert(commands[0].arguments.end(), {"--secret-file", file});
  commands[1].environment["TARPON_SECRET_FILE"] = file;
  for (const Ended& ended : run_together(commands)) {
    EXPECT_EQ(ended.exit_code, 0) << ended.error;
  }
}

TEST(CliSecret, ranks_that_differ__one_line_each__names_the_remedy) {
  const ScratchDirectory scratch;
  const std::string a = secret_file(scratch, "a"), b = secret_file(scratch, "b");
  for (const auto& [first, second] : {std::pair(a, b), std::pair(a, std::string())}) {
    auto commands = ranks_by_hand(2, "file://" + scratch / "meet", kSmall);
    for (auto& command : commands) {
      command.arguments.insert(command.arguments.end(), {"--rendezvous-timeout", "2s"});
    }
    commands[0].arguments.insert(commands[0].arguments.end(), {"--secret-file", first});
    if (!second.empty()) {
      commands[1].arguments.insert(commands[1].arguments.end(), {"--secret-file", second});
    }
    const auto ended = run_together(commands);
    EXPECT_NE(ended[0].exit_code, 0);
    EXPECT_THAT(ended[0].error, HasSubstr(second.empty() ? "a process has no secret"
                                                         : "a process has another secret"));
    EXPECT_NE(ended[1].exit_code, 0);
    EXPECT_THAT(ended[1].error, HasSubstr("give all ranks the same --secret-file"));
  }
}

TEST(CliSecret, what_would_run_without_protection__is_refused) {
  const ScratchDirectory scratch;
  const Ended unnamed = run(tool(with({"allreduce", "--local-ranks", "2", "--secret-file", ""})));
  EXPECT_EQ(unnamed.exit_code, 2) << unnamed.out;
  EXPECT_THAT(unnamed.error, HasSubstr("the name of the secret file is empty"));
  for (const char* integrity : {"udp", "crc32c", "none"}) {
    const Ended ended = run(tool(with({"allreduce", "--local-ranks", "2", "--secret-file",
                                       secret_file(scratch, "a"), "--integrity", integrity})));
    EXPECT_EQ(ended.exit_code, 2) << ended.out;
    EXPECT_THAT(ended.error, HasSubstr(std::string("--integrity ") + integrity +
                                       ": a job with a secret has keyed or sealed packets"));
  }
}

}  // namespace
}  // namespace tarpon::test::cli_secret_test
