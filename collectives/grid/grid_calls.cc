#include "collectives/grid/grid_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>
#include <utility>

#include "collectives/grid/grid_allreduce.h"
#include "collectives/grid/grid_exchange.h"
#include "transport/clock.h"
#include "xdp/base/system_limits.h"

namespace tarpon::grid {
namespace {

// An abort of a communicator of a grid says which rank of the grid has begun it: "@37 reason". One
// of a host that is out: "!37 STATUS reason", with the number of the status.
std::string encode(const Abort& abort) {
  return fmt::format("@{} {}", abort.rank, abort.reason);
}

std::string encode(Rank rank, const Ending& loss) {
  return fmt::format("!{} {} {}", rank, static_cast<int>(loss.status), loss.detail);
}

/// Takes a number and the space behind it from the beginning of `text`.
std::optional<unsigned> take_number(std::string_view& text) {
  unsigned number = 0;
  const auto [after, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto used = static_cast<std::size_t>(after - text.data());
  if (error != std::errc() || used == text.size() || text[used] != ' ') return std::nullopt;
  text.remove_prefix(used + 1);
  return number;
}

/// `heard`: of a communicator whose ranks are `ranks`.
Abort decode(const Abort& heard, const std::vector<Rank>& ranks) {
  std::string_view text = heard.reason;
  if (text.starts_with('@')) {
    text.remove_prefix(1);
    if (const auto rank = take_number(text)) {
      return {static_cast<Rank>(*rank), std::string(text)};
    }
  }
  return {ranks[heard.rank], heard.reason};
}

/// Why the host is out; nullopt: the abort is one of all ranks.
std::optional<Ending> loss_of(const std::optional<Abort>& heard) {
  if (!heard || !heard->reason.starts_with('!')) return std::nullopt;
  std::string_view text = heard->reason;
  text.remove_prefix(1);
  const auto rank = take_number(text), status = take_number(text);
  if (!rank || !status || *status > static_cast<unsigned>(Status::peer_left)) return std::nullopt;
  return Ending{static_cast<Status>(*status), {static_cast<Rank>(*rank)}, std::string(text)};
}

}  // namespace

std::shared_ptr<GridCalls> GridCalls::make() {
  return {new GridCalls, [](GridCalls* calls) {
            if (!calls->is_forked()) delete calls;
          }};
}

Result<void> GridCalls::check_process() const {
  if (!is_forked()) return {};
  return fail(Error::Code::unavailable,
              fmt::format("process {} was forked from process {}, whose communicator this is: use "
                          "it there, or connect in this process",
                          ::getpid(), process_));
}

Result<void> GridCalls::start(const GridParts& parts) {
  parts_ = &parts;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return fail(start_error(error.code().value(), "cannot start the thread that makes progress"));
  }
  return {};
}

void GridCalls::note_change() {
  const std::lock_guard lock(changes_mutex_);
  ++changes_;
  changed_.notify_all();
  if (waiting_ == 0) needed_.notify_one();
}

std::uint64_t GridCalls::changes() const {
  const std::lock_guard lock(changes_mutex_);
  return changes_;
}

std::shared_ptr<PendingCall> GridCalls::submit(const AllreduceArguments& arguments) {
  return submit(arguments.tag, parts_->rail->refusal(arguments),
                [&](std::shared_ptr<GridCall> before) {
                  return std::make_shared<GridAllreduce>(*parts_, arguments, std::move(before),
                                                         monotonic_now());
                });
}

std::shared_ptr<PendingCall> GridCalls::submit(const CollectiveArguments& arguments) {
  std::optional<Refusal> refused;
  if (std::string wrong = GridExchange::wrong(*parts_, arguments); !wrong.empty()) {
    refused = Refusal{AbortReason::argument, std::move(wrong)};
  }
  return submit(arguments.tag, refused, [&](std::shared_ptr<GridCall> before) {
    return std::make_shared<GridExchange>(*parts_, arguments, refused.has_value(),
                                          std::move(before), monotonic_now());
  });
}

/// `refused`: why the call is not to run. `make(before)`: makes it.
template <typename Make>
std::shared_ptr<PendingCall> GridCalls::submit(std::uint32_t tag,
                                               const std::optional<Refusal>& refused, Make make) {
  std::shared_ptr<GridCall> call;
  {
    const std::lock_guard lock(mutex_);
    const auto last = last_.find(tag);
    call = make(last == last_.end() ? nullptr : last->second);
    refuse_what_is_over(*call, tag);
    if (refused) {
      call->refuse(Status::aborted, refused->reason, {parts_->self}, refused->detail);
    }
    last_[tag] = call;
    calls_.push_back(call);
  }
  advance();
  return call->pending();
}

/// REQUIRES: the mutex.
void GridCalls::refuse_what_is_over(GridCall& call, std::uint32_t tag) const {
  if (const auto over = ending()) {
    call.give_up();
    call.refuse(over->status, AbortReason::given_up, over->blamed, over->detail);
  } else if (over_.contains(tag) || over_.size() >= kMostOver) {
    call.refuse(Status::aborted, AbortReason::exception, {parts_->self},
                fmt::format("an earlier call of tag {} has ended without a result, so the tag is "
                            "over: take another one",
                            tag));
  }
}

/// Why all calls end; nullopt: they do not. REQUIRES: the mutex.
std::optional<Ending> GridCalls::ending() const {
  const auto abort = aborted();
  if (!abort) return loss_;
  return Ending{Status::aborted,
                {abort->rank},
                fmt::format("rank {} aborted: {}", abort->rank, abort->reason)};
}

/// Has all calls advance as far as they can.
void GridCalls::advance() {
  pass_aborts_on();
  bool ended = false;
  {
    const std::lock_guard lock(mutex_);
    const Time now = monotonic_now();
    Time look_at = kNever;
    for (bool moved = true; moved;) {
      moved = false;
      for (auto at = calls_.begin(); at != calls_.end();) {
        const std::shared_ptr<GridCall> call = *at;
        moved |= call->advance(now, ending().has_value());
        if (!call->is_over()) {
          look_at = std::min(look_at, call->next_look(now));
          ++at;
          continue;
        }
        at = calls_.erase(at);
        end(*call, now);
        ended = moved = true;
      }
    }
    look_at_ = look_at;
  }
  if (ended) note_change();
}

/// REQUIRES: the mutex.
void GridCalls::end(GridCall& call, Time now) {
  call.finish(now, ending());
  const Report& report = call.pending()->report;
  const auto last = last_.find(report.tag);
  if (last != last_.end() && last->second.get() == &call) last_.erase(last);
  const bool result = report.status == Status::complete || report.status == Status::partial ||
                      report.status == Status::late_self;
  if (!result && over_.size() < kMostOver) over_.insert(report.tag);
  if (call.host_loss() == Status::complete || loss_ || stopped_) return;
  note_loss({call.host_loss(), report.blamed, report.detail});
  if (call.lost_rail()) parts_->host->abort(encode(parts_->self, *loss_));
}

/// This rank's host is out. REQUIRES: the mutex.
void GridCalls::note_loss(const Ending& loss) {
  if (loss_) return;
  loss_ = loss;
  parts_->rail->leave_at_once();
}

/// Sleeps until `ready()`, or something is due. REQUIRES: the lock of changes_mutex_.
template <typename Ready>
void GridCalls::sleep(std::unique_lock<std::mutex>& lock, std::condition_variable& news,
                      Ready ready) {
  const Time due = look_at_;
  if (due == kNever) return news.wait(lock, ready);
  const Time now = monotonic_now();
  news.wait_for(lock, due - std::min(due, now), ready);
}

void GridCalls::wait(const std::shared_ptr<PendingCall>& call) {
  {
    const std::lock_guard lock(changes_mutex_);
    ++waiting_;
  }
  while (true) {
    const std::uint64_t seen = changes();
    if (call->done) break;
    advance();
    if (call->done) break;
    std::unique_lock lock(changes_mutex_);
    sleep(lock, changed_, [&] { return changes_ != seen; });
  }
  const std::lock_guard lock(changes_mutex_);
  if (--waiting_ == 0) needed_.notify_one();
}

void GridCalls::poll(Duration most) {
  const std::uint64_t seen = changes();
  advance();
  std::unique_lock lock(changes_mutex_);
  changed_.wait_for(lock, most, [&] { return changes_ != seen; });
}

void GridCalls::run() {
  std::uint64_t seen = 0;
  std::unique_lock lock(changes_mutex_);
  while (!stopping_) {
    seen = changes_;
    const bool advances = waiting_ == 0;
    lock.unlock();
    if (advances) advance();
    lock.lock();
    sleep(lock, needed_,
          [&] { return stopping_ || (waiting_ == 0 && (changes_ != seen || !advances)); });
  }
}

// ---- aborts

bool GridCalls::is_stopped() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

std::optional<Abort> GridCalls::aborted() const {
  const std::lock_guard lock(abort_mutex_);
  return abort_;
}

void GridCalls::set_abort(const Abort& abort) {
  const std::lock_guard lock(abort_mutex_);
  if (!abort_) abort_ = abort;
}

void GridCalls::abort(const std::string& reason) {
  const Abort own{parts_->self, reason};
  set_abort(own);
  parts_->host->abort(encode(own));
  parts_->rail->abort(encode(own));
  note_change();
}

/// Tells the other communicator of an abort that was heard in one.
void GridCalls::pass_aborts_on() {
  if (is_stopped()) return;
  const auto from_host = parts_->host->aborted(), from_rail = parts_->rail->aborted();
  if (const auto loss = loss_of(from_host)) {
    const std::lock_guard lock(mutex_);
    note_loss(*loss);
    if (!from_rail) return;
  }
  if (!from_host && !from_rail) return;
  const Abort origin = from_rail ? decode(*from_rail, parts_->rail_ranks())
                                 : decode(*from_host, parts_->host_ranks());
  set_abort(origin);
  if (!from_rail) parts_->rail->abort(encode(origin));
  if (!from_host) parts_->host->abort(encode(origin));
}

// ---- the end

void GridCalls::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    for (const auto& call : calls_) call->give_up();
  }
  {
    const std::lock_guard lock(changes_mutex_);
    stopping_ = true;
    needed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void GridCalls::end_calls() {
  advance();
}

}  // namespace tarpon::grid
