// Runs of `tarpon allreduce` and other collectives on local ranks, and what a good one says.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/child_program.h"

namespace tarpon::test {

/// `tarpon COLLECTIVE --local-ranks P`, with `more` behind.
inline Command local_of(const char* collective, int ranks, const std::vector<std::string>& more) {
  Command command = tool({collective, "--local-ranks", std::to_string(ranks)});
  command.arguments.insert(command.arguments.end(), more.begin(), more.end());
  return command;
}

/// `tarpon allreduce --local-ranks P`, with `more` behind.
inline Command local(int ranks, const std::vector<std::string>& more) {
  return local_of("allreduce", ranks, more);
}

inline nlohmann::json json_of(const std::string& path) {
  return nlohmann::json::parse(content_of(path), nullptr, false);
}

inline std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

inline void expect_good(const Ended& ended) {
  EXPECT_EQ(ended.exit_code, 0) << ended.out << ended.error;
  EXPECT_EQ(ended.error, "");
  EXPECT_EQ(count(ended.out, "# Out of bounds values : 0 OK\n"), 1u) << ended.out;
  EXPECT_EQ(count(ended.out, "# Avg bus bandwidth    : "), 1u) << ended.out;
}

}  // namespace tarpon::test
