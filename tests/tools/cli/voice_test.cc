#include "tools/cli/voice.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace tarpon::voice_test {
namespace {

TEST(Voice, first_named_rank__of_texts_that_all_ranks_know) {
  EXPECT_EQ(first_named_rank("rank 2: no memory"), 2);
  EXPECT_EQ(first_named_rank("ranks 0, 3: no memory"), 0);
  EXPECT_EQ(first_named_rank("ranks 1-4, 7: no memory"), 1);
  EXPECT_EQ(first_named_rank("ranks 1, 3, 5 and 9 more: no memory"), 1);
}

TEST(Voice, first_named_rank__none_of_texts_that_only_speak_of_ranks) {
  for (const char* text :
       {"", "rank", "rank 2", "rank 2 has left: shrink", "ranks 1, 2 did not come: start them",
        "ranks 1, 3, 5 and 9 more did not take the message: closed", "tarpon: rank 2: no"}) {
    EXPECT_EQ(first_named_rank(text), std::nullopt) << text;
  }
}

/// What `voice` prints.
std::string said(const Voice& voice, const char* message) {
  ::testing::internal::CaptureStderr();
  voice.error(message);
  return ::testing::internal::GetCapturedStderr();
}

TEST(Voice, of_launcher__writes_its_rank) {
  std::map<std::string, std::string> variables;
  const Environment environment = [&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  EXPECT_EQ(said(Voice::of_launcher(environment), "no"), "tarpon: no\n");
  variables = {{"RANK", "2"}, {"WORLD_SIZE", "4"}};
  EXPECT_EQ(said(Voice::of_launcher(environment), "no"), "rank 2: no\n");
  EXPECT_EQ(said(Voice::of_launcher(environment), "rank 1: no"), "");
  EXPECT_EQ(said(Voice::of_launcher(environment), "rank 2: no"), "rank 2: no\n");
  variables["WORLD_SIZE"] = "wrong";
  EXPECT_EQ(said(Voice::of_launcher(environment), "no"), "tarpon: no\n");
}

}  // namespace
}  // namespace tarpon::voice_test
