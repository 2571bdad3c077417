// The work on the buffers of calls, in pieces that run outside of the engine: whose turn it is, and
// what becomes of a call whose piece has ended.
#include <algorithm>

#include "collectives/engine/encoding.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/tar_call.h"
#include "collectives/engine/work_rate.h"

namespace tarpon {
namespace {

// One interruption makes so few pieces look slow: a call with fewer teaches nothing.
constexpr std::uint64_t kFewPieces = 4;

// Ranks that may share a processor. Work does not take longer than that: the process was stopped,
// or no thread drove the engine.
constexpr int kMostShared = 8;

}  // namespace

/// The encoding of a call in `waiting_`; null where there is none.
std::unique_ptr<Encoding> Engine::pop_encoding(const PendingCall& call) {
  const auto found = std::find_if(encodings_.begin(), encodings_.end(),
                                  [&](const auto& one) { return one->call().get() == &call; });
  if (found == encodings_.end()) return nullptr;
  std::unique_ptr<Encoding> encoding = std::move(*found);
  encodings_.erase(found);
  return encoding;
}

/// Whether the call at the head of its tag's queue can be opened: it is not coded, or its bucket is
/// encoded. A bucket holds for every epoch that is coded, and is given up where none is. Throws
/// std::bad_alloc.
bool Engine::encode(const Waiting& next, Time now) {
  const AllreduceArguments& arguments = next.call->arguments;
  if (!can_be_coded(arguments)) return true;
  const std::uint32_t number = endpoint_.next_number(arguments.tag);
  const bool coded = is_coded(arguments, epochs_.at(arguments.tag, number), number);
  for (const auto& encoding : encodings_) {
    const bool holds = coded && encoding->number() == number;
    if (encoding->call() == next.call && holds) return encoding->done();
  }
  pop_encoding(*next.call);
  if (!coded) return true;
  const EndpointOptions& own = options_.endpoint;
  const Encoding::Setting setting{.world = own.world_size,
                                  .slot_bytes = options_.slot_bytes,
                                  .seed = std::uint64_t{own.job} << 16 | own.communicator,
                                  .number = number,
                                  .piece_bytes = options_.piece_bytes,
                                  .now = now};
  encodings_.push_back(
      std::make_unique<Encoding>(setting, next.call, next.submitted, *coded_buffers_));
  return encodings_.back()->done();
}

/// Its report is filled. REQUIRES: it has not begun.
void Engine::end_before_start(PendingCall& call) {
  std::unique_ptr<Encoding> encoding = pop_encoding(call);
  startable_ |= encoding != nullptr;
  if (encoding && taken_ && taken_->encoding == encoding.get()) {
    taken_->ended = std::move(encoding);
    taken_->call_over = true;
  } else {
    call.done = true;
  }
}

bool Engine::has_piece() const {
  const auto waits = [](const auto& one) { return one->has_piece(); };
  return !taken_ &&
         (std::any_of(encodings_.begin(), encodings_.end(), waits) ||
          std::any_of(running_.begin(), running_.end(), waits) || coded_buffers_->has_piece());
}

Piece Engine::take_piece(Time now) {
  RunningCall* operation = nullptr;
  Encoding* encoding = nullptr;
  Time oldest = kNever;
  for (const auto& one : running_) {
    if (!one->has_piece() || one->submitted() >= oldest) continue;
    operation = one.get();
    oldest = one->submitted();
  }
  for (const auto& one : encodings_) {
    if (!one->has_piece() || one->submitted() >= oldest) continue;
    encoding = one.get();
    oldest = one->submitted();
  }
  Taken taken;
  taken.since = now;
  if (encoding != nullptr) {
    taken.encoding = encoding;
    taken.call = encoding->call();
    taken_ = std::move(taken);
    return encoding->take_piece();
  }
  taken.operation = operation;
  taken_ = std::move(taken);
  if (operation != nullptr) return operation->take_piece();
  return coded_buffers_->take_piece(options_.piece_bytes);
}

void Engine::piece_ended(Time now) {
  const Taken taken = std::move(*taken_);
  taken_.reset();
  if (taken.operation != nullptr) return taken.operation->piece_ended(now - taken.since);
  if (taken.encoding == nullptr) return coded_buffers_->piece_ended();
  if (taken.call_over) {
    taken.call->done = true;
    return;
  }
  taken.encoding->piece_ended();
  startable_ |= taken.encoding->done();
}

void Engine::note_work(const RunningCall& operation, Time now) {
  const Status status = operation.call().report.status;
  const bool ended =
      status == Status::complete || status == Status::partial || status == Status::late_self;
  const RunningCall::WorkDone done = operation.work_done(now);
  if (!ended || done.bytes < kFewPieces * options_.piece_bytes) return;
  Duration took = done.took;
  if (done.since_closing) took = std::clamp(*done.since_closing, took, kMostShared * took);
  work_rates_[done.coded ? 1 : 0]->learn(done.bytes, took, done.since_closing.has_value());
}

void Engine::note_call(const AllreduceArguments& arguments) {
  if (!can_be_coded(arguments)) return;
  latest_calls_[latest_call_] = {arguments.count, outstanding() + 1};
  latest_call_ = (latest_call_ + 1) % latest_calls_.size();
}

void Engine::epoch_decided(const EpochRecord& record) {
  epochs_.decided(record);
  if (std::exchange(coded_lately_, record.setting.coded) || !record.setting.coded) return;
  std::size_t open = 0;
  for (const LatestCall& call : latest_calls_) open = std::max(open, call.open);
  std::vector<std::uint64_t> elements;
  const auto most = static_cast<std::uint32_t>(options_.slot_bytes / sizeof(float));
  const std::size_t kept = latest_calls_.size();
  for (std::size_t age = 1; age <= kept && elements.size() < open; ++age) {
    const std::uint64_t count = latest_calls_[(latest_call_ + kept - age) % kept].count;
    if (count == 0) break;
    elements.push_back(codec::strided_layout(count, most, options_.endpoint.world_size).room());
  }
  coded_buffers_->prepare(elements);
}

}  // namespace tarpon
