#include "tools/status/status_json.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/job/foreign_json.h"
#include "xdp/base/printable.h"

namespace tarpon {
namespace {

constexpr std::size_t kLongestText = 77;  // and "...": 80 characters

using nlohmann::json;

constexpr std::size_t kMostElements = 64;  // of any array or object

/// Reads fields of one object; remembers whether any of them was missing or wrong.
class Fields {
 public:
  Fields(const json& object, bool& good) : object_(object), good_(good) {
    if (!object_.is_object() || object_.size() > kMostElements) good_ = false;
  }

  const json& at(const char* name) const {
    static const json kMissing(json::value_t::discarded);
    if (!object_.is_object()) return kMissing;
    const auto found = object_.find(name);
    if (found == object_.end()) good_ = false;
    return found == object_.end() ? kMissing : *found;
  }
  bool has(const char* name) const { return object_.is_object() && object_.contains(name); }

  std::uint64_t wide(const char* name) const { return wide(at(name)); }
  std::uint32_t number(const char* name) const { return number(at(name)); }

  double milliseconds(const char* name) const { return milliseconds(at(name)); }
  std::optional<double> milliseconds_or_null(const char* name) const {
    const json& value = at(name);
    if (value.is_null()) return std::nullopt;
    return milliseconds(value);
  }

  std::string text(const char* name) const {
    const json& value = at(name);
    if (!value.is_string()) return reject(std::string());
    return printable(value.get_ref<const std::string&>(), kLongestText);
  }

  std::vector<std::uint32_t> ranks(const char* name) const {
    std::vector<std::uint32_t> ranks;
    each(name, [&](const json& value) { ranks.push_back(rank(value)); });
    return ranks;
  }
  std::uint32_t rank(const char* name) const { return rank(at(name)); }

  /// Calls `use` for each element of an array that is not too long.
  template <typename Use>
  void each(const char* name, Use use) const {
    const json& array = at(name);
    if (!array.is_array() || array.size() > kMostElements) {
      good_ = false;
      return;
    }
    for (const json& element : array) use(element);
  }

  StatusReply::Counters counters(const char* except) const {
    StatusReply::Counters counters;
    if (!good_) return counters;
    for (const auto& [name, value] : object_.items()) {
      if (name != except) counters.emplace_back(printable(name, kLongestText), wide(value));
    }
    return counters;
  }

 private:
  template <typename T>
  T reject(T instead) const {
    good_ = false;
    return instead;
  }
  std::uint64_t wide(const json& value) const {
    return value.is_number_unsigned() ? value.get<std::uint64_t>() : reject(std::uint64_t{0});
  }
  std::uint32_t number(const json& value) const {
    const std::uint64_t number = wide(value);
    return number <= UINT32_MAX ? static_cast<std::uint32_t>(number) : reject(std::uint32_t{0});
  }
  std::uint32_t rank(const json& value) const {
    const std::uint32_t rank = number(value);
    return rank < 64 ? rank : reject(std::uint32_t{0});
  }
  double milliseconds(const json& value) const {
    constexpr double kThirtyYears = 1e12;
    const double ms = value.is_number() ? value.get<double>() : reject(0.0);
    return std::abs(ms) <= kThirtyYears ? ms : reject(0.0);
  }

  const json& object_;
  bool& good_;
};

StatusReply::Operation parse_operation(const json& object, bool& good) {
  const Fields fields(object, good);
  StatusReply::Operation operation;
  operation.tag = fields.number("tag");
  operation.number = fields.number("operation");
  operation.stage = fields.text("stage");
  operation.age_ms = fields.milliseconds("age_ms");
  operation.waiting_for = fields.ranks("waiting_for");
  operation.silent = fields.ranks("silent");
  if (fields.has("deadline_in_ms"))
    operation.deadline_in_ms = fields.milliseconds("deadline_in_ms");
  return operation;
}

StatusReply::Ended parse_ended(const json& object, bool& good) {
  const Fields fields(object, good);
  return {fields.number("tag"), fields.number("operation"), fields.text("status"),
          fields.ranks("named")};
}

StatusReply::Peer parse_peer(const json& object, bool& good) {
  const Fields fields(object, good);
  return {fields.rank("rank"), fields.milliseconds_or_null("last_heard_ms")};
}

StatusReply parse_reply(const json& object, bool& good) {
  const Fields fields(object, good);
  StatusReply reply;
  reply.job = fields.text("job");
  reply.rank = fields.rank("rank");
  reply.world_size = fields.number("world_size");
  reply.pid = fields.number("pid");
  reply.snapshot_age_ms = fields.milliseconds("snapshot_age_ms");
  reply.outstanding = fields.number("outstanding");
  reply.open = fields.number("open");
  fields.each("operations",
              [&](const json& one) { reply.operations.push_back(parse_operation(one, good)); });
  const json& last = fields.at("last_end");
  if (!last.is_null()) reply.last_end = parse_ended(last, good);
  fields.each("peers", [&](const json& one) { reply.peers.push_back(parse_peer(one, good)); });
  const Fields counters(fields.at("counters"), good);
  reply.counters = counters.counters("dropped");
  reply.dropped = Fields(counters.at("dropped"), good).counters("");
  reply.events = fields.wide("events");
  return reply;
}

json json_of(const StatusReply::Operation& operation) {
  json object{{"tag", operation.tag},
              {"operation", operation.number},
              {"stage", operation.stage},
              {"age_ms", operation.age_ms},
              {"waiting_for", operation.waiting_for},
              {"silent", operation.silent}};
  if (operation.deadline_in_ms) object["deadline_in_ms"] = *operation.deadline_in_ms;
  return object;
}

json json_of(const StatusReply::Counters& counters) {
  json object = json::object();
  for (const auto& [name, value] : counters) object[name] = value;
  return object;
}

}  // namespace

Result<StatusReply> parse_status(std::string_view answer) {
  const auto refuse = [](std::string why) {
    return fail(Error::Code::invalid_argument, "its answer is " + std::move(why));
  };
  if (answer.size() > kLongestStatus) {
    return refuse(fmt::format("longer than {} bytes", kLongestStatus));
  }
  const auto object = parse_foreign_json(answer);
  if (!object) return refuse(fmt::format("no JSON of at most {} levels", kDeepestJson));
  bool good = true;
  StatusReply reply = parse_reply(*object, good);
  if (!good) return refuse("not a status that this version reads");
  return reply;
}

json to_json(const StatusReply& reply) {
  json object{{"job", reply.job},
              {"rank", reply.rank},
              {"world_size", reply.world_size},
              {"pid", reply.pid},
              {"snapshot_age_ms", reply.snapshot_age_ms},
              {"outstanding", reply.outstanding},
              {"open", reply.open},
              {"operations", json::array()},
              {"last_end", nullptr},
              {"peers", json::array()},
              {"counters", json_of(reply.counters)},
              {"events", reply.events}};
  for (const auto& operation : reply.operations) object["operations"].push_back(json_of(operation));
  if (const auto& last = reply.last_end) {
    object["last_end"] = {{"tag", last->tag},
                          {"operation", last->number},
                          {"status", last->status},
                          {"named", last->named}};
  }
  for (const StatusReply::Peer& peer : reply.peers) {
    json one{{"rank", peer.rank}, {"last_heard_ms", nullptr}};
    if (peer.last_heard_ms) one["last_heard_ms"] = *peer.last_heard_ms;
    object["peers"].push_back(std::move(one));
  }
  object["counters"]["dropped"] = json_of(reply.dropped);
  return object;
}

}  // namespace tarpon
