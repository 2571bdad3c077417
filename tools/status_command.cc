#include "tools/status_command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "collectives/allreduce.h"
#include "tools/rank_sockets.h"

namespace tarpon {
namespace {

constexpr Duration kPatience = 1s;

constexpr const char* kHelp =
    R"(Ranks of this user; as root those of every user, in all network namespaces. AGE is how long the oldest
operation has been open; WAITING FOR names the ranks whose data it lacks, with * those of which nothing
has come in it; HEARD is how long ago the quietest of them was heard at all.)";

/// The answer of a rank as JSON; what it is not able to say itself is said for it.
nlohmann::json parsed(const RankAnswer& answer) {
  std::string error = answer.error;
  nlohmann::json json;
  if (error.empty()) {
    json = nlohmann::json::parse(answer.bytes, nullptr, false);
    if (json.is_object()) return json;
    error = "its answer is no JSON";
  }
  return {{"job", fmt::format("{:08x}", answer.job)},
          {"rank", answer.rank},
          {"pid", answer.pid},
          {"error", error}};
}

std::string milliseconds(double ms) {
  return ms >= 10'000 ? fmt::format("{:.1f}s", ms / 1000) : fmt::format("{:.1f}ms", ms);
}

std::string waiting_text(const nlohmann::json& operation) {
  std::string text;
  for (const auto& rank : operation.at("waiting_for")) {
    const auto& silent = operation.at("silent");
    const bool nothing = std::find(silent.begin(), silent.end(), rank) != silent.end();
    text += fmt::format("{}{}{}", text.empty() ? "" : ",", rank.get<int>(), nothing ? "*" : "");
  }
  return text.empty() ? "-" : text;
}

/// How long ago the quietest of those that are waited for was heard.
std::string heard_text(const nlohmann::json& rank, const nlohmann::json& operation) {
  double longest = -1;
  for (const auto& awaited : operation.at("waiting_for")) {
    for (const auto& peer : rank.at("peers")) {
      if (peer.at("rank") != awaited) continue;
      if (peer.at("last_heard_ms").is_null()) return "never";
      longest = std::max(longest, peer.at("last_heard_ms").get<double>());
    }
  }
  return longest < 0 ? "-" : milliseconds(longest);
}

std::string last_text(const nlohmann::json& last) {
  if (last.is_null()) return "-";
  return fmt::format("{} ({})", last.at("status").get<std::string>(),
                     last.at("operation").get<std::uint32_t>());
}

void print_row(const nlohmann::json& rank) {
  const auto head = fmt::format("{:<8} {:>4} {:>8}", rank.at("job").get<std::string>(),
                                rank.at("rank").get<int>(), rank.at("pid").get<int>());
  if (rank.contains("error")) {
    fmt::print("{}  {}\n", head, rank.at("error").get<std::string>());
    return;
  }
  const nlohmann::json& operations = rank.at("operations");
  const std::string last = last_text(rank.at("last_end"));
  if (operations.empty()) {
    fmt::print("{}  {:<10} {:>10} {:>9} {:>9}  {:<14} {}\n", head, "idle", "-", "-", "-", "-",
               last);
    return;
  }
  const nlohmann::json& oldest = operations.at(0);
  const auto tag = oldest.at("tag").get<std::uint32_t>();
  const auto number = oldest.at("operation").get<std::uint32_t>();
  const std::string operation =
      tag == kBarrierTag ? fmt::format("barrier {}", number) : fmt::format("{}:{}", tag, number);
  fmt::print("{}  {:<10} {:>10} {:>9} {:>9}  {:<14} {}\n", head,
             oldest.at("stage").get<std::string>(), operation,
             milliseconds(oldest.at("age_ms").get<double>()), heard_text(rank, oldest),
             waiting_text(oldest), last);
}

}  // namespace

void add_status_options(CLI::App& app, StatusOptions& options) {
  app.footer(std::string(kHelp) + "\n\n" + app.get_footer());
  app.add_flag("--json", options.json, "one JSON array: what each rank says");
}

int run_status(const StatusOptions& options) {
  nlohmann::json ranks = nlohmann::json::array();
  for (const RankAnswer& answer : ask_ranks("status", kPatience)) ranks.push_back(parsed(answer));
  if (options.json) {
    fmt::print("{}\n", ranks.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
    return 0;
  }
  if (ranks.empty()) {
    fmt::print("no rank is running here\n");
    return 0;
  }
  fmt::print("{:<8} {:>4} {:>8}  {:<10} {:>10} {:>9} {:>9}  {:<14} {}\n", "JOB", "RANK", "PID",
             "STAGE", "OPERATION", "AGE", "HEARD", "WAITING FOR", "LAST ENDED");
  for (const nlohmann::json& rank : ranks) {
    try {
      print_row(rank);
    } catch (const nlohmann::json::exception&) {  // of another version
      fmt::print("{}\n", rank.dump());
    }
  }
  return 0;
}

}  // namespace tarpon
