// What --help says of each command, held to the folder's page.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "tests/tools/command.h"

namespace tarpon::test {
namespace {

/// "--mtu", ...: what the lines of a help text begin with.
std::set<std::string> options_of(const std::vector<std::string>& command) {
  std::vector<std::string> words = command;
  words.push_back("--help");
  const Ended ended = run(tool(words));
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  std::set<std::string> options;
  const std::regex option("^  (?:-\\w,)?(--[a-z_-]+).*");
  for (const std::string& line : lines_of(ended.out)) {
    std::smatch found;
    if (std::regex_match(line, found, option)) options.insert(found[1]);
  }
  options.erase("--help");
  options.erase("--version");
  return options;
}

TEST(CliHelp, options__are_all_on_the_page) {
  const std::string page = content_of(TARPON_TOOLS_PAGE);
  const std::vector<std::vector<std::string>> commands = {
      {"allreduce"},     {"check"},         {"doctor"},      {"flight"},
      {"sim"},           {"status"},        {"testbed"},     {"xdp", "load"},
      {"xdp", "status"}, {"xdp", "unload"}, {"xdp", "clean"}};
  std::set<std::string> known;
  for (const auto& command : commands) {
    for (const std::string& option : options_of(command)) {
      EXPECT_NE(page.find('`' + option), std::string::npos) << command[0] << ' ' << option;
      known.insert(option);
    }
  }
  EXPECT_GT(known.size(), 60u) << "not all were found in the help texts";
  // And the other way round: none is left that has gone.
  const std::regex named("`(--[a-z_-]+)");
  const auto section =
      page.substr(page.find("## Options"), page.find("## What") - page.find("## Options"));
  for (std::sregex_iterator at(section.begin(), section.end(), named), end; at != end; ++at) {
    EXPECT_TRUE(known.contains((*at)[1])) << (*at)[1];
  }
}

TEST(CliHelp, scale__options_are_on_its_page) {
  const std::string page = content_of(TARPON_SCALE_PAGE);
  for (const std::string& option : options_of({"sim", "scale"})) {
    EXPECT_NE(page.find(option), std::string::npos) << option;
  }
}

}  // namespace
}  // namespace tarpon::test
