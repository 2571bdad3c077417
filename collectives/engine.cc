#include "collectives/engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "collectives/executor/allreduce_operation.h"

namespace tarpon {

std::string_view name(Status status) {
  switch (status) {
    case Status::complete:
      return "complete";
    case Status::partial:
      return "partial";
    case Status::peer_late:
      return "peer_late";
    case Status::mismatch:
      return "mismatch";
    case Status::aborted:
      return "aborted";
    case Status::failed:
      return "failed";
  }
  return "?";
}

Engine::Engine(const EngineOptions& options, Port& port)
    : options_(options), port_(port), endpoint_(options.endpoint, port.capabilities()) {}

Engine::~Engine() = default;

Result<std::shared_ptr<PendingCall>> Engine::submit(const AllreduceArguments& arguments, Time now) {
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
  auto call = std::make_shared<PendingCall>();
  call->arguments = arguments;
  call->report.tag = arguments.tag;
  if (broken_) {
    call->report.status = Status::failed;
    call->report.detail = broken_->message;
    call->done = true;
    return call;
  }
  if (options_.endpoint.world_size == 1) {
    if (arguments.output != arguments.input && arguments.count > 0) {
      std::memcpy(arguments.output, arguments.input,
                  arguments.count * element_bytes(arguments.type));
    }
    call->done = true;
    return call;
  }
  const bool queued = std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) {
    return waiting.call->arguments.tag == arguments.tag;
  });
  if (queued || !endpoint_.can_submit(arguments.tag)) {
    waiting_.push_back({call, now});
    next_expiry_ = std::min(next_expiry_, waiting_.back().deadline());
  } else {
    start(call, now, now);
  }
  return call;
}

void Engine::start(std::shared_ptr<PendingCall> call, Time submitted, Time now) {
  const EndpointOptions& endpoint = options_.endpoint;
  running_.push_back(std::make_unique<AllreduceOperation>(
      AllreduceOperation::Setting{endpoint.rank, endpoint.world_size, options_.slot_bytes},
      std::move(call), endpoint_, submitted, now));
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
      pass_over(tag, now);
    } else {
      start(std::move(next.call), next.submitted, now);
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
    for (const auto& operation : running_) {
      if (operation->over() || operation->call().arguments.tag != report.tag) continue;
      report.late_ranks = operation->absent_ranks();
      break;
    }
    report.status = Status::peer_late;
    report.detail = fmt::format("queued behind unfinished calls of tag {}: no answer from rank {}",
                                report.tag, fmt::join(report.late_ranks, ", "));
    report.elapsed = now - waiting.submitted;
    waiting.call->done = true;
    ++expired_;
  }
}

/// Takes the next number of `tag` for a call that is over already, and tells the peers.
void Engine::pass_over(std::uint32_t tag, Time now) {
  OperationSpec nothing;
  nothing.tag = tag;
  nothing.slot_bytes = options_.slot_bytes;
  nothing.stages.resize(1);
  endpoint_.abort(endpoint_.submit(nothing, now), TARPON_ABORT_EXPIRED);
}

void Engine::handle_events(Time now) {
  Event event;
  while (endpoint_.poll_event(event)) {
    for (const auto& operation : running_) {
      if (operation->over() || !(operation->handle() == event.operation)) continue;
      operation->on_event(event, now);
      break;
    }
  }
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
  std::erase_if(running_, [this](const std::unique_ptr<AllreduceOperation>& operation) {
    if (!operation->over()) return false;
    operation->release();
    const std::uint32_t tag = operation->call().arguments.tag;
    port_.publish(tag, endpoint_.lowest_open(tag));
    return true;
  });
  start_waiting(now);
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

void Engine::abort(Time now) {
  for (const auto& operation : running_) operation->give_up(now);
  for (Waiting& waiting : waiting_) {
    if (waiting.call->done) continue;
    waiting.call->report.status = Status::aborted;
    waiting.call->report.blamed = {options_.endpoint.rank};
    waiting.call->report.detail = "given up by this rank";
    waiting.call->done = true;
  }
  waiting_.clear();
  expired_ = 0;
}

void Engine::fail_all(Time now, const Error& error) {
  broken_ = error;
  for (const auto& operation : running_) {
    operation->end(Status::failed, error.message, now);
    operation->release();
  }
  running_.clear();
  for (Waiting& waiting : waiting_) {
    if (waiting.call->done) continue;
    waiting.call->report.status = Status::failed;
    waiting.call->report.detail = error.message;
    waiting.call->done = true;
  }
  waiting_.clear();
  expired_ = 0;
}

}  // namespace tarpon
