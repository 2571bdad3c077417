// Answers of status sockets, which to root may be a stranger's.
#include "tools/status/status_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/fuzz/fuzz.h"

using namespace tarpon;
using fuzz::require;

namespace {

void check_text(const std::string& text) {
  require(text.size() <= 80, "a text has a limit");
  for (const char c : text) require(c >= ' ' && c <= '~', "a text is printable");
}

void check_ranks(const std::vector<std::uint32_t>& ranks) {
  require(ranks.size() <= 64, "a list of ranks has a limit");
  for (const std::uint32_t rank : ranks) require(rank < 64, "a rank is below 64");
}

void check_counters(const StatusReply::Counters& counters) {
  require(counters.size() <= 64, "a list of counters has a limit");
  for (const auto& [name, value] : counters) check_text(name);
}

void check_reply(const StatusReply& reply) {
  check_text(reply.job);
  require(reply.rank < 64, "a rank is below 64");
  require(std::isfinite(reply.snapshot_age_ms), "a time is finite");
  require(reply.operations.size() <= 64 && reply.peers.size() <= 64, "lists have limits");
  for (const StatusReply::Operation& operation : reply.operations) {
    check_text(operation.stage);
    check_ranks(operation.waiting_for);
    check_ranks(operation.silent);
    require(std::isfinite(operation.age_ms), "a time is finite");
    require(std::isfinite(operation.deadline_in_ms.value_or(0)), "a time is finite");
  }
  for (const StatusReply::Peer& peer : reply.peers) {
    require(peer.rank < 64 && std::isfinite(peer.last_heard_ms.value_or(0)), "a peer is sound");
  }
  if (reply.last_end) {
    check_text(reply.last_end->status);
    check_ranks(reply.last_end->named);
  }
  check_counters(reply.counters);
  check_counters(reply.dropped);
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto reply = parse_status(fuzz::text_of(data, size));
  if (!reply) {
    check_text(reply.error().message);
    return 0;
  }
  check_reply(*reply);
  const std::string text = to_json(*reply).dump();
  require(text.size() <= kLongestStatus, "what was read can be read again: its length");
  const auto again = parse_status(text);
  require(again.has_value(), "what was read can be read again");
  require(to_json(*again).dump() == text, "reading it again changes nothing");
  return 0;
}
