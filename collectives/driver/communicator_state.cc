#include "collectives/driver/communicator_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "collectives/driver/call_choice.h"
#include "collectives/driver/host_sharing.h"
#include "collectives/engine/coded/coded_calls.h"
#include "collectives/reserved_tags.h"
#include "transport/clock.h"
#include "transport/rank_map.h"

namespace tarpon {
namespace {

std::vector<RankInfo> picked(const std::vector<RankInfo>& ranks, const std::vector<Rank>& members) {
  std::vector<RankInfo> found;
  found.reserve(members.size());
  for (const Rank rank : members) found.push_back(ranks[rank]);
  return found;
}

/// The options of rank `rank` of a communicator of `world_size` ranks that is split. It has no
/// flight recorder: records name tags and operations, not communicators.
EngineOptions split_options(EngineOptions options, std::uint16_t communicator, Rank rank,
                            std::size_t world_size) {
  options.endpoint.rank = rank;
  options.endpoint.world_size = static_cast<std::uint16_t>(world_size);
  options.endpoint.communicator = communicator;
  options.endpoint.recorder = nullptr;
  options.endpoint.multicast = false;  // other ranks are members of the job's group too
  return options;
}

}  // namespace

Job::Job(Connection& connection, std::unique_ptr<Flight> flight)
    : given_(std::move(connection.options)),
      flight_(std::move(flight)),
      control_(std::move(connection.control)),
      shrunk_slots_(std::move(connection.shrunk_slots)),
      multicast_(std::move(connection.multicast)),
      lines_(std::move(connection.port), connection.agreed.endpoint.world_size),
      driver_(lines_, *flight_) {}

CommunicatorState::CommunicatorState(Connection connection, std::unique_ptr<Flight> flight)
    : job_(std::make_shared<Job>(connection, std::move(flight))),
      ranks_(std::move(connection.ranks)),
      options_(connection.agreed),
      hosts_(std::move(connection.hosts)),
      host_(std::move(connection.host)),
      engine_(options_, job_->lines().first()),
      membership_(std::move(connection.membership)),
      driven_(job_->driver(), engine_, options_.endpoint, job_->lines().first(), *membership_) {
  if (host_) engine_.host_calls().share(host_->group());
  start();
}

std::shared_ptr<CommunicatorState> CommunicatorState::split(CommunicatorState& parent,
                                                            std::uint16_t communicator,
                                                            const std::vector<Rank>& members) {
  const Rank own = RankMap(members).own(parent.options_.endpoint.rank);
  EngineOptions options = split_options(parent.options_, communicator, own, members.size());
  auto membership = parent.membership_->split(
      membership_options(parent.job_->given(), options.endpoint), members);
  if (!membership) return nullptr;
  auto state = CommunicatorState::own(
      new CommunicatorState(parent, options, std::move(membership), members));
  state->offer_memory(parent);
  return state;
}

CommunicatorState::CommunicatorState(CommunicatorState& parent, const EngineOptions& options,
                                     std::unique_ptr<Membership> membership,
                                     const std::vector<Rank>& members)
    : job_(parent.job_),
      ranks_(picked(parent.ranks_, members)),
      options_(options),
      split_line_(std::in_place, job_->driver(), options_.endpoint.communicator, members),
      engine_(options_, **split_line_),
      membership_(std::move(membership)),
      driven_(job_->driver(), engine_, options_.endpoint, **split_line_, *membership_) {}

Result<void> CommunicatorState::check_process() const {
  if (!is_forked()) return {};
  return fail(Error::Code::unavailable,
              fmt::format("process {} was forked from process {}, whose communicator this is: use "
                          "it there, or connect in this process",
                          ::getpid(), process_));
}

Result<void> CommunicatorState::open(Time deadline) {
  auto opened = membership_->open(deadline);
  if (!opened) return opened;
  start();
  return sharing_ ? share_memory(deadline) : Result<void>();
}

/// Opens the door where this rank hands memory over. The others come once they know, by the mesh,
/// that this rank is there.
void CommunicatorState::offer_memory(const CommunicatorState& parent) {
  hosts::HostLayout layout = layout_of(ranks_);
  if (layout.count() == ranks_.size()) return;
  const std::string against = against_sharing(ranks_);
  if (!parent.shares_hosts() || !against.empty()) {
    hosts_ = parent.shares_hosts() ? "off: " + against : parent.hosts_;
    return;
  }
  const Rank self = options_.endpoint.rank;
  const Rank lowest = layout.hosts[layout.host_of(self)].front();
  sharing_.emplace();
  sharing_->options = {.layout = std::move(layout),
                       .self = self,
                       .job = options_.endpoint.job,
                       .lowest_door = split_door(ranks_[lowest], options_.endpoint.communicator),
                       .port = &job_->lines().first()};
  if (self == lowest) sharing_->door = hosts::open_door(sharing_->options.lowest_door);
}

/// Shares memory if all ranks can: they agree on that by an exact call.
Result<void> CommunicatorState::share_memory(Time deadline) {
  Sharing sharing = *std::move(sharing_);
  sharing_.reset();
  const Time now = monotonic_now();
  // The agreement needs time as well.
  const Time until = now + std::min(kSharingPatience, (deadline - now) / 2);
  auto shared = sharing.door
                    ? hosts::SharedHost::share(*std::move(sharing.door), sharing.options, until)
                    : Result<std::unique_ptr<hosts::SharedHost>>(fail(sharing.door.error()));
  constexpr std::int32_t kNoRank = std::numeric_limits<std::int32_t>::max();
  std::int32_t without = shared ? kNoRank : sharing.options.self;
  const auto call = driven_.submit(
      AllreduceArguments{.input = &without,
                         .output = &without,
                         .count = 1,
                         .type = DataType::int32,
                         .function = ReduceOp::min,
                         .tag = kBarrierTag,
                         .algorithm = Algorithm::tar,
                         .deadline = std::max<Duration>(deadline - monotonic_now(), 1ms)},
      true);
  driver().wait(call);
  if (call->report.status != Status::complete) {
    return fail(Error::Code::unavailable, "split: " + call->report.detail);
  }
  if (without != kNoRank) {
    hosts_ = fmt::format("off: rank {} shares no memory{}", without,
                         without == sharing.options.self ? ": " + shared.error().message : "");
    return {};
  }
  hosts_ = sharing_text(sharing.options.layout);
  host_ = *std::move(shared);
  driven_.tell([this](Engine& engine) { engine.host_calls().share(host_->group()); });
  return {};
}

void CommunicatorState::start() {
  membership_->start(
      {.learned = [this](const Fact& fact) { learn(fact); },
       .aborted =
           [this](Rank rank, const std::string& reason) {
             note_abort(rank, reason);
             driven_.tell(
                 [&](Engine& engine) { engine.abort_for_good(rank, reason, monotonic_now()); });
           },
       .last_heard = [this](Rank rank) { return driver().last_heard(rank); },
       .next_numbers =
           [this] {
             return driven_.look([](const Engine& engine) { return engine.next_numbers(); });
           },
       .epoch_decided =
           [this](const EpochRecord& record) {
             driven_.tell([&](Engine& engine) { engine.coded_calls().decided(record); });
           },
       .rejoining =
           [this](std::uint64_t ranks) {
             driven_.tell(
                 [&](Engine& engine) { engine.endpoint().set_rejoining(ranks, monotonic_now()); });
           },
       .send =
           [this](const std::vector<AgreementPacket>& packets) {
             driven_.tell([&](Engine& engine) {
               for (const AgreementPacket& packet : packets) engine.endpoint().send(packet);
             });
           }});
}

void CommunicatorState::stop() {
  if (is_split()) {
    driven_.stop();
    membership_->stop();
    return;
  }
  if (!driver().stop()) return;
  if (regrouped_) membership_->leave_at_once();
  membership_->stop();
  driver().join();
}

Result<void> CommunicatorState::leave(Time deadline) {
  driven_.end_learning();
  return membership_->leave(driven_.look([](const Engine& engine) { return engine.unpassed(); }),
                            deadline);
}

void CommunicatorState::abort(const std::string& reason, bool peers_too) {
  note_abort(options_.endpoint.rank, reason);
  membership_->abort(reason, peers_too);
  driven_.abort_for_good(options_.endpoint.rank, reason);
}

void CommunicatorState::note_abort(Rank rank, const std::string& reason) {
  const std::lock_guard lock(abort_mutex_);
  if (!abort_) abort_ = Abort{rank, reason};
  aborted_ = true;
}

std::optional<Abort> CommunicatorState::aborted() const {
  if (!aborted_) return std::nullopt;
  const std::lock_guard lock(abort_mutex_);
  return abort_;
}

CallArguments CommunicatorState::chosen(CallArguments arguments) const {
  const CallChoice choice{.world = options_.endpoint.world_size,
                          .sharing = shares_hosts() ? &host_->group().layout : nullptr,
                          .learns_shares = job_->given().learn_shares};
  return choice.chosen(std::move(arguments));
}

/// Called on the mesh's thread.
void CommunicatorState::learn(const Fact& fact) {
  std::uint64_t passed = 0;
  driven_.tell([&](Engine& engine) {
    engine.learn(fact, monotonic_now());
    passed = engine.take_passed();
  });
  membership_->passed(passed);
}

}  // namespace tarpon
