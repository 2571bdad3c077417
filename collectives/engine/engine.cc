#include "collectives/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "collectives/engine/bounded/gather_call.h"
#include "collectives/engine/bounded/tar_call.h"
#include "collectives/engine/coded/encoding.h"
#include "collectives/engine/exact/scheduled_call.h"
#include "collectives/engine/flight_events.h"
#include "collectives/engine/hosts/hosted_allreduce.h"
#include "collectives/engine/hosts/hosted_exchange.h"
#include "collectives/engine/hosts/hosted_tar_call.h"
#include "collectives/rank_list.h"
#include "transport/pair_tag.h"
#include "transport/rank_mask.h"

namespace tarpon {
namespace {

/// The late ranks of the call of the tag that runs; nullopt: none does.
std::optional<std::vector<Rank>> late_ranks(
    const std::vector<std::unique_ptr<RunningCall>>& running, std::uint32_t tag) {
  for (const auto& operation : running) {
    if (!operation->over() && operation->call().arguments.tag == tag) {
      return operation->blame().late();
    }
  }
  return std::nullopt;
}

/// Whether the port holds no packet of `operation`, which is over. Drops the packets that the port
/// could not send by its deadline; those of other operations stay in the port.
bool is_released(Port& port, const RunningCall& operation, Time now) {
  const Lender lender = lender_of(operation.handle());
  if (!port.holds(lender)) return true;
  if (now < operation.next_deadline()) return false;
  port.drop_unsent(lender);
  return true;
}

/// Sends the packets that are due. Returns false when there was none, or no free frame.
bool transmit(Endpoint& endpoint, Port& port, Time now) {
  constexpr std::size_t kTrains = 4;
  constexpr int kRounds = 2;
  bool moved = false;
  for (int round = 0; round < kRounds; ++round) {
    const std::size_t want = std::max<std::size_t>(16, port.capabilities().burst * kTrains);
    const std::span<TxPacket> frames = port.transmit_frames(want);
    if (frames.empty()) break;
    const std::size_t used = endpoint.poll_transmit(now, frames);
    if (used == 0) break;
    port.transmit(frames.first(used));
    moved = true;
  }
  return moved;
}

/// Marks a call as done. REQUIRES: its output is complete, or it has no result.
void hand_back(RunningCall& operation, Recorder* recorder, Time now) {
  record_ended(recorder, operation.call().report, now);
  operation.release(now);
}

}  // namespace

Engine::Engine(const EngineOptions& options, Port& port)
    : options_(options),
      port_(port),
      rules_(options.endpoint.world_size, options.slot_bytes, options.mechanisms, host_calls_),
      endpoint_(options.endpoint, port.capabilities()),
      learnt_({.world_size = options.endpoint.world_size,
               .loss_target = options.mechanisms.loss_target,
               .x_loop = options.mechanisms.x_loop}),
      coded_calls_({.encoding = {.world = options.endpoint.world_size,
                                 .slot_bytes = options.slot_bytes,
                                 .seed = std::uint64_t{options.endpoint.job} << 16 |
                                         options.endpoint.communicator,
                                 .piece_bytes = options.piece_bytes},
                    .mechanisms = options.mechanisms,
                    .memory = options.call_memory}),
      partial_buffers_(options.call_memory),
      pieces_(coded_calls_, running_, options.piece_bytes),
      unbegun_({.options = options_.endpoint,
                .endpoint = endpoint_,
                .coded = coded_calls_,
                .pieces = pieces_}),
      facts_(options.endpoint.world_size),
      departures_(options.endpoint.rank) {}

Engine::~Engine() = default;

std::shared_ptr<PendingCall> Engine::submit(const CallArguments& arguments, Time now) {
  return submit(arguments, rules_.looks_nonfinite(arguments), now, now);
}

std::shared_ptr<PendingCall> Engine::submit(const CallArguments& arguments, bool nonfinite,
                                            Time asked, Time now, bool held) noexcept {
  if (outstanding() == 0) driven_ = now;
  std::optional<Refusal> refused = rules_.refusal(arguments);
  std::shared_ptr<PendingCall> call;
  try {
    call = std::allocate_shared<PendingCall>(
        std::pmr::polymorphic_allocator<PendingCall>(options_.call_memory));
  } catch (const std::bad_alloc&) {
    call = std::make_shared<PendingCall>();  // to report the refusal
    refused = no_memory();
  } catch (const std::exception& error) {
    call = std::make_shared<PendingCall>();
    refused = exception_inside(error);
  }
  call->arguments = arguments;
  if (arguments.algorithm == Algorithm::automatic) call->arguments.algorithm = Algorithm::tar;
  call->nonfinite = nonfinite;
  call->report.tag = arguments.tag;
  if (arguments.parts) call->report.collective = arguments.parts->collective;
  if (const CallEnding* const ending = final_ending()) {
    call->report.operation = unbegun_.next_unnumbered(arguments.tag);
    unbegun_.end(*call, *ending, asked, now);
    return call;
  }
  if (options_.endpoint.world_size == 1) {
    run_alone(*call, refused);
    return call;
  }
  call->report.operation = next_number(arguments.tag);
  if (refused) {
    unbegun_.refuse(*call, *refused, asked, now);
  } else {
    coded_calls_.note_submitted(arguments, outstanding());
  }
  held = held && !refused;
  UnbegunCalls::Waiting next{
      .call = call, .submitted = asked, .over = refused.has_value(), .held = held};
  if (unbegun_.has(arguments.tag) || held || !endpoint_.tags().can_submit(arguments.tag)) {
    unbegun_.add(std::move(next));
  } else if (!start(next, now)) {
    unbegun_.add(std::move(next));
  }
  return call;
}

/// Starts the call, ends it as refused, or passes over it, if it is over; it takes its number in
/// all cases. Returns false if its bucket is still being encoded.
bool Engine::start(const UnbegunCalls::Waiting& next, Time now) noexcept {
  if (next.over) {
    pass_over(*next.call, now);
    return true;
  }
  std::optional<Refusal> refused;
  if (endpoint_.tags().is_lost(next.call->arguments.tag)) {
    refused = Refusal{AbortReason::tag_forgotten,
                      fmt::format("allreduce: this rank no longer remembers the numbers of tag {}: "
                                  "use a new tag",
                                  next.call->arguments.tag)};
  } else if (next.call->arguments.follows &&
             endpoint_.tags().ended_elsewhere(next.call->arguments.tag,
                                              next.call->report.operation) == 0) {
    refused =
        Refusal{AbortReason::exception,
                "allreduce: the ranks that had ended the call are gone, so there is no result "
                "to follow"};
  } else {
    try {
      const std::uint32_t number = endpoint_.tags().next_number(next.call->arguments.tag);
      if (!coded_calls_.may_begin(next.call, number, next.submitted, now)) return false;
      open(next, now);
    } catch (const std::bad_alloc&) {
      refused = no_memory();
    } catch (const std::exception& error) {
      refused = exception_inside(error);
    }
  }
  if (refused) {
    coded_calls_.take(*next.call);
    unbegun_.refuse(*next.call, *refused, next.submitted, now);
    pass_over(*next.call, now);
    return true;
  }
  running_.back()->peers_gone(facts_, now);
  record_submitted(options_.endpoint.recorder, running_.back()->call(), next.submitted);
  return true;
}

/// Throws before the number is taken, or not at all.
void Engine::open(const UnbegunCalls::Waiting& next, Time now) {
  const EndpointOptions& endpoint = options_.endpoint;
  const std::uint32_t tag = next.call->arguments.tag;
  RunningCall::Setting setting{
      .rank = endpoint.rank,
      .world = endpoint.world_size,
      .slot_bytes = options_.slot_bytes,
      .mechanisms = options_.mechanisms,
      .bounds = &learnt_.bounds,
      .memory = options_.call_memory,
      .partial_buffers = &partial_buffers_,
      .piece_bytes = options_.piece_bytes,
      .epoch = coded_calls_.epochs().at(tag, endpoint_.tags().next_number(tag)),
      .absent = absent_,
      .open = static_cast<std::uint32_t>(running_.size() + 1),
      .behind = next.behind};
  running_.reserve(running_.size() + 1);
  const std::unique_ptr<Encoding> encoding = coded_calls_.take(*next.call);
  setting.began = encoding ? encoding->began() : now;
  setting.work_rate = encoding ? &learnt_.coded_work : &learnt_.uncoded_work;
  const CallArguments& arguments = next.call->arguments;
  // A call that calibrates a bound runs like a bounded call, because its time stands for theirs.
  if (!may_run_bounded(arguments) && arguments.algorithm == Algorithm::hosts) {
    if (arguments.parts) {
      running_.push_back(std::make_unique<HostedExchange>(std::move(setting), next.call, endpoint_,
                                                          host_calls_, next.submitted, now));
    } else {
      running_.push_back(std::make_unique<HostedAllreduce>(std::move(setting), next.call, endpoint_,
                                                           host_calls_, next.submitted, now));
    }
    return;
  }
  const bool bounded =
      effective_mode(arguments, endpoint_.tags().next_number(tag)) == Mode::bounded;
  if (bounded && !encoding && HostedTarCall::suits(arguments, setting, host_calls_)) {
    running_.push_back(std::make_unique<HostedTarCall>(std::move(setting), next.call, endpoint_,
                                                       host_calls_, next.submitted, now));
    return;
  }
  if (may_run_bounded(arguments) && arguments.algorithm == Algorithm::hosts) {
    next.call->arguments.algorithm = Algorithm::tar;
  }
  if (!may_run_bounded(arguments)) {
    running_.push_back(std::make_unique<ScheduledCall>(std::move(setting), next.call, endpoint_,
                                                       next.submitted, now));
    return;
  }
  if (arguments.parts && arguments.parts->collective == Collective::all_gather) {
    running_.push_back(std::make_unique<GatherCall>(std::move(setting), next.call, endpoint_,
                                                    next.submitted, now));
    return;
  }
  running_.push_back(std::make_unique<TarCall>(std::move(setting), next.call,
                                               encoding ? encoding->release() : nullptr, endpoint_,
                                               next.submitted, now));
}

/// Takes the next number of its tag for a call that is over already, and tells the peers.
void Engine::pass_over(const PendingCall& call, Time now) noexcept {
  OperationSpec nothing;
  nothing.tag = call.arguments.tag;
  nothing.slot_bytes = options_.slot_bytes;
  nothing.stages.resize(1);
  record_ended(options_.endpoint.recorder, call.report, now);
  AbortReason reason =
      call.report.status == Status::aborted ? call.report.abort_reason : AbortReason::expired;
  std::uint64_t ranks = bit(options_.endpoint.rank);
  const OperationHandle handle = endpoint_.submit(nothing, now);
  // The first rank whose deadline passes ends an exact call on all ranks. It blames the ranks that
  // were late in the calls before.
  if (reason == AbortReason::expired && !may_run_bounded(call.arguments) &&
      !call.report.late_ranks.empty()) {
    reason = AbortReason::late;
    ranks = mask_of(call.report.late_ranks);
  }
  endpoint_.abort(handle, static_cast<std::uint32_t>(reason), ranks);
  // The peers may run another algorithm: on a line of its own the tag has to be told in any case.
  const std::uint32_t tag = call.arguments.tag;
  const bool exact = !may_run_bounded(call.arguments);
  const bool shared =
      hosts::own_line(tag) || (exact && call.arguments.algorithm == Algorithm::hosts);
  if (!host_calls_.shares() || !shared) return;
  host_calls_.pass_over({tag, call.report.operation},
                        {.reason = static_cast<std::uint32_t>(reason), .blamed = ranks});
}

void Engine::handle_events(Time now) {
  Event event;
  while (endpoint_.poll_event(event)) {
    if (event.kind == Event::Kind::silent || event.kind == Event::Kind::heard) {
      note_silent(event.peer, event.kind == Event::Kind::silent, now);
      continue;
    }
    for (const auto& operation : running_) {
      if (operation->over() || !(operation->handle() == event.operation)) continue;
      if (event.kind == Event::Kind::epoch) {
        // The result lacks the data of that epoch and is partial. This rank joins the epoch with
        // its next operation.
        const Report& report = operation->call().report;
        coded_calls_.epochs().seen(report.tag, report.operation + 1,
                                   {event.epoch.number, (event.epoch.form & TARPON_FORM_CODED) != 0,
                                    (event.epoch.form & TARPON_FORM_FLAT) != 0});
      } else {
        operation->on_event(event, now);
      }
      break;
    }
  }
}

void Engine::step(Time now) {
  bool ended = false;
  for (const auto& operation : running_) ended |= operation->step(now);
  if (!ended) return;
  // A call is done only when the port points into none of its buffers.
  std::erase_if(running_, [this, now](const std::unique_ptr<RunningCall>& operation) {
    if (!operation->over() || !is_released(port_, *operation, now)) return false;
    if (!operation->complete(now)) return false;
    record_ended(options_.endpoint.recorder, operation->call().report, now);
    const Report& report = operation->call().report;
    wish_.note(*operation, now);
    coded_calls_.note_ended(operation->call());
    const std::uint32_t tag = operation->call().arguments.tag;
    if (report.status == Status::peer_late) unbegun_.note_behind(tag, report.late_ranks);
    operation->release(now);  // from here on the report is the caller's
    port_.publish(tag, endpoint_.tags().lowest_open(tag));
    return true;
  });
  start_waiting(now);
}

void Engine::start_waiting(Time now) {
  unbegun_.start([&](const UnbegunCalls::Waiting& next) { return start(next, now); });
}

/// Running calls set times at which they have to be driven; a stopped process misses them.
void Engine::note_pause(Time now) {
  const Time last = std::exchange(driven_, now);
  if (now - last < kShortestPause || outstanding() == 0) return;
  const Time due = std::max(last, next_deadline());
  record_pause(options_.endpoint.recorder, last, due, now);
  if (due >= now) return;
  for (const auto& operation : running_) operation->note_pause(now - due);
}

/// Lets calls take the data that is in the memory of the host. Handles the events of packets first:
/// a peer may have ended the call.
void Engine::move_hosted(Time now) {
  if (host_calls_.open() == 0) return;
  handle_events(now);
  host_calls_.move(now);
}

bool Engine::progress(Time now) noexcept {
  if (broken_) return false;
  note_pause(now);
  if (const std::optional<Error> error = port_.failure()) {
    fail_all(now, *error);
    return false;
  }
  const std::span<const RxPacket> packets = port_.receive(now);
  endpoint_.on_receive(now, packets);
  if (endpoint_.next_deadline() <= now) move_hosted(now);
  // A packet that waits in the port may be the one that a timer would ask for again, so packets
  // come first. But an endless stream of packets must not delay a bound.
  constexpr Duration kPatience = 1ms;
  if (packets.empty() || now - kPatience >= endpoint_.next_deadline()) endpoint_.on_timer(now);
  handle_events(now);
  step(now);
  host_calls_.tell_passed([this](const hosts::CallName& one) {
    return static_cast<std::int32_t>(endpoint_.tags().next_number(one.tag) - one.number) > 0;
  });
  if (now >= unbegun_.next_expiry()) {
    unbegun_.expire([this](std::uint32_t tag) { return late_ranks(running_, tag); }, now);
  }
  if (unbegun_.take_startable()) start_waiting(now);
  const bool sent = transmit(endpoint_, port_, now);
  const bool shared = host_calls_.take_moved();
  return !packets.empty() || sent || shared;
}

Time Engine::next_deadline() const {
  if (broken_) return kNever;
  Time next = std::min(endpoint_.next_deadline(), unbegun_.next_expiry());
  for (const auto& operation : running_) next = std::min(next, operation->next_deadline());
  return next;
}

FlightSnapshot Engine::snapshot(Time now) const {
  FlightSnapshot snapshot;
  snapshot.taken = now;
  snapshot.outstanding = static_cast<std::uint32_t>(outstanding());
  endpoint_.snapshot(snapshot.endpoint);
  return snapshot;
}

std::vector<EpochRecord::Start> Engine::next_numbers() const {
  std::vector<EpochRecord::Start> result;
  for (const std::uint32_t tag : endpoint_.tags().all()) {
    if (!pair_tag(tag)) result.push_back({tag, next_number(tag)});  // messages have no epochs
  }
  return result;
}

/// How every call ends from now on; nullptr while calls run.
const CallEnding* Engine::final_ending() const {
  if (broken_) return &*broken_;
  return aborted_ ? &*aborted_ : nullptr;
}

void Engine::abort(Time now) {
  give_up(options_.endpoint.rank, "given up by this rank", now);
}

void Engine::drop_calls(Time now) {
  abort(now);
  for (const auto& operation : running_) {
    port_.drop_unsent(lender_of(operation->handle()));
    operation->drop_work(now);
    hand_back(*operation, options_.endpoint.recorder, now);
  }
  running_.clear();
}

void Engine::abort_for_good(Rank origin, const std::string& reason, Time now) {
  if (aborted_) return;
  const std::string who =
      origin == options_.endpoint.rank ? "this rank" : fmt::format("rank {}", origin);
  aborted_ = CallEnding{.blamed = {origin}, .detail = fmt::format("{} aborted: {}", who, reason)};
  unbegun_.end_numbering();
  give_up(origin, aborted_->detail, now);
  unbegun_.forget();
}

void Engine::give_up(Rank origin, const std::string& detail, Time now) {
  for (const auto& operation : running_) operation->give_up(origin, detail, now);
  unbegun_.end_all({.blamed = {origin}, .detail = detail}, now);
}

/// The peers are not told: one that does not know of the exclusion yet need not end its calls.
void Engine::end_by_exclusion(const Fact& own, Time now) {
  if (aborted_) return;
  const Rank self = options_.endpoint.rank;
  aborted_ = CallEnding{
      Status::evicted,
      {self},
      fmt::format("this rank is {}: {}; the others go on without it, and it misses "
                  "this operation and all later ones: {}",
                  own.standing == Standing::dead ? "dead to the others" : "evicted", own.evidence,
                  options_.endpoint.communicator == 0 ? "rejoin(), then resync()"
                                                      : "split() the job anew, with a new number")};
  unbegun_.end_numbering();
  move_hosted(now);
  handle_events(now);  // a call whose result is whole still ends with it
  for (const auto& operation : running_) {
    operation->evicted(aborted_->detail, now);
    Report& report = operation->call().report;
    if (report.status == Status::evicted) unbegun_.note_missed(report);
  }
  unbegun_.end_all(*aborted_, now);
  unbegun_.forget();
}

void Engine::learn(const Fact& fact, Time now) {
  const Rank self = options_.endpoint.rank;
  if (fact.rank >= facts_.world_size() || !facts_.learn(fact)) return;
  record_standing(options_.endpoint.recorder, fact.rank, fact.standing, now);
  if (fact.rank == self) {
    if (fact.standing > Standing::left) end_by_exclusion(fact, now);
    return;
  }
  move_hosted(now);
  handle_events(now);  // a result that is whole needs no peer
  note_absent(fact.rank);
  if (facts_.of(fact.rank).serves) {
    endpoint_.peer_left(fact.rank, fact.next_numbers, now);
    departures_.left(fact.rank, fact.next_numbers);
  } else {
    endpoint_.peer_dead(fact.rank, now);
    departures_.gone(fact.rank);
  }
  // Exact calls end before they hear that their stages have closed without that rank.
  for (const auto& operation : running_) operation->peers_gone(facts_, now);
}

std::vector<NextNumber> Engine::unpassed() const {
  if (final_ending() != nullptr) return {};  // nothing is served any more
  std::vector<NextNumber> result = endpoint_.tags().unpassed();
  for (const UnbegunCalls::Waiting& waiting :
       unbegun_.all()) {  // the endpoint may not know its tag yet
    const std::uint32_t tag = waiting.tag();
    const bool known = std::any_of(result.begin(), result.end(),
                                   [tag](const NextNumber& one) { return one.tag == tag; });
    if (!known) result.push_back({tag, 0});
  }
  for (NextNumber& one : result) one.number = next_number(one.tag);
  return result;
}

std::uint64_t Engine::take_passed() {
  return final_ending() != nullptr ? departures_.take_all() : departures_.take_passed(endpoint_);
}

std::uint64_t Engine::awaited() const {
  std::uint64_t ranks = 0;
  for (const auto& operation : running_) {
    if (operation->over() || operation->call().report.mode != Mode::exact) continue;
    ranks |= mask_of(operation->blame().absent());
  }
  return ranks & endpoint_.peers().silent();
}

void Engine::note_silent(Rank rank, bool silent, Time now) {
  record_silence(options_.endpoint.recorder, rank, silent, now);
  if (silent) {
    note_absent(rank);
  } else if (facts_.is_live(rank)) {
    absent_ &= ~bit(rank);
  }
}

/// Notes that `rank` is absent: the times of calls that wait for it teach nothing.
void Engine::note_absent(Rank rank) {
  absent_ |= bit(rank);
  learnt_.bounds.absent(rank);
  for (const auto& operation : running_) operation->rank_absent(rank);
}

void Engine::fail_all(Time now, const Error& error) {
  broken_ = CallEnding{.status = Status::failed, .blamed = {}, .detail = error.message};
  unbegun_.end_numbering();
  record_port_failed(options_.endpoint.recorder, now);
  for (const auto& operation : running_) {
    operation->end(Status::failed, error.message, now);
    port_.drop_unsent(lender_of(operation->handle()));
    while (!operation->complete(now)) operation->work().run_all();
    hand_back(*operation, options_.endpoint.recorder, now);
  }
  running_.clear();
  unbegun_.end_all(*broken_, now);
  unbegun_.forget();
}

}  // namespace tarpon
