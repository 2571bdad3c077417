#include "collectives/driver/job_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/driver/communicator_state.h"
#include "collectives/driver/successor.h"
#include "collectives/reserved_tags.h"
#include "transport/clock.h"
#include "transport/pair_tag.h"
#include "transport/rank_mask.h"
#include "xdp/base/system_limits.h"

namespace tarpon {
namespace {

/// Errors of a message that have no call at the other rank.
Result<void> check_message(const CollectiveArguments& message, std::uint32_t world, Rank rank) {
  const std::string_view what = name(message.collective);
  if (message.tag >= kMessageTags) {
    return fail(Error::Code::invalid_argument,
                fmt::format("{}: tag {}: give a tag below {}", what, message.tag, kMessageTags));
  }
  if (message.peer >= world) {
    return fail(Error::Code::invalid_argument,
                fmt::format("{}: peer {} of {} ranks: give one below "
                            "that",
                            what, message.peer, world));
  }
  if (message.peer != rank) return {};
  return fail(Error::Code::invalid_argument,
              fmt::format("{}: peer {} is this rank: copy the data instead", what, message.peer));
}

Result<void> check_tag(std::uint32_t tag) {
  if (tag < kFirstReservedTag) return {};
  return fail(Error::Code::invalid_argument,
              fmt::format("allreduce: tag {} belongs to the library: give a tag below {}", tag,
                          kFirstReservedTag));
}

/// Errors of arguments that give a call no tag.
Result<void> check(const CollectiveArguments& arguments, std::uint32_t world, Rank rank) {
  return is_message(arguments.collective) ? check_message(arguments, world, rank)
                                          : check_tag(arguments.tag);
}

/// A rank that has begun to send a message of `tag` to `rank`; nullopt: none.
std::optional<Rank> announced_sender(const Engine& engine, std::uint32_t tag, Rank rank) {
  for (const std::uint32_t begun : engine.endpoint().tags().begun_by_peers(kFirstPairTag)) {
    const std::optional<PairTag> pair = pair_tag(begun);
    // A receive that waits for its turn takes the message.
    const bool taken = engine.next_number(begun) != engine.endpoint().tags().next_number(begun);
    if (pair && pair->receiver == rank && pair->tag == tag && !taken) return pair->sender;
  }
  return std::nullopt;
}

Error not_behind(std::uint32_t tag) {
  return {Error::Code::unavailable, 0,
          fmt::format("allreduce: no other rank has ended the next call of tag {}, so there is no "
                      "result to follow: make the call with an input",
                      tag)};
}

/// The arguments of a call. Where memory for them is refused, a call that the engine refuses for
/// that reason.
CallArguments call_of(const AllreduceArguments& arguments) {
  try {
    return {arguments};
  } catch (const std::bad_alloc&) {
    return AllreduceArguments{.tag = arguments.tag, .refusal = AllreduceArguments::kNoMemory};
  }
}

CallArguments call_of(const CollectiveArguments& arguments, std::uint32_t world, Rank rank) {
  try {
    return {arguments, world, rank};
  } catch (const std::bad_alloc&) {
    return AllreduceArguments{.tag = operation_tag(arguments, rank),
                              .refusal = AllreduceArguments::kNoMemory};
  }
}

/// Driven::submit(). Where memory for it is refused, the call takes its number, and ends as aborted
/// on all ranks.
std::shared_ptr<PendingCall> submit_to(CommunicatorState& state, const CallArguments& arguments,
                                       bool waits) {
  try {
    return state.driven().submit(state.chosen(arguments), waits);
  } catch (const std::bad_alloc&) {
    // Its number is not taken yet: from there on nothing throws.
    return state.driven().submit(
        AllreduceArguments{.tag = arguments.tag, .refusal = AllreduceArguments::kNoMemory}, waits);
  }
}

Result<void> start_progress(Driver& driver) {
  try {
    driver.start_thread();
  } catch (const std::system_error& error) {
    return fail(start_error(error.code().value(), "cannot start the thread that makes progress"));
  }
  return {};
}

}  // namespace

JobCommunicator::JobCommunicator(std::shared_ptr<CommunicatorState> state)
    : state_(std::move(state)) {}

JobCommunicator::~JobCommunicator() {
  if (!state_->is_forked()) state_->stop();
}

Result<void> JobCommunicator::check_process() const {
  return state_->check_process();
}

Result<std::unique_ptr<JobCommunicator>> JobCommunicator::connect(
    const CommunicatorOptions& options, const PartOfGrid& part) {
  auto connection = connect_ranks(options, SlotSizing::by_path, part);
  if (!connection) return fail(connection.error());
  const EndpointOptions& self = connection->agreed.endpoint;
  auto flight = std::make_unique<Flight>(
      connection->options.flight, FlightIdentity{connection->control->public_id(), self.rank,
                                                 self.world_size, connection->agreed.slot_bytes});
  connection->agreed.endpoint.recorder = &flight->recorder();
  const bool threaded = options.progress_thread && connection->agreed.endpoint.world_size > 1;
  auto state =
      CommunicatorState::own(new CommunicatorState(std::move(*connection), std::move(flight)));
  std::unique_ptr<JobCommunicator> communicator(new JobCommunicator(std::move(state)));
  if (part.watcher) communicator->state_->driver().watch(part.watcher);
  if (!threaded) return communicator;
  if (auto started = start_progress(communicator->state_->driver()); !started) {
    return fail(started.error());
  }
  return communicator;
}

Rank JobCommunicator::rank() const {
  return state_->options().endpoint.rank;
}
std::uint32_t JobCommunicator::world_size() const {
  return state_->options().endpoint.world_size;
}
const std::vector<RankInfo>& JobCommunicator::ranks() const {
  return state_->ranks();
}
std::uint32_t JobCommunicator::slot_bytes() const {
  return state_->options().slot_bytes;
}
const std::string& JobCommunicator::shrunk_slots() const {
  return state_->job().shrunk_slots();
}

const std::string& JobCommunicator::multicast() const {
  return state_->job().multicast();
}
const std::string& JobCommunicator::hosts() const {
  return state_->hosts();
}
tarpon_integrity JobCommunicator::integrity() const {
  const bool sealed = state_->job().given().integrity == TARPON_INTEGRITY_SEALED;
  return sealed ? TARPON_INTEGRITY_SEALED : state_->options().endpoint.integrity;
}
ControlChannel& JobCommunicator::control() {
  return state_->job().control();
}
void JobCommunicator::record_flight() {
  if (!state_->is_forked()) state_->job().flight().request();
}
PortStatistics JobCommunicator::port_statistics() const {
  if (state_->is_forked()) return {};
  return state_->driver().port_statistics();
}
EndpointCounters JobCommunicator::counters() const {
  if (state_->is_forked()) return {};
  return state_->driven().look([](const Engine& engine) { return engine.endpoint().counters(); });
}
Shares JobCommunicator::learnt_shares(std::uint32_t tag) const {
  if (state_->is_forked()) return {};
  return state_->driven().learnt_shares(tag);
}
std::uint32_t JobCommunicator::flows() const {
  if (state_->is_forked()) return 0;
  return state_->driven().look(
      [](const Engine& engine) { return engine.endpoint().peers().flows(); });
}
void JobCommunicator::poll(Duration wait) {
  if (!state_->is_forked()) state_->driver().poll(wait);
}

Result<Report> JobCommunicator::allreduce(const AllreduceArguments& arguments) {
  if (auto free = check_tag(arguments.tag); !free) return fail(free.error());
  return run(call_of(arguments));
}

std::shared_ptr<PendingCall> JobCommunicator::submit(const CallArguments& arguments) {
  return submit_to(*state_, arguments, false);
}

std::optional<Refusal> JobCommunicator::refusal(const AllreduceArguments& arguments) const {
  return state_->driven().look(
      [&](const Engine& engine) { return engine.rules().refusal(call_of(arguments)); });
}

void JobCommunicator::leave_at_once() {
  state_->leave_at_once();
}

Result<void> JobCommunicator::set_loss_target(double share) {
  if (auto here = check_process(); !here) return here;
  if (!(share > 0 && share < 1)) {
    return fail(Error::Code::invalid_argument,
                fmt::format("loss target {}: give a share above 0 and below 1", share));
  }
  state_->driven().tell([&](Engine& engine) { engine.learnt().bounds.set_loss_target(share); });
  return {};
}

std::uint32_t JobCommunicator::behind(std::uint32_t tag) const {
  if (!check_process()) return 0;
  return state_->driven().behind(tag);
}

Result<Report> JobCommunicator::collective(const CollectiveArguments& arguments) {
  if (auto possible = check(arguments, world_size(), rank()); !possible)
    return fail(possible.error());
  return run(call_of(arguments, world_size(), rank()));
}

Result<AsyncAllreduce> JobCommunicator::collective_async(const CollectiveArguments& arguments) {
  if (auto possible = check(arguments, world_size(), rank()); !possible)
    return fail(possible.error());
  return start(call_of(arguments, world_size(), rank()));
}

Result<Rank> JobCommunicator::probe(std::uint32_t tag, Duration patience) {
  constexpr Duration kInterval = 200us;
  if (auto here = check_process(); !here) return fail(here.error());
  if (tag >= kMessageTags) {
    return fail(Error::Code::invalid_argument,
                fmt::format("probe: tag {}: give a tag below {}", tag, kMessageTags));
  }
  const Time until = after(monotonic_now(), patience);
  const Driver::AwaitsPackets awaits(state_->driver());
  state_->driver().poll(Duration::zero());
  while (!state_->is_aborted()) {
    const std::optional<Rank> sender = state_->driven().look(
        [&](const Engine& engine) { return announced_sender(engine, tag, rank()); });
    if (sender) return *sender;
    if (monotonic_now() >= until) {
      return fail(Error::Code::timeout,
                  fmt::format("no rank has sent a message of tag {} within {} s", tag,
                              std::chrono::duration<double>(patience).count()));
    }
    state_->driver().poll(kInterval);
    std::this_thread::sleep_for(kInterval);
  }
  return fail(Error::Code::unavailable,
              fmt::format("probe for a message of tag {}: the communicator was aborted", tag));
}

Result<Report> JobCommunicator::run(const CallArguments& arguments) {
  if (auto here = check_process(); !here) return fail(here.error());
  const auto call = submit_to(*state_, arguments, true);
  if (!call) return fail(not_behind(arguments.tag));
  state_->driver().wait(call);
  return call->report;  // a copy: the engine still reads that of a queued call that has ended
}

Result<AsyncAllreduce> JobCommunicator::allreduce_async(const AllreduceArguments& arguments) {
  if (auto free = check_tag(arguments.tag); !free) return fail(free.error());
  return start(call_of(arguments));
}

Result<AsyncAllreduce> JobCommunicator::start(const CallArguments& arguments) {
  if (auto here = check_process(); !here) return fail(here.error());
  auto call = submit_to(*state_, arguments, false);
  if (!call) return fail(not_behind(arguments.tag));
  return AsyncAllreduce(state_, std::move(call));
}

Result<void> JobCommunicator::close(Duration deadline) {
  if (auto here = check_process(); !here) return here;
  // The thread serves the peers meanwhile.
  if (world_size() > 1) {
    if (auto started = start_progress(state_->driver()); !started) return started;
  }
  return state_->leave(after(monotonic_now(), deadline));
}

void JobCommunicator::abort(const std::string& reason) {
  if (!state_->is_forked()) state_->abort(reason, true);
}

StepVerdict JobCommunicator::agree(std::uint64_t step, const LossReport& report,
                                   Duration deadline) {
  if (auto here = check_process(); !here) {
    return {.verdict = Verdict::halt, .step = step, .detail = here.error().message};
  }
  const Driver::AwaitsPackets awaits(state_->driver());
  LossReport own = report;
  own.late &= first_ranks(world_size());  // the caller's
  return state_->membership().agree(step, own, deadline);
}

Result<std::unique_ptr<Communicator>> JobCommunicator::regroup(Regroup what, Duration deadline) {
  if (auto here = check_process(); !here) return fail(here.error());
  const Time until = after(monotonic_now(), deadline);
  const bool shrinks = what == Regroup::shrink;
  if (state_->is_split()) {
    return fail(Error::Code::invalid_argument,
                fmt::format("{}: call it on the communicator that this one was split from",
                            shrinks ? "shrink" : "rejoin"));
  }
  state_->abort(shrinks ? "the communicator is shrunk" : "the ranks rejoin", false);
  auto successor = mesh::plan_successor(state_->membership(), what, state_->job().given(), rank(),
                                        state_->job().control().public_id(), until);
  if (!successor) return fail(successor.error());
  auto fresh = connect(successor->options);
  if (!fresh) return fail(fresh.error());
  (*fresh)->left_out_ = std::move(successor->left_out);
  state_->leave_when_stopped();
  return std::unique_ptr<Communicator>(*std::move(fresh));
}

Result<std::unique_ptr<Communicator>> JobCommunicator::split(const std::vector<Rank>& ranks,
                                                             std::uint16_t number,
                                                             Duration deadline) {
  if (auto here = check_process(); !here) return fail(here.error());
  const Time until = after(monotonic_now(), deadline);
  const auto refuse = [](std::string why) {
    return fail(Error::Code::invalid_argument, "split: " + std::move(why));
  };
  if (state_->is_split()) {
    return refuse("call it on the communicator that connect() made: this one is split itself");
  }
  std::uint64_t members = 0;
  for (const Rank one : ranks) {
    if (one >= world_size()) return refuse(fmt::format("rank {} of {}", one, world_size()));
    if ((members & bit(one)) != 0) return refuse(fmt::format("rank {} is given twice", one));
    members |= bit(one);
  }
  if ((members & bit(rank())) == 0) {
    return refuse(fmt::format("rank {} is not among the ranks that it gives", rank()));
  }
  if (number == 0) return refuse("number 0 is that of the job: give one from 1 on");
  auto part = CommunicatorState::split(*state_, number, ranks);
  if (!part) return refuse(fmt::format("number {} was given before: give a new one", number));
  if (auto opened = part->open(until); !opened) return fail(opened.error());
  return std::unique_ptr<Communicator>(new JobCommunicator(std::move(part)));
}

Result<std::unique_ptr<Communicator>> JobCommunicator::shrink(Duration deadline) {
  return regroup(Regroup::shrink, deadline);
}

Result<std::unique_ptr<Communicator>> JobCommunicator::rejoin(Duration deadline) {
  return regroup(Regroup::rejoin, deadline);
}

std::uint64_t JobCommunicator::rejoin_wanted() const {
  return state_->is_forked() ? 0 : state_->membership().rejoin_wanted();
}

}  // namespace tarpon
