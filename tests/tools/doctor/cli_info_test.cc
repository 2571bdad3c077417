// `tarpon info` from outside: one screen, and the same facts as JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "collectives/version.h"
#include "tests/support/child_program.h"

namespace tarpon::test::cli_info_test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

nlohmann::json info_of(const Command& command) {
  const Ended ended = run(command);
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_EQ(ended.error, "");
  return nlohmann::json::parse(ended.out);
}

TEST(CliInfo, text__is_one_screen) {
  const Ended ended = run(tool({"info"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  const auto lines = lines_of(ended.out);
  EXPECT_LE(lines.size(), 50u) << ended.out;
  EXPECT_GE(lines.size(), 25u) << ended.out;
  for (const std::string& line : lines) EXPECT_LE(line.size(), 100u) << line;
  for (const char* part :
       {kVersion, "wire version 2", "liburing", "fmt ", "reduction kernels", "codec kernels",
        "io_uring", "AF_XDP", "mmsg", "65536", "/sys/fs/bpf", "@tarpon.", "TARPON_DATAPATH"}) {
    EXPECT_THAT(ended.out, HasSubstr(part));
  }
}

TEST(CliInfo, json__has_the_same_sections) {
  const nlohmann::json info = info_of(tool({"info", "--json"}));
  EXPECT_THAT(info["config"]["command"].get<std::string>(), EndsWith("tarpon info --json"));
  EXPECT_EQ(info["config"]["version"], kVersion);
  const nlohmann::json& results = info["results"];
  for (const char* section :
       {"version", "processor", "datapaths", "limits", "paths", "environment"}) {
    EXPECT_TRUE(results[section].is_object()) << section;
  }
  for (const auto& [library, version] : results["version"]["libraries"].items()) {
    EXPECT_NE(version, "") << library;
  }
  EXPECT_NE(results["version"]["compiler"], "");
  EXPECT_EQ(results["limits"]["ranks"], 4096);
  EXPECT_EQ(results["limits"]["remembered_tags"], 65536);
  EXPECT_EQ(results["limits"]["retain_bytes"], 64 << 20);
  const nlohmann::json& kernels = results["processor"]["reduction"];
  EXPECT_EQ(kernels["used"], kernels["runnable"].back());
}

TEST(CliInfo, datapaths__as_doctor_has_them) {
  const nlohmann::json results = info_of(tool({"info", "--json"}))["results"]["datapaths"];
  const std::string interface = results["interface"];
  const nlohmann::json doctor =
      nlohmann::json::parse(run(tool({"doctor", "--json", interface})).out).at("results").at(0);
  ASSERT_EQ(doctor["rungs"].size(), 4u);
  for (const nlohmann::json& rung : doctor["rungs"]) {
    const nlohmann::json& row = results[rung["id"].get<std::string>()];
    EXPECT_EQ(row["usable"], rung["verdict"] == "yes") << rung;
    EXPECT_EQ(row["why"], rung["why"]);
    EXPECT_EQ(row["command"], rung["command"]);
    EXPECT_TRUE(row["usable"] == true || row["why"] != "") << rung;
  }
}

TEST(CliInfo, environment__shows_what_is_set) {
  Command command = tool({"info", "--json"});
  command.environment = {{"TARPON_DATAPATH", "mmsg"},
                         {"RANK", "1"},
                         {"WORLD_SIZE", "4"},
                         {"MASTER_ADDR", "10.0.0.1"},
                         {"MASTER_PORT", "29500"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"TARPON_FLIGHT", "/tmp/f\x1b[31m"}};
  const nlohmann::json results = info_of(command)["results"];
  EXPECT_EQ(results["environment"]["variables"]["TARPON_DATAPATH"], "mmsg");
  EXPECT_TRUE(results["environment"]["variables"]["TARPON_PORT"].is_null());
  EXPECT_EQ(results["environment"]["place"]["rank"], 1);
  EXPECT_EQ(results["environment"]["place"]["by"], "torchrun");
  command.arguments.pop_back();
  const std::string text = run(command).out;
  EXPECT_THAT(text, HasSubstr("rank 1 of 4, by torchrun"));
  EXPECT_EQ(text.find('\x1b'), std::string::npos) << "a variable's bytes reach the terminal";
}

}  // namespace
}  // namespace tarpon::test::cli_info_test
