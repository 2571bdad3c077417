#include "collectives/grid/grid_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "collectives/grid/global_names.h"
#include "collectives/grid/grid_agreement.h"
#include "collectives/grid/grid_exchange.h"
#include "collectives/grid/grid_tags.h"
#include "collectives/reserved_tags.h"
#include "transport/clock.h"

namespace tarpon::grid {
namespace {

/// The error of what jobs of more than 64 ranks have not.
Error not_there(std::string_view what, std::string_view remedy = "leave it out") {
  return Error::make(
      Error::Code::invalid_argument,
      fmt::format("{}: a job of more than {} ranks has none: {}", what, GridLayout::kMost, remedy));
}

Result<void> check_tag(std::string_view what, std::uint32_t tag) {
  if (tag < kFirstGridTag) return {};
  return fail(Error::Code::invalid_argument,
              fmt::format("{}: tag {}: give one below {} in a job of more than {} ranks", what, tag,
                          kFirstGridTag, GridLayout::kMost));
}

Result<void> check(const CollectiveArguments& arguments) {
  const std::string_view what = name(arguments.collective);
  if (is_message(arguments.collective)) return fail(not_there(fmt::format("{}: messages", what)));
  if (arguments.mode == Mode::bounded) {
    return fail(not_there(fmt::format("bounded {}", what), "give mode exact"));
  }
  if (!GridExchange::is_there(arguments)) {
    return fail(not_there(what, "use broadcast, all_gather, reduce_scatter or allreduce"));
  }
  return check_tag(what, arguments.tag);
}

Result<void> check(const AllreduceArguments& arguments) {
  if (auto free = check_tag("allreduce", arguments.tag); !free) return free;
  if (arguments.follows) return fail(not_there("allreduce: calls that follow"));
  if (!arguments.shares.even() || arguments.learn_shares) {
    return fail(not_there("allreduce: shares"));
  }
  const Algorithm algorithm = arguments.algorithm;
  const bool fits = algorithm == Algorithm::automatic || algorithm == Algorithm::hosts;
  if (!fits && algorithm <= kLastAlgorithm) {
    return fail(not_there(fmt::format("allreduce: algorithm {}", name(algorithm)),
                          "give algorithm auto or hosts"));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<GridCommunicator>> GridCommunicator::connect(
    const CommunicatorOptions& options, const HostKey& key) {
  auto calls = GridCalls::make();
  auto connection = connect_grid(options, key, [calls] { calls->note_change(); });
  if (!connection) return fail(connection.error());
  std::unique_ptr<GridCommunicator> made(
      new GridCommunicator(*std::move(connection), std::move(calls)));
  if (auto started = made->calls_->start(*made->parts_); !started) return fail(started.error());
  return made;
}

GridCommunicator::GridCommunicator(GridConnection connection, std::shared_ptr<GridCalls> calls)
    : control_(std::move(connection.control)),
      parts_(std::move(connection.parts)),
      ranks_(std::move(connection.ranks)),
      hosts_(
          fmt::format("{} ranks on {} hosts ({} each), in rails of one rank a host; in a host {}",
                      parts_->layout.world_size(), parts_->layout.hosts(), parts_->layout.places(),
                      parts_->host_job->hosts())),
      calls_(std::move(calls)) {}

GridCommunicator::~GridCommunicator() {
  if (calls_->is_forked()) return;
  calls_->stop();
  parts_->host = parts_->rail = nullptr;
  parts_->host_job.reset();
  parts_->rail_job.reset();
  calls_->end_calls();
}

Result<void> GridCommunicator::check_process() const {
  return calls_->check_process();
}

Rank GridCommunicator::rank() const {
  return parts_->self;
}
std::uint32_t GridCommunicator::world_size() const {
  return parts_->layout.world_size();
}
const std::vector<RankInfo>& GridCommunicator::ranks() const {
  return ranks_;
}
std::uint32_t GridCommunicator::slot_bytes() const {
  return parts_->rail_job->slot_bytes();
}
const std::string& GridCommunicator::shrunk_slots() const {
  return parts_->rail_job->shrunk_slots();
}
const std::string& GridCommunicator::multicast() const {
  return parts_->rail_job->multicast();
}
const std::string& GridCommunicator::hosts() const {
  return hosts_;
}
tarpon_integrity GridCommunicator::integrity() const {
  return parts_->rail_job->integrity();
}
const std::string& GridCommunicator::left_out() const {
  return left_out_;
}
std::uint64_t GridCommunicator::rejoin_wanted() const {
  return 0;
}
ControlChannel& GridCommunicator::control() {
  return *control_;
}
void GridCommunicator::record_flight() {
  parts_->host_job->record_flight();
  parts_->rail_job->record_flight();
}
PortStatistics GridCommunicator::port_statistics() const {
  return parts_->rail_job->port_statistics();
}
EndpointCounters GridCommunicator::counters() const {
  return parts_->rail_job->counters();
}
Shares GridCommunicator::learnt_shares(std::uint32_t) const {
  return {};
}
std::uint32_t GridCommunicator::flows() const {
  return parts_->rail_job->flows();
}
std::uint32_t GridCommunicator::behind(std::uint32_t) const {
  return 0;
}

Result<void> GridCommunicator::set_loss_target(double share) {
  return parts_->rail_job->set_loss_target(share);
}

void GridCommunicator::poll(Duration wait) {
  if (!calls_->is_forked()) calls_->poll(wait);
}

Result<Report> GridCommunicator::run(const AllreduceArguments& arguments) {
  if (auto here = check_process(); !here) return fail(here.error());
  const auto call = calls_->submit(arguments);
  calls_->wait(call);
  return call->report;
}

Result<Report> GridCommunicator::run_reserved(const AllreduceArguments& arguments) {
  AllreduceArguments mapped = arguments;
  mapped.tag = kGridBarrierTag;
  return run(mapped);
}

Result<Report> GridCommunicator::allreduce(const AllreduceArguments& arguments) {
  if (auto fits = check(arguments); !fits) return fail(fits.error());
  return run(arguments);
}

Result<AsyncAllreduce> GridCommunicator::allreduce_async(const AllreduceArguments& arguments) {
  if (auto fits = check(arguments); !fits) return fail(fits.error());
  if (auto here = check_process(); !here) return fail(here.error());
  auto call = calls_->submit(arguments);
  return AsyncAllreduce(calls_, std::move(call));
}

void GridCommunicator::abort(const std::string& reason) {
  if (!calls_->is_forked()) calls_->abort(reason);
}

Result<void> GridCommunicator::close(Duration deadline) {
  if (auto here = check_process(); !here) return here;
  const Time until = after(monotonic_now(), deadline);
  const auto rest = [&] { return until - std::min(until, monotonic_now()); };
  const auto close_part = [&](JobCommunicator& part, const std::vector<Rank>& ranks) {
    auto closed = part.close(rest());
    if (!closed) closed = fail(closed.error().code, global_text(closed.error().message, ranks));
    return closed;
  };
  // Siblings that need this rank for their rails' data ask in the host.
  auto rail = close_part(*parts_->rail_job, parts_->rail_ranks());
  auto host = close_part(*parts_->host_job, parts_->host_ranks());
  return rail ? host : rail;
}

Result<Report> GridCommunicator::collective(const CollectiveArguments& arguments) {
  if (auto fits = check(arguments); !fits) return fail(fits.error());
  if (auto here = check_process(); !here) return fail(here.error());
  const auto call = calls_->submit(arguments);
  calls_->wait(call);
  return call->report;
}

Result<AsyncAllreduce> GridCommunicator::collective_async(const CollectiveArguments& arguments) {
  if (auto fits = check(arguments); !fits) return fail(fits.error());
  if (auto here = check_process(); !here) return fail(here.error());
  auto call = calls_->submit(arguments);
  return AsyncAllreduce(calls_, std::move(call));
}

// ---- functions that a grid refuses

Result<Rank> GridCommunicator::probe(std::uint32_t, Duration) {
  return fail(not_there("probe: messages"));
}
Result<std::unique_ptr<Communicator>> GridCommunicator::split(const std::vector<Rank>&,
                                                              std::uint16_t, Duration) {
  return fail(not_there("split", "connect a job of these ranks"));
}
Result<std::unique_ptr<Communicator>> GridCommunicator::shrink(Duration) {
  return fail(not_there("shrink", "connect a job of the ranks that are left"));
}
Result<std::unique_ptr<Communicator>> GridCommunicator::rejoin(Duration) {
  return fail(not_there("rejoin", "connect a new job"));
}

// ---- the verdict on a step

StepVerdict GridCommunicator::agree(std::uint64_t step, const LossReport& report,
                                    Duration deadline) {
  if (auto here = check_process(); !here) {
    return {.verdict = Verdict::halt, .step = step, .detail = here.error().message};
  }
  const std::lock_guard lock(agreement_mutex_);
  return grid::agree(*parts_, step, report, deadline);
}

}  // namespace tarpon::grid
