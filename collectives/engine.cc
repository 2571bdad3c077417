#include "collectives/engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "collectives/executor/allreduce_operation.h"
#include "collectives/executor/peer_report.h"
#include "collectives/flight_events.h"
#include "collectives/reduce.h"

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
  }
  return "?";
}

Engine::Engine(const EngineOptions& options, Port& port)
    : options_(options),
      port_(port),
      endpoint_(options.endpoint, port.capabilities()),
      bounds_(options.endpoint.world_size, options.mechanisms.x_loop),
      losses_(options.endpoint.world_size),
      epochs_(options.mechanisms.codec == CodecRule::on),
      rooms_(std::make_unique<CodedRooms>()) {}

Engine::~Engine() = default;

Result<void> Engine::check(const AllreduceArguments& arguments) const {
  if (arguments.count > 0 && (arguments.input == nullptr || arguments.output == nullptr)) {
    return fail(Error::Code::invalid_argument,
                fmt::format("allreduce of {} elements: the buffer is null", arguments.count));
  }
  if (arguments.deadline <= Duration::zero()) {
    return fail(Error::Code::invalid_argument, "allreduce: the deadline must be positive");
  }
  if (arguments.bound && *arguments.bound <= Duration::zero()) {
    return fail(Error::Code::invalid_argument, "allreduce: the bound must be positive");
  }
  // Slots are numbered with 32 bits, the highest numbers have meanings of their own.
  const std::uint64_t most =
      std::uint64_t{0xfffffff0} * options_.slot_bytes / element_bytes(arguments.type);
  if (arguments.count > most) {
    return fail(
        Error::Code::invalid_argument,
        fmt::format("allreduce of {} elements: at most {} in one call with {} bytes a slot; "
                    "split it",
                    arguments.count, most, options_.slot_bytes));
  }
  return {};
}

bool Engine::looks_nonfinite(const AllreduceArguments& arguments) const {
  if (!options_.mechanisms.nonfinite || options_.endpoint.world_size == 1) return false;
  if (!may_run_bounded(arguments) || !check(arguments)) return false;
  // Coding finds them as well.
  if (options_.mechanisms.codec == CodecRule::on && arguments.type == DataType::float32) {
    return false;
  }
  return !reduce_kernels(arguments.type, arguments.function)
              .finite(arguments.input, arguments.count);
}

Result<std::shared_ptr<PendingCall>> Engine::submit(const AllreduceArguments& arguments, Time now) {
  return submit(arguments, looks_nonfinite(arguments), now);
}

Result<std::shared_ptr<PendingCall>> Engine::submit(const AllreduceArguments& arguments,
                                                    bool nonfinite, Time now) {
  if (const auto good = check(arguments); !good) return fail(good.error());
  auto call = std::make_shared<PendingCall>();
  call->arguments = arguments;
  call->nonfinite = nonfinite;
  call->report.tag = arguments.tag;
  if (broken_ || aborted_) {
    call->report.operation = lane_of(arguments.tag).next;
    end_unbegun(*call, broken_ ? *broken_ : *aborted_, now, now);
    return call;
  }
  if (options_.endpoint.world_size == 1) {
    if (arguments.output != arguments.input && arguments.count > 0) {
      std::memcpy(arguments.output, arguments.input,
                  arguments.count * element_bytes(arguments.type));
    }
    call->report.stage = CallStage::result;
    call->report.peers.resize(1);
    call->report.peers[0].contributors = 1;
    call->done = true;
    return call;
  }
  const bool queued = std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) {
    return waiting.call->arguments.tag == arguments.tag;
  });
  if (queued || !endpoint_.can_submit(arguments.tag)) {
    call->report.operation = next_queued(arguments.tag);
    waiting_.push_back({call, now});
    next_expiry_ = std::min(next_expiry_, waiting_.back().deadline());
  } else {
    start({call, now}, now);
  }
  return call;
}

void Engine::start(Waiting next, Time now) {
  const EndpointOptions& endpoint = options_.endpoint;
  const std::uint32_t tag = next.call->arguments.tag;
  AllreduceOperation::Setting setting{
      .rank = endpoint.rank,
      .world = endpoint.world_size,
      .slot_bytes = options_.slot_bytes,
      .mechanisms = options_.mechanisms,
      .bounds = &bounds_,
      .losses = &losses_,
      .rooms = rooms_.get(),
      .epoch = epochs_.at(tag, endpoint_.next_number(tag)),
      .seed = std::uint64_t{endpoint.job} << 16 | endpoint.communicator,
      .absent = absent_,
      .behind = std::move(next.behind)};
  running_.push_back(std::make_unique<AllreduceOperation>(std::move(setting), std::move(next.call),
                                                          endpoint_, next.submitted, now));
  if (!deaths_.ranks.empty()) running_.back()->peers_died(deaths_, now);
  record_submitted(options_.endpoint.recorder, running_.back()->call(), next.submitted);
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
    Waiting next = std::move(waiting_[i]);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    if (next.call->done) {
      --expired_;
      pass_over(*next.call, now);
    } else {
      start(std::move(next), now);
    }
  }
}

/// Ends queued calls at their deadlines. They stay in the queue: their numbers have to be taken in
/// order, or later calls would no longer match those of the peers.
void Engine::expire_waiting(Time now) {
  if (now < next_expiry_) return;
  next_expiry_ = kNever;
  for (Waiting& waiting : waiting_) {
    if (waiting.call->done) continue;
    if (now < waiting.deadline()) {
      next_expiry_ = std::min(next_expiry_, waiting.deadline());
      continue;
    }
    Report& report = waiting.call->report;
    report.late_ranks = waiting.behind;
    for (const auto& operation : running_) {
      if (operation->over() || operation->call().arguments.tag != report.tag) continue;
      report.late_ranks = operation->late_ranks();
      break;
    }
    report.status = Status::peer_late;
    report.detail = fmt::format("queued behind unfinished calls of tag {}", report.tag);
    if (!report.late_ranks.empty()) {
      report.detail += fmt::format(": no answer from rank {}", fmt::join(report.late_ranks, ", "));
    }
    note_unbegun(report, waiting.submitted, now);
    waiting.call->done = true;
    ++expired_;
  }
}

/// Takes the next number of its tag for a call that is over already, and tells the peers.
void Engine::pass_over(const PendingCall& call, Time now) {
  OperationSpec nothing;
  nothing.tag = call.arguments.tag;
  nothing.slot_bytes = options_.slot_bytes;
  nothing.stages.resize(1);
  record_ended(options_.endpoint.recorder, call.report, now);
  const std::uint32_t reason =
      call.report.status == Status::aborted ? TARPON_ABORT_GIVEN_UP : TARPON_ABORT_EXPIRED;
  endpoint_.abort(endpoint_.submit(nothing, now), reason, options_.endpoint.rank);
}

void Engine::handle_events(Time now) {
  Event event;
  while (endpoint_.poll_event(event)) {
    for (const auto& operation : running_) {
      if (operation->over() || !(operation->handle() == event.operation)) continue;
      handle_event(*operation, event, now);
      break;
    }
  }
}

void Engine::handle_event(AllreduceOperation& operation, const Event& event, Time now) {
  if (event.kind != Event::Kind::epoch) return operation.on_event(event, now);
  // A result without what comes in that epoch is partial; from the next one on this rank is in it.
  const Report& report = operation.call().report;
  epochs_.seen(
      report.tag, report.operation + 1,
      {event.epoch.number, event.epoch.codec == static_cast<std::uint8_t>(Codec::hadamard)});
}

void Engine::step(Time now) {
  bool ended = false;
  for (const auto& operation : running_) ended |= operation->step(now);
  if (!ended) return;
  // Until the port has let go of the caller's buffers, the call is not over.
  if (port_.unsent() > 0) {
    const bool patient =
        std::none_of(running_.begin(), running_.end(), [now](const auto& operation) {
          return operation->over() && now >= operation->release_by();
        });
    if (patient) return;
    port_.drop_unsent();
  }
  std::erase_if(running_, [this, now](const std::unique_ptr<AllreduceOperation>& operation) {
    if (!operation->over()) return false;
    record_ended(options_.endpoint.recorder, operation->call().report, now);
    const Report& report = operation->call().report;
    for (const Rank rank : report.late_ranks) lacked_ |= 1ull << rank;
    wish_ |= operation->eviction_wish();
    note_loss(report);
    const std::uint32_t tag = operation->call().arguments.tag;
    for (Waiting& waiting : waiting_) {
      const bool held = report.status == Status::peer_late && waiting.call->arguments.tag == tag;
      if (held) waiting.behind = report.late_ranks;
    }
    operation->release();  // from here on the report is the caller's
    port_.publish(tag, endpoint_.lowest_open(tag));
    return true;
  });
  start_waiting(now);
}

/// What the network lost, not what a late rank did not send.
void Engine::note_loss(const Report& report) {
  const bool ended = report.status == Status::complete || report.status == Status::partial;
  if (options_.mechanisms.codec != CodecRule::automatic || report.mode != Mode::bounded) return;
  if (ended && report.late_ranks.empty() && report.void_shards.empty()) {
    losses_told_.push_back(report.lost_fraction);
  }
}

bool Engine::transmit(Time now) {
  // A call that is over waits for the port to let go of its buffers: no new loans until then.
  const bool settling =
      port_.unsent() > 0 && std::any_of(running_.begin(), running_.end(),
                                        [](const auto& operation) { return operation->over(); });
  if (settling) return false;
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

bool Engine::progress(Time now) {
  if (broken_) return false;
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
  const bool sent = transmit(now);
  return !packets.empty() || sent;
}

Time Engine::next_deadline() const {
  if (broken_) return kNever;
  Time next = std::min(endpoint_.next_deadline(), next_expiry_);
  for (const auto& operation : running_) {
    // One that is over waits for the port alone.
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

/// Where no later call needs a number any more.
void Engine::forget_waiting() {
  waiting_.clear();
  expired_ = 0;
}

void Engine::peer_dead(Rank rank, const std::string& evidence, Time now) {
  leave_out(rank, true, fmt::format("rank {} is dead: {}", rank, evidence), now);
}

void Engine::evicted(Rank rank, const std::string& reason, Time now) {
  if (rank == options_.endpoint.rank) return end_by_eviction(reason, now);
  leave_out(rank, false, fmt::format("rank {} is evicted: {}", rank, reason), now);
}

/// Nobody is told: those who do not know yet of the eviction need not end their calls for it.
void Engine::end_by_eviction(const std::string& reason, Time now) {
  if (aborted_) return;
  const Rank self = options_.endpoint.rank;
  aborted_ = Ending{Status::evicted,
                    {self},
                    fmt::format("this rank is evicted: {}; the others go on without it, and it "
                                "misses this operation and all later ones: rejoin(), then resync()",
                                reason)};
  handle_events(now);  // a result that is whole is one
  for (const auto& operation : running_) {
    operation->evicted(aborted_->detail, now);
    Report& report = operation->call().report;
    if (report.status == Status::evicted) note_missed(report);
  }
  end_waiting(*aborted_, now);
  forget_waiting();
}

void Engine::leave_out(Rank rank, bool dead, const std::string& why, Time now) {
  if (rank == options_.endpoint.rank || rank >= options_.endpoint.world_size) return;
  const auto place = std::lower_bound(deaths_.ranks.begin(), deaths_.ranks.end(), rank);
  const bool known = place != deaths_.ranks.end() && *place == rank;
  if (known && (!dead || (deaths_.dead >> rank & 1) != 0)) return;
  if (!known) deaths_.ranks.insert(place, rank);
  if (dead) deaths_.dead |= 1ull << rank;
  deaths_.text += (deaths_.text.empty() ? "" : "; ") + why;
  // First what has been received: a result that is whole needs nobody. And exact operations end
  // before the endpoint closes their stages without that rank.
  handle_events(now);
  note_absent(rank);
  for (const auto& operation : running_) operation->peers_died(deaths_, now);
  endpoint_.peer_dead(rank, now);
}

void Engine::peer_silent(Rank rank, bool silent, Time now) {
  if (rank >= options_.endpoint.world_size) return;
  if (silent) {
    note_absent(rank);
  } else if (!std::binary_search(deaths_.ranks.begin(), deaths_.ranks.end(), rank)) {
    absent_ &= ~(1ull << rank);
  }
  endpoint_.peer_silent(rank, silent, now);
}

/// What calls took on its account is not what they take.
void Engine::note_absent(Rank rank) {
  absent_ |= 1ull << rank;
  bounds_.absent(rank);
  for (const auto& operation : running_) operation->rank_absent(rank);
}

std::uint64_t Engine::take_lacked(bool waiting) {
  for (const auto& operation : running_) {
    if (!waiting || operation->over()) continue;
    for (const Rank rank : operation->absent_ranks()) lacked_ |= 1ull << rank;
  }
  return std::exchange(lacked_, 0);
}

void Engine::fail_all(Time now, const Error& error) {
  broken_ = Ending{Status::failed, {}, error.message};
  for (const auto& operation : running_) {
    operation->end(Status::failed, error.message, now);
    record_ended(options_.endpoint.recorder, operation->call().report, now);
    operation->release();
  }
  running_.clear();
  end_waiting(*broken_, now);
  forget_waiting();
}

}  // namespace tarpon
