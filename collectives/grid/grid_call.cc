#include "collectives/grid/grid_call.h"

#include <algorithm>
#include <utility>

#include "collectives/engine/kernels/reduce.h"
#include "collectives/grid/grid_tags.h"
#include "transport/clock.h"

namespace tarpon::grid {
namespace {

bool has_result(Status status) {
  return status == Status::complete || status == Status::partial || status == Status::late_self;
}

bool is_final(Status status) {
  return status == Status::peer_dead || status == Status::peer_left || status == Status::evicted;
}

/// A chunk is whole slices of whole cache lines. A bound is that of one call, so then the bucket is
/// one chunk.
std::uint64_t chunk_size(const AllreduceArguments& arguments, std::uint32_t places) {
  if (may_run_bounded(arguments) && arguments.bound) {
    return std::max<std::uint64_t>(arguments.count, 1);
  }
  return GridCall::kChunkBytes / element_bytes(arguments.type) * places;
}

/// Half precision would overflow if the sum over all ranks were divided at the end; a bounded call
/// divides by the hosts that came.
bool divides_last(const AllreduceArguments& arguments) {
  return arguments.function == ReduceOp::avg && !is_half(arguments.type) &&
         !may_run_bounded(arguments);
}

std::vector<std::uint64_t> counts_of(std::uint64_t elements, std::size_t width,
                                     std::uint32_t places) {
  const ShardLayout slices{elements, width, places};
  std::vector<std::uint64_t> counts;
  for (std::uint32_t place = 0; place < places; ++place) {
    counts.push_back(slices.elements(place).count);
  }
  return counts;
}

std::uint64_t slice_elements(const AllreduceArguments& arguments, std::uint64_t chunk_size,
                             std::uint32_t places, std::uint32_t place) {
  std::uint64_t sum = 0;
  for (std::uint64_t first = 0; first < arguments.count; first += chunk_size) {
    const std::uint64_t count = std::min(chunk_size, arguments.count - first);
    sum += ShardLayout{count, element_bytes(arguments.type), places}.elements(place).count;
  }
  return sum;
}

}  // namespace

GridCall::GridCall(const GridParts& parts, const AllreduceArguments& arguments,
                   std::shared_ptr<GridCall> before, Time submitted)
    : parts_(parts),
      arguments_(arguments),
      submitted_(submitted),
      deadline_(after(submitted, arguments.deadline)),
      chunk_size_(chunk_size(arguments, parts.layout.places())),
      chunks_(std::max<std::uint64_t>(1, (arguments.count + chunk_size_ - 1) / chunk_size_)),
      divides_last_(divides_last(arguments)),
      before_(std::move(before)),
      pending_(std::make_shared<PendingCall>()),
      report_(parts, arguments,
              slice_elements(arguments, chunk_size_, parts.layout.places(), parts.own_place())) {}

void GridCall::refuse(Status status, AbortReason reason, const std::vector<Rank>& blamed,
                      std::string detail) {
  report_.fail(status, reason, blamed, std::move(detail));
}

Range GridCall::chunk_elements(std::uint64_t chunk) const {
  const std::uint64_t first = chunk * chunk_size_;
  return {first, std::min(chunk_size_, arguments_.count - first)};
}

/// This rank's slice of a chunk, in the bucket.
Range GridCall::slice(std::uint64_t chunk) const {
  const Range all = chunk_elements(chunk);
  const Range part =
      ShardLayout{all.count, element_bytes(arguments_.type), parts_.layout.places()}.elements(
          parts_.own_place());
  return {all.first + part.first, part.count};
}

std::byte* GridCall::output(std::uint64_t element) const {
  return static_cast<std::byte*>(arguments_.output) + element * element_bytes(arguments_.type);
}

bool GridCall::has_started_all(Stage stage) const {
  return given_up_ || stages_[stage].started == chunks_;
}

bool GridCall::can_start(Stage stage, Time now) const {
  if (has_started_all(stage)) return false;
  if (before_ != nullptr && !before_->has_started_all(stage)) return false;
  if (report_.has_failed()) return now >= refuse_from_;
  const Progress& own = stages_[stage];
  if (own.running.size() == kAtOnce) return false;
  return stage == scatter || stages_[stage - 1].ended > own.started;
}

bool GridCall::advance(Time now, bool aborted) {
  if (aborted) give_up();
  bool moved = false;
  for (const Stage stage : {scatter, rail, gather}) {
    while (take_ended(stage, now)) moved = true;
    while (can_start(stage, now)) {
      start(stage, now);
      moved = true;
    }
  }
  return moved;
}

bool GridCall::is_over() const {
  return std::all_of(stages_.begin(), stages_.end(), [&](const Progress& stage) {
    return stage.running.empty() && (given_up_ || stage.ended == chunks_);
  });
}

void GridCall::finish(Time now, const std::optional<Abort>& abort) {
  before_.reset();
  if (stages_[gather].ended < chunks_) {
    report_.fail(Status::aborted, AbortReason::given_up, {parts_.self},
                 "the communicator was destroyed");
  }
  if (abort) report_.blame(*abort);
  report_.finish(now - submitted_);
  pending_->report = report_.report();
  pending_->end();
}

/// Takes the end of the oldest call of a stage, if it has ended.
bool GridCall::take_ended(Stage stage, Time now) {
  Progress& own = stages_[stage];
  if (own.running.empty() || !own.running.front()->done) return false;
  const std::shared_ptr<PendingCall> call = std::move(own.running.front());
  own.running.pop_front();
  const std::uint64_t chunk = own.ended++;
  const Status status = call->report.status;
  if (!has_result(status)) {
    const bool news = status == Status::aborted &&
                      call->report.abort_reason == AbortReason::given_up && !report_.has_failed();
    if (news) refuse_from_ = now + kAbortNews;
    if (stage == rail) {
      report_.fail(call->report, parts_.rail_ranks(), call->report.stage);
    } else {
      if (is_final(status) && !report_.has_failed()) {
        host_loss_ = status;
        give_up();  // a refused call would end those of the other hosts
      }
      report_.fail(call->report, parts_.host_ranks(),
                   stage == scatter ? CallStage::scatter : CallStage::gather);
    }
  } else if (stage == rail) {
    end_rail(chunk, call->report);
  }
  return true;
}

void GridCall::end_rail(std::uint64_t chunk, const Report& report) {
  const Range mine = slice(chunk);
  report_.add(report, mine.count);
  if (!divides_last_ || mine.count == 0) return;
  std::byte* const sums = output(mine.first);
  reduce_kernels(arguments_.type, ReduceOp::avg)
      .scale(sums, sums, mine.count, 1, parts_.layout.world_size());
}

/// Makes the next call of a stage. After a failure it is a refused one.
void GridCall::start(Stage stage, Time now) {
  Progress& own = stages_[stage];
  const std::uint64_t chunk = own.started;
  if (now >= deadline_ && !report_.has_failed()) {
    report_.fail(Status::peer_late, AbortReason::given_up, {},
                 "the deadline passed between two stages of the call");
  }
  CallArguments call = stage == scatter ? scatter_call(chunk)
                       : stage == rail  ? rail_call(chunk)
                                        : gather_call(chunk);
  call.deadline = std::max<Duration>(deadline_ - now, 1ms);
  if (call.bound) call.bound = std::min(*call.bound, call.deadline);
  if (report_.has_failed()) call.refusal = "the call has failed";
  own.running.push_back((stage == rail ? parts_.rail : parts_.host)->submit(call, false));
  ++own.started;
}

CallArguments GridCall::scatter_call(std::uint64_t chunk) const {
  const Range all = chunk_elements(chunk);
  const std::size_t width = element_bytes(arguments_.type);
  CollectiveArguments call{.collective = Collective::reduce_scatter};
  call.input = static_cast<const std::byte*>(arguments_.input) + all.first * width;
  call.output = output(slice(chunk).first);
  call.counts = counts_of(all.count, width, parts_.layout.places());
  call.type = arguments_.type;
  call.function = divides_last_ ? ReduceOp::sum : arguments_.function;
  call.custom = arguments_.custom;
  call.tag = scatter_tag(arguments_.tag);
  return {call, parts_.layout.places(), static_cast<Rank>(parts_.own_place())};
}

CallArguments GridCall::rail_call(std::uint64_t chunk) const {
  const Range mine = slice(chunk);
  AllreduceArguments call = arguments_;
  call.input = call.output = output(mine.first);
  call.count = mine.count;
  if (divides_last_) call.function = ReduceOp::sum;
  call.algorithm = Algorithm::automatic;
  return call;
}

CallArguments GridCall::gather_call(std::uint64_t chunk) const {
  const Range all = chunk_elements(chunk);
  const std::size_t width = element_bytes(arguments_.type);
  CollectiveArguments call{.collective = Collective::all_gather};
  call.input = output(slice(chunk).first);
  call.output = output(all.first);
  call.counts = counts_of(all.count, width, parts_.layout.places());
  call.type = arguments_.type;
  call.tag = gather_tag(arguments_.tag);
  return {call, parts_.layout.places(), static_cast<Rank>(parts_.own_place())};
}

}  // namespace tarpon::grid
