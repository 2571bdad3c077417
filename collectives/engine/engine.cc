#include "collectives/engine/engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "collectives/engine/bounded/tar_call.h"
#include "collectives/engine/call/work_rate.h"
#include "collectives/engine/coded/coded_calls.h"
#include "collectives/engine/coded/encoding.h"
#include "collectives/engine/exact/scheduled_call.h"
#include "collectives/engine/flight_events.h"
#include "collectives/engine/kernels/reduce.h"
#include "collectives/engine/report/peer_report.h"
#include "collectives/rank_list.h"
#include "transport/rank_mask.h"

namespace tarpon {

Engine::Engine(const EngineOptions& options, Port& port)
    : options_(options),
      port_(port),
      endpoint_(options.endpoint, port.capabilities()),
      bounds_(std::make_unique<Bounds>(BoundsOptions{.world_size = options.endpoint.world_size,
                                                     .loss_target = options.mechanisms.loss_target,
                                                     .x_loop = options.mechanisms.x_loop})),
      losses_(options.endpoint.world_size),
      rescaling_(rescaling_by(options.mechanisms.rescale)),
      coded_calls_(std::make_unique<CodedCalls>(
          CodedCalls::Setting{.encoding = {.world = options.endpoint.world_size,
                                           .slot_bytes = options.slot_bytes,
                                           .seed = std::uint64_t{options.endpoint.job} << 16 |
                                                   options.endpoint.communicator,
                                           .piece_bytes = options.piece_bytes},
                              .mechanisms = options.mechanisms,
                              .memory = options.call_memory})),
      partial_buffers_(std::make_unique<FloatBufferPool>(options.call_memory)),
      work_rates_{std::make_unique<WorkRate>(), std::make_unique<WorkRate>()},
      missed_(options.endpoint.remembered_tags),
      facts_(options.endpoint.world_size) {}

Engine::~Engine() = default;

// The input is searched before the first packet, not slot by slot as it is sent: packets sent
// before the find would not be marked, and a rank that received only those would end with a finite
// result. The search is a separate pass over the input: 0.01 ns a byte from L1, 0.03 from the
// last-level cache (25 MiB: 0.9 ms), 0.14 from memory (AVX-512, one Sapphire Rapids core of a
// virtual machine; half of memcpy's time). `--without nonfinite` turns it off.
bool Engine::looks_nonfinite(const AllreduceArguments& arguments) const {
  if (!options_.mechanisms.nonfinite || options_.endpoint.world_size == 1) return false;
  if (arguments.follows || !may_run_bounded(arguments) || refusal(arguments)) return false;
  // Encoding finds NaN and infinity as well.
  if (options_.mechanisms.codec == CodecRule::on && arguments.type == DataType::float32) {
    return false;
  }
  return !reduce_kernels(arguments.type, arguments.function)
              .finite(arguments.input, arguments.count);
}

void Engine::set_loss_target(double share) {
  bounds_->set_loss_target(share);
}

std::shared_ptr<PendingCall> Engine::submit(const AllreduceArguments& arguments, Time now) {
  return submit(arguments, looks_nonfinite(arguments), now, now);
}

std::shared_ptr<PendingCall> Engine::submit(const AllreduceArguments& arguments, bool nonfinite,
                                            Time asked, Time now, bool held) noexcept {
  if (outstanding() == 0) driven_ = now;
  std::optional<Refusal> refused = refusal(arguments);
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
  if (broken_ || aborted_) {
    call->report.operation = next_unbegun(arguments.tag);
    end_unbegun(*call, broken_ ? *broken_ : *aborted_, asked, now);
    return call;
  }
  if (options_.endpoint.world_size == 1) {
    end_alone(*call, refused);
    return call;
  }
  call->report.operation = next_number(arguments.tag);
  if (refused) {
    note_refused(*call, *refused, asked, now);
  } else {
    coded_calls_->note_submitted(arguments, outstanding());
  }
  const bool queued = std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) {
    return waiting.call->arguments.tag == arguments.tag;
  });
  held = held && !refused;
  const Waiting next{.call = call, .submitted = asked, .over = refused.has_value(), .held = held};
  if (queued || held || !endpoint_.can_submit(arguments.tag)) {
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

/// Starts the call, or ends it as refused; it takes its number in both cases. Returns false if its
/// bucket is still being encoded.
bool Engine::start(const Waiting& next, Time now) noexcept {
  std::optional<Refusal> refused;
  if (endpoint_.is_lost(next.call->arguments.tag)) {
    refused = Refusal{AbortReason::tag_forgotten,
                      fmt::format("allreduce: this rank no longer remembers the numbers of tag {}: "
                                  "use a new tag",
                                  next.call->arguments.tag)};
  } else if (next.call->arguments.follows &&
             endpoint_.ended_elsewhere(next.call->arguments.tag, next.call->report.operation) ==
                 0) {
    refused =
        Refusal{AbortReason::exception,
                "allreduce: the ranks that had ended the call are gone, so there is no result "
                "to follow"};
  } else {
    try {
      const std::uint32_t number = endpoint_.next_number(next.call->arguments.tag);
      if (!coded_calls_->may_begin(next.call, number, next.submitted, now)) return false;
      open(next, now);
    } catch (const std::bad_alloc&) {
      refused = no_memory();
    } catch (const std::exception& error) {
      refused = exception_inside(error);
    }
  }
  if (refused) {
    coded_calls_->take(*next.call);
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
                               .rescaling = &rescaling_,
                               .memory = options_.call_memory,
                               .partial_buffers = partial_buffers_.get(),
                               .piece_bytes = options_.piece_bytes,
                               .epoch = coded_calls_->epochs().at(tag, endpoint_.next_number(tag)),
                               .absent = absent_,
                               .open = static_cast<std::uint32_t>(running_.size() + 1),
                               .behind = next.behind};
  running_.reserve(running_.size() + 1);
  const std::unique_ptr<Encoding> encoding = coded_calls_->take(*next.call);
  setting.began = encoding ? encoding->began() : now;
  setting.work_rate = work_rates_[encoding ? 1 : 0].get();
  const AllreduceArguments& arguments = next.call->arguments;
  // A call that calibrates a bound runs like a bounded call, because its time stands for theirs.
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
    const Waiting& next = waiting_[i];
    if (!first || !endpoint_.can_submit(tag) || (next.held && !next.over)) {
      ++i;
      continue;
    }
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
    const bool encoding = coded_calls_->encodes(*waiting.call);
    report.late_ranks = waiting.behind;
    for (const auto& operation : running_) {
      if (encoding || operation->over() || operation->call().arguments.tag != report.tag) continue;
      report.late_ranks = operation->late_ranks();
      break;
    }
    report.status = Status::peer_late;
    report.detail = encoding ? "its bucket was still being encoded at its deadline"
                    : waiting.held
                        ? "the ranks were still exchanging measurements for its shares"
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
  // The first rank whose deadline passes ends an exact call on all ranks. It blames the ranks that
  // were late in the calls before.
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
  // The result lacks the data of that epoch and is partial. This rank joins the epoch with its next
  // operation.
  const Report& report = operation.call().report;
  coded_calls_->epochs().seen(
      report.tag, report.operation + 1,
      {event.epoch.number, event.epoch.form == static_cast<std::uint8_t>(Codec::hadamard)});
}

/// Whether the port holds no packet of `operation`, which is over. Drops the packets that the port
/// could not send by its deadline; those of other operations stay in the port.
bool Engine::port_released(const RunningCall& operation, Time now) {
  const Lender lender = lender_of(operation.handle());
  if (!port_.holds(lender)) return true;
  if (now < operation.next_deadline()) return false;
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
    coded_calls_->note_ended(operation->call());
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

/// Wishes the eviction of ranks for which there was no room to retain results for as long as a
/// deadline.
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

void Engine::send(const std::vector<AgreementPacket>& packets) {
  for (const AgreementPacket& packet : packets) endpoint_.send(packet);
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
  // A packet that waits in the port may be the one that a timer would ask for again, so packets
  // come first. But an endless stream of packets must not delay a bound.
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

}  // namespace tarpon
