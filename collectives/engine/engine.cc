#include "collectives/engine/engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "collectives/engine/encoding.h"
#include "collectives/engine/flight_events.h"
#include "collectives/engine/kernels/reduce.h"
#include "collectives/engine/peer_report.h"
#include "collectives/engine/scheduled_call.h"
#include "collectives/engine/tar_call.h"
#include "collectives/engine/work_rate.h"
#include "collectives/rank_list.h"
#include "transport/rank_mask.h"

namespace tarpon {

std::string_view name(Status status) {
  switch (status) {
    case Status::complete:
      return "complete";
    case Status::partial:
      return "partial";
    case Status::late_self:
      return "late_self";
    case Status::peer_late:
      return "peer_late";
    case Status::mismatch:
      return "mismatch";
    case Status::aborted:
      return "aborted";
    case Status::failed:
      return "failed";
    case Status::peer_dead:
      return "peer_dead";
    case Status::evicted:
      return "evicted";
    case Status::peer_left:
      return "peer_left";
  }
  return "?";
}

Engine::Engine(const EngineOptions& options, Port& port)
    : options_(options),
      port_(port),
      endpoint_(options.endpoint, port.capabilities()),
      bounds_(std::make_unique<Bounds>(BoundsOptions{.world_size = options.endpoint.world_size,
                                                     .loss_target = options.mechanisms.loss_target,
                                                     .x_loop = options.mechanisms.x_loop})),
      losses_(options.endpoint.world_size),
      epochs_(options.mechanisms.always_coded()),
      coded_buffers_(std::make_unique<FloatBufferPool>(options.call_memory)),
      partial_buffers_(std::make_unique<FloatBufferPool>(options.call_memory)),
      work_rates_{std::make_unique<WorkRate>(), std::make_unique<WorkRate>()},
      coded_lately_(options.mechanisms.always_coded()),
      unbegun_(options.endpoint.remembered_tags),
      first_missed_(options.endpoint.remembered_tags),
      facts_(options.endpoint.world_size) {}

Engine::~Engine() = default;

std::string_view name(AbortReason reason) {
  switch (reason) {
    case AbortReason::given_up:
      return "given_up";
    case AbortReason::mismatch:
      return "mismatch";
    case AbortReason::expired:
      return "expired";
    case AbortReason::late:
      return "late";
    case AbortReason::argument:
      return "argument";
    case AbortReason::deadline:
      return "deadline";
    case AbortReason::memory:
      return "memory";
    case AbortReason::exception:
      return "exception";
    case AbortReason::tag_forgotten:
      return "tag_forgotten";
  }
  return "?";
}

bool Engine::looks_nonfinite(const AllreduceArguments& arguments) const {
  if (!options_.mechanisms.nonfinite || options_.endpoint.world_size == 1) return false;
  if (!may_run_bounded(arguments) || refusal(arguments)) return false;
  // Coding finds them as well.
  if (options_.mechanisms.always_coded() && arguments.type == DataType::float32) {
    return false;
  }
  return !reduce_kernels(arguments.type, arguments.function)
              .finite(arguments.input, arguments.count);
}

std::shared_ptr<PendingCall> Engine::submit(const AllreduceArguments& arguments, Time now) {
  return submit(arguments, looks_nonfinite(arguments), now, now);
}

std::shared_ptr<PendingCall> Engine::submit(const AllreduceArguments& arguments, bool nonfinite,
                                            Time asked, Time now) noexcept {
  if (outstanding() == 0) driven_ = now;
  std::optional<Refusal> refused = refusal(arguments);
  std::shared_ptr<PendingCall> call;
  try {
    call = std::allocate_shared<PendingCall>(
        std::pmr::polymorphic_allocator<PendingCall>(options_.call_memory));
  } catch (const std::bad_alloc&) {
    call = std::make_shared<PendingCall>();  // to say so
    refused = no_memory();
  } catch (const std::exception& error) {
    call = std::make_shared<PendingCall>();
    refused = exception_inside(error);
  }
  call->arguments = arguments;
  call->nonfinite = nonfinite;
  call->report.tag = arguments.tag;
  if (broken_ || aborted_) {
    call->report.operation = next_unbegun(arguments.tag);
    end_unbegun(*call, broken_ ? *broken_ : *aborted_, asked, now);
    return call;
  }
  if (options_.endpoint.world_size == 1) {
    end_alone(*call, refused);
    return call;
  }
  call->report.operation = next_queued(arguments.tag);
  if (refused) {
    note_refused(*call, *refused, asked, now);
  } else {
    note_call(arguments);
  }
  const bool queued = std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) {
    return waiting.call->arguments.tag == arguments.tag;
  });
  const Waiting next{.call = call, .submitted = asked, .over = refused.has_value()};
  if (queued || !endpoint_.can_submit(arguments.tag)) {
    waiting_.push_back(next);
    if (refused) {
      ++over_waiting_;
    } else {
      next_expiry_ = std::min(next_expiry_, next.deadline());
    }
  } else if (refused) {
    pass_over(*call, now);
  } else if (!start(next, now)) {
    waiting_.push_back(next);
    next_expiry_ = std::min(next_expiry_, next.deadline());
  }
  return call;
}

/// Takes the number of the call, whatever happens. False: not yet, its bucket is being encoded.
bool Engine::start(const Waiting& next, Time now) noexcept {
  std::optional<Refusal> refused;
  if (endpoint_.is_lost(next.call->arguments.tag)) {
    refused = Refusal{AbortReason::tag_forgotten,
                      fmt::format("allreduce: this rank no longer remembers the numbers of tag {}: "
                                  "use a new tag",
                                  next.call->arguments.tag)};
  } else {
    try {
      if (!encode(next, now)) return false;
      open(next, now);
    } catch (const std::bad_alloc&) {
      refused = no_memory();
    } catch (const std::exception& error) {
      refused = exception_inside(error);
    }
  }
  if (refused) {
    pop_encoding(*next.call);
    note_refused(*next.call, *refused, next.submitted, now);
    pass_over(*next.call, now);
    return true;
  }
  running_.back()->peers_gone(facts_, now);
  record_submitted(options_.endpoint.recorder, running_.back()->call(), next.submitted);
  return true;
}

/// Throws before the number is taken, or not at all.
void Engine::open(const Waiting& next, Time now) {
  const EndpointOptions& endpoint = options_.endpoint;
  const std::uint32_t tag = next.call->arguments.tag;
  RunningCall::Setting setting{.rank = endpoint.rank,
                               .world = endpoint.world_size,
                               .slot_bytes = options_.slot_bytes,
                               .mechanisms = options_.mechanisms,
                               .bounds = bounds_.get(),
                               .losses = &losses_,
                               .memory = options_.call_memory,
                               .partial_buffers = partial_buffers_.get(),
                               .piece_bytes = options_.piece_bytes,
                               .epoch = epochs_.at(tag, endpoint_.next_number(tag)),
                               .absent = absent_,
                               .open = static_cast<std::uint32_t>(running_.size() + 1),
                               .behind = next.behind};
  running_.reserve(running_.size() + 1);
  const std::unique_ptr<Encoding> encoding = pop_encoding(*next.call);
  setting.began = encoding ? encoding->began() : now;
  setting.work_rate = &work_rate(encoding != nullptr);
  const AllreduceArguments& arguments = next.call->arguments;
  // A call that calibrates a bound takes the way of bounded calls: its time stands for theirs.
  if (!may_run_bounded(arguments)) {
    running_.push_back(std::make_unique<ScheduledCall>(std::move(setting), next.call, endpoint_,
                                                       next.submitted, now));
    return;
  }
  running_.push_back(std::make_unique<TarCall>(std::move(setting), next.call,
                                               encoding ? encoding->release() : nullptr, endpoint_,
                                               next.submitted, now));
}

void Engine::start_waiting(Time now) {
  for (std::size_t i = 0; i < waiting_.size();) {
    const std::uint32_t tag = waiting_[i].call->arguments.tag;
    const bool first =
        std::none_of(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(i),
                     [tag](const Waiting& earlier) { return earlier.call->arguments.tag == tag; });
    if (!first || !endpoint_.can_submit(tag)) {
      ++i;
      continue;
    }
    const Waiting& next = waiting_[i];
    if (next.over) {
      --over_waiting_;
      pass_over(*next.call, now);
    } else if (!start(next, now)) {
      ++i;
      continue;
    }
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

/// Ends queued calls at their deadlines. They stay in the queue: their numbers have to be taken in
/// order, or later calls would no longer match those of the peers.
void Engine::expire_waiting(Time now) {
  if (now < next_expiry_) return;
  next_expiry_ = kNever;
  for (Waiting& waiting : waiting_) {
    if (waiting.over) continue;
    if (now < waiting.deadline()) {
      next_expiry_ = std::min(next_expiry_, waiting.deadline());
      continue;
    }
    Report& report = waiting.call->report;
    const bool encoding = std::any_of(
        encodings_.begin(), encodings_.end(),
        [&](const std::unique_ptr<Encoding>& one) { return one->call() == waiting.call; });
    report.late_ranks = waiting.behind;
    for (const auto& operation : running_) {
      if (encoding || operation->over() || operation->call().arguments.tag != report.tag) continue;
      report.late_ranks = operation->late_ranks();
      break;
    }
    report.status = Status::peer_late;
    report.detail = encoding ? "its bucket was still being encoded at its deadline"
                             : fmt::format("queued behind unfinished calls of tag {}", report.tag);
    if (!report.late_ranks.empty()) {
      report.detail += ": no answer from " + rendezvous::rank_list(report.late_ranks);
    }
    note_unbegun(report, waiting.submitted, now);
    end_before_start(*waiting.call);
    waiting.over = true;
    ++over_waiting_;
  }
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
  // An exact call is over for all at the deadline of one rank, for want of the ranks that the calls
  // before it lacked.
  if (reason == AbortReason::expired && !may_run_bounded(call.arguments) &&
      !call.report.late_ranks.empty()) {
    reason = AbortReason::late;
    ranks = mask_of(call.report.late_ranks);
  }
  endpoint_.abort(handle, static_cast<std::uint32_t>(reason), ranks);
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
      handle_event(*operation, event, now);
      break;
    }
  }
}

void Engine::handle_event(RunningCall& operation, const Event& event, Time now) {
  if (event.kind != Event::Kind::epoch) return operation.on_event(event, now);
  // A result without what comes in that epoch is partial; from the next one on this rank is in it.
  const Report& report = operation.call().report;
  epochs_.seen(
      report.tag, report.operation + 1,
      {event.epoch.number, event.epoch.form == static_cast<std::uint8_t>(Codec::hadamard)});
}

/// Whether the port holds no packet of `operation`, which is over. Drops the packets that the port
/// could not send by release_by(); those of other operations stay in the port.
bool Engine::port_released(const RunningCall& operation, Time now) {
  const Lender lender = lender_of(operation.handle());
  if (!port_.holds(lender)) return true;
  if (now < operation.release_by()) return false;
  port_.drop_unsent(lender);
  return true;
}

void Engine::step(Time now) {
  bool ended = false;
  for (const auto& operation : running_) ended |= operation->step(now);
  if (!ended) return;
  // A call is done only when the port points into none of its buffers.
  std::erase_if(running_, [this, now](const std::unique_ptr<RunningCall>& operation) {
    if (!operation->over() || !port_released(*operation, now)) return false;
    if (!operation->complete(now)) return false;
    record_ended(options_.endpoint.recorder, operation->call().report, now);
    const Report& report = operation->call().report;
    note_held_back(*operation, now);
    note_codec(report);
    note_work(*operation, now);
    const std::uint32_t tag = operation->call().arguments.tag;
    for (Waiting& waiting : waiting_) {
      const bool held = report.status == Status::peer_late && waiting.call->arguments.tag == tag;
      if (held) waiting.behind = report.late_ranks;
    }
    operation->release(now);  // from here on the report is the caller's
    port_.publish(tag, endpoint_.lowest_open(tag));
    return true;
  });
  start_waiting(now);
}

/// Ranks for which the retained results have had no room for a deadline long are to be evicted.
void Engine::note_held_back(const RunningCall& operation, Time now) {
  if (operation.call().report.mode != Mode::bounded) return;
  const std::uint64_t ranks = operation.held_back_by();
  if (ranks == 0) {
    held_back_since_ = kNever;
  } else if (held_back_since_ == kNever) {
    held_back_since_ = now;
  } else if (now - held_back_since_ >= operation.call().arguments.deadline) {
    wish_ |= ranks;
  }
}

/// The loss of the network, not what a late rank did not send. Time also of a rank that came late:
/// encoding may have made it late.
void Engine::note_codec(const Report& report) {
  const bool in_time = report.status == Status::complete || report.status == Status::partial;
  const bool ended = in_time || report.status == Status::late_self;
  const bool decides =
      options_.mechanisms.codec == CodecRule::automatic && !options_.mechanisms.always_coded();
  if (!decides || !ended || report.mode != Mode::bounded || report.bound <= Duration{}) return;
  CodecEvidence evidence{.lost = std::nullopt,
                         .coded = report.coded.has_value(),
                         .bound = report.bound,
                         .took = report.elapsed - std::max(report.clock_start, Duration{})};
  if (in_time && report.late_ranks.empty() && report.void_shards.empty()) {
    evidence.lost = report.lost_fraction;
  }
  codec_evidence_.push_back(evidence);
}

bool Engine::transmit(Time now) {
  constexpr std::size_t kTrains = 4;
  constexpr int kRounds = 2;
  bool moved = false;
  for (int round = 0; round < kRounds; ++round) {
    const std::size_t want = std::max<std::size_t>(16, port_.capabilities().burst * kTrains);
    const std::span<TxPacket> frames = port_.transmit_frames(want);
    if (frames.empty()) break;
    const std::size_t used = endpoint_.poll_transmit(now, frames);
    if (used == 0) break;
    port_.transmit(frames.first(used));
    moved = true;
  }
  return moved;
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

bool Engine::progress(Time now) noexcept {
  if (broken_) return false;
  note_pause(now);
  if (const std::optional<Error> error = port_.failure()) {
    fail_all(now, *error);
    return false;
  }
  const std::span<const RxPacket> packets = port_.receive(now);
  endpoint_.on_receive(now, packets);
  // What waits in the port may be just what a timer would ask for again. But packets that never end
  // must not hold back a bound.
  constexpr Duration kPatience = 1ms;
  if (packets.empty() || now - kPatience >= endpoint_.next_deadline()) endpoint_.on_timer(now);
  handle_events(now);
  step(now);
  expire_waiting(now);
  if (std::exchange(startable_, false)) start_waiting(now);
  const bool sent = transmit(now);
  return !packets.empty() || sent;
}

Time Engine::next_deadline() const {
  if (broken_) return kNever;
  Time next = std::min(endpoint_.next_deadline(), next_expiry_);
  for (const auto& operation : running_) {
    // One that is over waits for the port, then for its pieces.
    next = std::min(next, operation->over() ? operation->release_by() : operation->next_deadline());
  }
  return next;
}

FlightSnapshot Engine::snapshot(Time now) const {
  FlightSnapshot snapshot;
  snapshot.taken = now;
  snapshot.outstanding = static_cast<std::uint32_t>(outstanding());
  endpoint_.snapshot(snapshot.endpoint);
  return snapshot;
}

void Engine::abort(Time now) {
  give_up(options_.endpoint.rank, "given up by this rank", now);
}

void Engine::abort_for_good(Rank origin, const std::string& reason, Time now) {
  if (aborted_) return;
  const std::string who =
      origin == options_.endpoint.rank ? "this rank" : fmt::format("rank {}", origin);
  aborted_ = Ending{Status::aborted, {origin}, fmt::format("{} aborted: {}", who, reason)};
  give_up(origin, aborted_->detail, now);
  forget_waiting();
}

void Engine::give_up(Rank origin, const std::string& detail, Time now) {
  for (const auto& operation : running_) operation->give_up(origin, detail, now);
  end_waiting({Status::aborted, {origin}, detail}, now);
}

/// Where no later call needs a number any more. REQUIRES: the calls are over.
void Engine::forget_waiting() {
  waiting_.clear();
  over_waiting_ = 0;
}

/// The peers are not told: one that does not know of the exclusion yet need not end its calls.
void Engine::end_by_exclusion(const Fact& own, Time now) {
  if (aborted_) return;
  const Rank self = options_.endpoint.rank;
  aborted_ = Ending{
      Status::evicted,
      {self},
      fmt::format("this rank is {}: {}; the others go on without it, and it misses "
                  "this operation and all later ones: rejoin(), then resync()",
                  own.standing == Standing::dead ? "dead to the others" : "evicted", own.evidence)};
  handle_events(now);  // a result that is whole is one
  for (const auto& operation : running_) {
    operation->evicted(aborted_->detail, now);
    Report& report = operation->call().report;
    if (report.status == Status::evicted) note_missed(report);
  }
  end_waiting(*aborted_, now);
  forget_waiting();
}

void Engine::learn(const Fact& fact, Time now) {
  const Rank self = options_.endpoint.rank;
  if (fact.rank >= facts_.world_size() || !facts_.learn(fact)) return;
  record_standing(options_.endpoint.recorder, fact.rank, fact.standing, now);
  if (fact.rank == self) {
    if (fact.standing > Standing::left) end_by_exclusion(fact, now);
    return;
  }
  handle_events(now);  // a result that is whole needs nobody
  note_absent(fact.rank);
  if (facts_.of(fact.rank).serves) {
    endpoint_.peer_left(fact.rank, fact.next_numbers, now);
    leaving_.push_back({fact.rank, fact.next_numbers});
  } else {
    endpoint_.peer_dead(fact.rank, now);
    std::erase_if(leaving_, [&](const Leaving& one) { return one.rank == fact.rank; });
  }
  // Exact calls end before they hear that their stages have closed without that rank.
  for (const auto& operation : running_) operation->peers_gone(facts_, now);
}

std::vector<NextNumber> Engine::unpassed() const {
  if (broken_ || aborted_) return {};  // nothing is served any more
  std::vector<NextNumber> result = endpoint_.unpassed();
  for (const Waiting& waiting : waiting_) {  // the endpoint may not know its tag yet
    const std::uint32_t tag = waiting.call->arguments.tag;
    const bool known = std::any_of(result.begin(), result.end(),
                                   [tag](const NextNumber& one) { return one.tag == tag; });
    if (!known) result.push_back({tag, 0});
  }
  for (NextNumber& one : result) one.number = next_queued(one.tag);
  return result;
}

std::uint64_t Engine::take_passed() {
  std::uint64_t ranks = 0;
  std::erase_if(leaving_, [&](Leaving& one) {
    std::erase_if(one.next_numbers, [&](const NextNumber& next) {
      return broken_ || aborted_ ||
             static_cast<std::int32_t>(endpoint_.lowest_open(next.tag) - next.number) >= 0;
    });
    if (!one.next_numbers.empty()) return false;
    ranks |= bit(one.rank);
    return true;
  });
  return ranks;
}

std::uint64_t Engine::awaited() const {
  std::uint64_t ranks = 0;
  for (const auto& operation : running_) {
    if (operation->over() || operation->call().report.mode != Mode::exact) continue;
    ranks |= mask_of(operation->absent_ranks());
  }
  return ranks & endpoint_.silent();
}

void Engine::note_silent(Rank rank, bool silent, Time now) {
  record_silence(options_.endpoint.recorder, rank, silent, now);
  if (silent) {
    note_absent(rank);
  } else if (facts_.is_live(rank)) {
    absent_ &= ~bit(rank);
  }
}

/// What calls took on its account is not what they take.
void Engine::note_absent(Rank rank) {
  absent_ |= bit(rank);
  bounds_->absent(rank);
  for (const auto& operation : running_) operation->rank_absent(rank);
}

void Engine::fail_all(Time now, const Error& error) {
  broken_ = Ending{Status::failed, {}, error.message};
  record_port_failed(options_.endpoint.recorder, now);
  for (const auto& operation : running_) {
    operation->end(Status::failed, error.message, now);
    port_.drop_unsent(lender_of(operation->handle()));
    operation->complete_at_once(now);
    record_ended(options_.endpoint.recorder, operation->call().report, now);
    operation->release(now);
  }
  running_.clear();
  end_waiting(*broken_, now);
  forget_waiting();
}

}  // namespace tarpon
