// The variables of the shim.
#include "collectives/gloo/settings.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace tarpon::gloo_shim {
namespace {

using Variables = std::map<std::string, std::string>;

Environment environment_of(Variables variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

std::variant<Settings, std::string> read(const Variables& variables) {
  return read_settings(environment_of(variables));
}

std::string refusal(const std::string& name, const std::string& value) {
  const auto found = read({{name, value}});
  const auto* const text = std::get_if<std::string>(&found);
  return text == nullptr ? "" : *text;
}

TEST(GlooSettings, none__exact) {
  const auto found = std::get<Settings>(read({}));
  EXPECT_FALSE(found.bounded);
  EXPECT_EQ(found.bounded_min, 1u << 20);
  EXPECT_EQ(found.bound_us, 0);
  EXPECT_EQ(found.deadline_us, 10'000'000);
  EXPECT_FALSE(found.told);
}

TEST(GlooSettings, all_of_them) {
  const auto found = std::get<Settings>(read({{"TARPON_MODE", "bounded"},
                                              {"TARPON_BOUNDED_MIN", "64K"},
                                              {"TARPON_BOUND", "2.5ms"},
                                              {"TARPON_DEADLINE", "3s"},
                                              {"TARPON_DEBUG", "INFO"}}));
  EXPECT_TRUE(found.bounded);
  EXPECT_EQ(found.bounded_min, 64u << 10);
  EXPECT_EQ(found.bound_us, 2500);
  EXPECT_EQ(found.deadline_us, 3'000'000);
  EXPECT_TRUE(found.told);
}

TEST(GlooSettings, required__by_the_variable_or_by_a_secret) {
  const auto required = [](Variables variables) {
    return requires_tarpon(environment_of(std::move(variables)));
  };
  EXPECT_FALSE(required({}));
  EXPECT_TRUE(required({{"TARPON_REQUIRE", "1"}}));
  EXPECT_FALSE(required({{"TARPON_REQUIRE", "0"}}));
  EXPECT_TRUE(required({{"TARPON_SECRET_FILE", "/run/secret"}}));
  EXPECT_TRUE(required({{"TARPON_SECRET_FD", "7"}}));
  EXPECT_TRUE(required({{"TARPON_SECRET_FROM_STORE", "1"}}));
  EXPECT_TRUE(required({{"TARPON_INTEGRITY", "sealed"}}));
  EXPECT_FALSE(required({{"TARPON_INTEGRITY", "crc32c"}}));
  EXPECT_TRUE(required({{"TARPON_SECRET_FD", "7"}, {"TARPON_REQUIRE", "yes"}}));
  EXPECT_FALSE(required({{"TARPON_SECRET_FILE", "/run/secret"}, {"TARPON_REQUIRE", "0"}}));
}

TEST(GlooSettings, nonsense__names_the_variable_its_value_and_the_remedy) {
  EXPECT_EQ(refusal("TARPON_MODE", "fast"), "TARPON_MODE=fast: use exact or bounded");
  EXPECT_EQ(refusal("TARPON_BOUNDED_MIN", "big"),
            "TARPON_BOUNDED_MIN=big: not a size; write for example 1M");
  EXPECT_EQ(refusal("TARPON_BOUNDED_MIN", "-1"),
            "TARPON_BOUNDED_MIN=-1: not a size; write for example 1M");
  EXPECT_EQ(refusal("TARPON_BOUNDED_MIN", "1e30G"),
            "TARPON_BOUNDED_MIN=1e30G: not a size; write for example 1M");
  EXPECT_EQ(refusal("TARPON_BOUND", "50"),
            "TARPON_BOUND=50: not a duration above 0; write for example 50ms or 10s");
  EXPECT_EQ(refusal("TARPON_BOUND", "0s"),
            "TARPON_BOUND=0s: not a duration above 0; write for example 50ms or 10s");
  EXPECT_EQ(
      refusal("TARPON_DEADLINE", "99999999999999s"),
      "TARPON_DEADLINE=99999999999999s: not a duration above 0; write for example 50ms or 10s");
  EXPECT_EQ(refusal("TARPON_REQUIRE", "yes"), "TARPON_REQUIRE=yes: use 1, or 0");
}

}  // namespace
}  // namespace tarpon::gloo_shim
