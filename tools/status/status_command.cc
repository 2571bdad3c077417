#include "tools/status/status_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "collectives/allreduce.h"
#include "collectives/reserved_tags.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/files/report_output.h"
#include "tools/job/rank_sockets.h"
#include "tools/status/status_json.h"

namespace tarpon {
namespace {

constexpr Duration kPatience = 1s;

/// A rank's socket with its status, or with the reason why there is none. Job, rank and process are
/// those of the socket: the kernel vouches for the process, the rank's answer does not.
struct AnswerRow {
  RankAnswer asked;
  Result<StatusReply> reply;
};

AnswerRow row_of(RankAnswer answer) {
  Result<StatusReply> reply = answer.error.empty() ? parse_status(answer.bytes)
                                                   : fail(Error::Code::unavailable, answer.error);
  answer.bytes.clear();
  return {std::move(answer), std::move(reply)};
}

nlohmann::json json_of(const AnswerRow& row) {
  nlohmann::json json =
      row.reply ? to_json(*row.reply) : nlohmann::json{{"error", row.reply.error().message}};
  json["job"] = fmt::format("{:08x}", row.asked.public_id);
  json["rank"] = row.asked.rank;
  json["pid"] = row.asked.pid;
  return json;
}

std::string milliseconds(double ms) {
  return ms >= 10'000 ? fmt::format("{:.1f}s", ms / 1000) : fmt::format("{:.1f}ms", ms);
}

std::string waiting_text(const StatusReply::Operation& operation) {
  std::string text;
  for (const std::uint32_t rank : operation.waiting_for) {
    const auto& silent = operation.silent;
    const bool nothing = std::find(silent.begin(), silent.end(), rank) != silent.end();
    text += fmt::format("{}{}{}", text.empty() ? "" : ",", rank, nothing ? "*" : "");
  }
  return text.empty() ? "-" : text;
}

/// How long ago the most silent of the awaited ranks was heard.
std::string heard_text(const StatusReply& reply, const StatusReply::Operation& operation) {
  double longest = -1;
  for (const std::uint32_t awaited : operation.waiting_for) {
    for (const StatusReply::Peer& peer : reply.peers) {
      if (peer.rank != awaited) continue;
      if (!peer.last_heard_ms) return "never";
      longest = std::max(longest, *peer.last_heard_ms);
    }
  }
  return longest < 0 ? "-" : milliseconds(longest);
}

std::string call_text(std::uint32_t tag, std::uint32_t number) {
  const std::string reserved = reserved_name(tag);
  return reserved.empty() ? fmt::format("{}:{}", tag, number)
                          : fmt::format("{} {}", reserved, number);
}

std::string row_text(const AnswerRow& row) {
  const std::string head =
      fmt::format("{:08x} {:>4} {:>8}", row.asked.public_id, row.asked.rank, row.asked.pid);
  if (!row.reply) return fmt::format("{}  {}", head, row.reply.error().message);
  const StatusReply& reply = *row.reply;
  const std::string last = reply.last_end
                               ? fmt::format("{} ({})", reply.last_end->status,
                                             call_text(reply.last_end->tag, reply.last_end->number))
                               : "-";
  if (reply.operations.empty()) {
    return fmt::format("{}  {:<10} {:>10} {:>9} {:>9}  {:<14} {}", head, "idle", "-", "-", "-", "-",
                       last);
  }
  const StatusReply::Operation& oldest = reply.operations.front();
  return fmt::format("{}  {:<10} {:>10} {:>9} {:>9}  {:<14} {}", head, oldest.stage,
                     call_text(oldest.tag, oldest.number), milliseconds(oldest.age_ms),
                     heard_text(reply, oldest), waiting_text(oldest), last);
}

}  // namespace

void add_status_options(cli::OptionTable& table, StatusOptions& options) {
  table.add("Options",
            {{"--json", cli::flag(options.json), "one JSON object: what each rank says"}});
  table.note(
      "Ranks of this user; as root those of every user, in all network namespaces. AGE is how long "
      "the oldest operation has been open; WAITING FOR names the ranks whose data it lacks, with * "
      "those of which nothing has come in it; HEARD is how long ago the quietest of them was heard "
      "at all.");
}

int run_status(const StatusOptions& options) {
  std::vector<AnswerRow> rows;
  auto answers = ask_ranks("status", kPatience);
  if (!answers) return report(answers.error());
  for (RankAnswer& answer : *answers) rows.push_back(row_of(std::move(answer)));
  if (options.json) {
    nlohmann::json ranks = nlohmann::json::array();
    for (const AnswerRow& row : rows) ranks.push_back(json_of(row));
    fmt::print("{}", json_text(json_report(report_config(), std::move(ranks))));
    return 0;
  }
  if (rows.empty()) {
    fmt::print("no rank is running here\n");
    return 0;
  }
  fmt::print("{:<8} {:>4} {:>8}  {:<10} {:>10} {:>9} {:>9}  {:<14} {}\n", "JOB", "RANK", "PID",
             "STAGE", "OPERATION", "AGE", "HEARD", "WAITING FOR", "LAST ENDED");
  for (const AnswerRow& row : rows) fmt::print("{}\n", row_text(row));
  return 0;
}

}  // namespace tarpon
