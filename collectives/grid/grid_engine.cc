#include "collectives/grid/grid_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

#include "collectives/grid/grid_allreduce.h"
#include "collectives/grid/grid_exchange.h"

namespace tarpon::grid {
namespace {

// An abort of a communicator of a grid says which rank of the grid has begun it: "@37 reason". One
// of a host that is out says for which rank: "!37 STATUS reason", with the number of the status.
std::string encode(const Abort& abort) {
  return fmt::format("@{} {}", abort.rank, abort.reason);
}

std::string encode(Rank rank, const Ending& loss) {
  return fmt::format("!{} {} {}", rank, static_cast<int>(loss.status), loss.detail);
}

/// Takes a number below `limit` and the space behind it from the beginning of `text`.
std::optional<unsigned> take_number(std::string_view& text, unsigned limit) {
  unsigned number = 0;
  const auto [after, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto used = static_cast<std::size_t>(after - text.data());
  if (error != std::errc() || used == text.size() || text[used] != ' ' || number >= limit) {
    return std::nullopt;
  }
  text.remove_prefix(used + 1);
  return number;
}

/// `heard`: of a communicator whose ranks are `ranks`, in a grid of `world` ranks.
Abort decode(const Abort& heard, const std::vector<Rank>& ranks, std::uint32_t world) {
  std::string_view text = heard.reason;
  if (text.starts_with('@')) {
    text.remove_prefix(1);
    if (const auto rank = take_number(text, world)) {
      return {static_cast<Rank>(*rank), std::string(text)};
    }
  }
  return {ranks[heard.rank], heard.reason};
}

/// Why the host is out; nullopt: the abort is one of all ranks.
std::optional<Ending> loss_of(const std::optional<Abort>& heard, std::uint32_t world) {
  if (!heard || !heard->reason.starts_with('!')) return std::nullopt;
  std::string_view text = heard->reason;
  text.remove_prefix(1);
  const auto rank = take_number(text, world);
  const auto status = take_number(text, static_cast<unsigned>(Status::peer_left) + 1);
  if (!rank || !status) return std::nullopt;
  return Ending{static_cast<Status>(*status), {static_cast<Rank>(*rank)}, std::string(text)};
}

}  // namespace

// ---- calls

std::shared_ptr<PendingCall> GridEngine::submit(const AllreduceArguments& arguments,
                                                Time now) noexcept {
  return submit_any(arguments, now);
}

std::shared_ptr<PendingCall> GridEngine::submit(const CollectiveArguments& arguments,
                                                Time now) noexcept {
  return submit_any(arguments, now);
}

template <typename Arguments>
std::shared_ptr<PendingCall> GridEngine::submit_any(const Arguments& arguments, Time now) {
  const auto last = last_.find(arguments.tag);
  const std::shared_ptr<GridCall> before = last == last_.end() ? nullptr : last->second;
  std::optional<Refusal> refused;
  std::shared_ptr<GridCall> call;
  try {
    refused = refusal(arguments);
    call = make(arguments, refused.has_value(), before, now);
  } catch (const std::bad_alloc&) {
    refused = no_memory();
    call = make(arguments, true, before, now);
  }
  refuse_what_is_over(*call, arguments.tag);
  if (refused) call->refuse(Status::aborted, refused->reason, {parts_.self}, refused->detail);
  last_[arguments.tag] = call;
  calls_.push_back(call);
  return call->pending();
}

std::optional<Refusal> GridEngine::refusal(const AllreduceArguments& arguments) const {
  return parts_.rail->refusal(arguments);
}

std::optional<Refusal> GridEngine::refusal(const CollectiveArguments& arguments) const {
  std::string wrong = GridExchange::wrong(parts_, arguments);
  if (wrong.empty()) return std::nullopt;
  return Refusal{AbortReason::argument, std::move(wrong)};
}

std::shared_ptr<GridCall> GridEngine::make(const AllreduceArguments& arguments, bool /*refused*/,
                                           std::shared_ptr<GridCall> before, Time now) const {
  return std::make_shared<GridAllreduce>(parts_, arguments, std::move(before), now);
}

std::shared_ptr<GridCall> GridEngine::make(const CollectiveArguments& arguments, bool refused,
                                           std::shared_ptr<GridCall> before, Time now) const {
  return std::make_shared<GridExchange>(parts_, arguments, refused, std::move(before), now);
}

void GridEngine::refuse_what_is_over(GridCall& call, std::uint32_t tag) const {
  if (const auto over = ending()) {
    call.give_up();
    call.refuse(over->status, AbortReason::given_up, over->blamed, over->detail);
  } else if (over_.contains(tag) || over_.size() >= kMostOver) {
    call.refuse(Status::aborted, AbortReason::exception, {parts_.self},
                fmt::format("an earlier call of tag {} has ended without a result, so the tag is "
                            "over: take another one",
                            tag));
  }
}

bool GridEngine::progress(Time now) noexcept {
  pass_aborts_on();
  bool ended = false;
  look_at_ = kNever;
  for (bool moved = true; moved;) {
    moved = false;
    for (auto at = calls_.begin(); at != calls_.end();) {
      const std::shared_ptr<GridCall> call = *at;
      moved |= call->advance(now, ending().has_value());
      if (!call->is_over()) {
        look_at_ = std::min(look_at_, call->next_look(now));
        ++at;
        continue;
      }
      at = calls_.erase(at);
      end(*call, now);
      ended = moved = true;
    }
  }
  return ended;
}

void GridEngine::end(GridCall& call, Time now) {
  call.finish(now, ending());
  const Report& report = call.pending()->report;
  const auto last = last_.find(report.tag);
  if (last != last_.end() && last->second.get() == &call) last_.erase(last);
  if (!has_result(report.status) && over_.size() < kMostOver) over_.insert(report.tag);
  if (call.host_loss() == Status::complete || loss_ || stopped_) return;
  note_loss({call.host_loss(), report.blamed, report.detail});
  parts_.host->abort(encode(lost_rank(call), *loss_));
}

/// The rank for which this host is out.
Rank GridEngine::lost_rank(const GridCall& call) const {
  const Report& report = call.pending()->report;
  if (call.lost_rail()) return parts_.self;
  if (!report.blamed.empty()) return report.blamed.front();
  return report.late_ranks.empty() ? parts_.self : report.late_ranks.front();
}

/// This rank's host is out.
void GridEngine::note_loss(const Ending& loss) {
  if (loss_) return;
  loss_ = loss;
  parts_.rail->leave_at_once();
}

void GridEngine::stop() {
  stopped_ = true;
  for (const auto& call : calls_) call->give_up();
}

// ---- aborts

/// Why all calls end; nullopt: they do not.
std::optional<Ending> GridEngine::ending() const {
  if (!abort_) return loss_;
  return Ending{Status::aborted,
                {abort_->rank},
                fmt::format("rank {} aborted: {}", abort_->rank, abort_->reason)};
}

void GridEngine::abort(const std::string& reason) {
  const Abort own{parts_.self, reason};
  if (!abort_) abort_ = own;
  if (stopped_) return;
  parts_.host->abort(encode(own));
  parts_.rail->abort(encode(own));
}

/// Tells the other communicator of an abort that was heard in one.
void GridEngine::pass_aborts_on() {
  if (stopped_) return;
  const auto from_host = parts_.host->aborted(), from_rail = parts_.rail->aborted();
  const std::uint32_t world = parts_.layout.world_size();
  if (const auto loss = loss_of(from_host, world)) {
    note_loss(*loss);
    if (!from_rail) return;
  }
  if (!from_host && !from_rail) return;
  const Abort origin = from_rail ? decode(*from_rail, parts_.rail_ranks(), world)
                                 : decode(*from_host, parts_.host_ranks(), world);
  if (!abort_) abort_ = origin;
  if (!from_rail) parts_.rail->abort(encode(origin));
  if (!from_host) parts_.host->abort(encode(origin));
}

}  // namespace tarpon::grid
