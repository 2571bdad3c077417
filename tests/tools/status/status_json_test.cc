// Answers of status sockets, as ranks and as strangers give them.
#include "tools/status/status_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "collectives/flight/flight.h"

namespace tarpon::status_json_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

nlohmann::json whole_answer() {
  return nlohmann::json::parse(R"({"job":"0badcafe","rank":1,"world_size":3,"pid":77,
    "snapshot_age_ms":0.5,"outstanding":1,"open":1,
    "operations":[{"tag":4,"operation":9,"stage":"gather","age_ms":12.5,"waiting_for":[0,2],
                   "silent":[2],"deadline_in_ms":-3.5}],
    "last_end":{"tag":4,"operation":8,"status":"complete","named":[]},
    "peers":[{"rank":0,"last_heard_ms":1.5},{"rank":2,"last_heard_ms":null}],
    "counters":{"packets_in":5,"dropped":{"magic":2}},"events":6})");
}

TEST(StatusJson, parse__everything_and_back) {
  const auto reply = parse_status(whole_answer().dump());
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(reply->rank, 1u);
  ASSERT_EQ(reply->operations.size(), 1u);
  EXPECT_THAT(reply->operations[0].waiting_for, ElementsAre(0, 2));
  EXPECT_EQ(reply->operations[0].deadline_in_ms, -3.5);
  EXPECT_EQ(reply->peers[1].last_heard_ms, std::nullopt);
  EXPECT_EQ(to_json(*reply), whole_answer());
}

TEST(StatusJson, parse__what_a_rank_says) {
  Recorder recorder;
  FlightSnapshot snapshot;
  snapshot.endpoint.open = 1;
  const std::string line =
      status_line({.public_id = 0x1234, .rank = 2, .world_size = 64, .slot_bytes = 1408}, snapshot,
                  recorder, Time(5s));
  const auto reply = parse_status(line);
  ASSERT_TRUE(reply) << reply.error().message << line;
  EXPECT_EQ(reply->job, "00001234");
  EXPECT_EQ(reply->peers.size(), 63u);
  EXPECT_EQ(to_json(*reply), nlohmann::json::parse(line));
}

TEST(StatusJson, parse__deep_nesting_is_refused_before_the_parser_recurses) {
  for (const std::string& text :
       {std::string(60'000, '['), "{\"a\":" + std::string(20, '[') + std::string(20, ']') + "}"}) {
    const auto reply = parse_status(text);
    ASSERT_FALSE(reply);
    EXPECT_THAT(reply.error().message, HasSubstr("no JSON of at most 8 levels"));
  }
  const auto huge = parse_status(std::string(500'000, '['));
  ASSERT_FALSE(huge);
  EXPECT_THAT(huge.error().message, HasSubstr("longer than 65536 bytes"));
  EXPECT_FALSE(parse_status("\"" + std::string(100, '[') + "\"")) << "brackets in a string";
}

TEST(StatusJson, parse__strings_become_printable_and_short) {
  nlohmann::json json = whole_answer();
  json["job"] = "\x1b[2J\n\xc2\x9b";
  json["operations"][0]["stage"] = std::string(1000, 'x');
  json["counters"]["\x1b]0;title\x07"] = 1;
  const auto reply = parse_status(json.dump());
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(reply->job, "?[2J???");
  EXPECT_EQ(reply->operations[0].stage.size(), 80u);
  EXPECT_THAT(to_json(*reply).dump(), Not(HasSubstr("u001b")));
}

TEST(StatusJson, parse__wrong_fields_are_refused) {
  const auto refused = [](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json json = whole_answer();
    change(json);
    return !parse_status(json.dump());
  };
  EXPECT_TRUE(refused([](auto& json) { json.erase("peers"); }));
  EXPECT_TRUE(refused([](auto& json) { json["rank"] = 64; }));
  EXPECT_TRUE(refused([](auto& json) { json["rank"] = "1"; }));
  EXPECT_TRUE(refused([](auto& json) { json["pid"] = -1; }));
  EXPECT_TRUE(refused([](auto& json) { json["outstanding"] = 1ull << 40; }));
  EXPECT_TRUE(refused([](auto& json) { json["operations"] = nullptr; }));
  EXPECT_TRUE(refused([](auto& json) { json["operations"][0] = 5; }));
  EXPECT_TRUE(refused([](auto& json) { json["operations"][0]["age_ms"] = 1e300; }));
  EXPECT_TRUE(refused([](auto& json) { json["peers"] = std::vector<int>(100); }));
  EXPECT_TRUE(refused([](auto& json) { json["counters"]["dropped"] = 5; }));
  EXPECT_TRUE(refused([](auto& json) { json = nlohmann::json::array(); }));
  for (const char* text : {"", "x", "{", "null", "\xff", "{\"job\":1}"}) {
    EXPECT_FALSE(parse_status(text)) << text;
  }
}

// Every cut of a good answer is refused, and nothing worse.
TEST(StatusJson, parse__cut_answers) {
  const std::string text = whole_answer().dump();
  for (std::size_t bytes = 0; bytes < text.size(); ++bytes) {
    EXPECT_FALSE(parse_status(std::string_view(text).substr(0, bytes))) << bytes;
  }
}

}  // namespace
}  // namespace tarpon::status_json_test
