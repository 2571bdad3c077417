// The work on the buffers of calls, in pieces that run outside of the engine: whose turn it is, and
// what becomes of a call whose piece has ended.
#include <algorithm>

#include "collectives/engine.h"
#include "collectives/executor/allreduce_operation.h"
#include "collectives/executor/encoding.h"
#include "collectives/executor/work_rate.h"

namespace tarpon {

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
bool Engine::encode(const Waiting& next) {
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
                                  .piece_bytes = options_.piece_bytes};
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
  return !taken_ && (std::any_of(encodings_.begin(), encodings_.end(), waits) ||
                     std::any_of(running_.begin(), running_.end(), waits));
}

Piece Engine::take_piece(Time now) {
  AllreduceOperation* operation = nullptr;
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
  return operation->take_piece();
}

void Engine::piece_ended(Time now) {
  const Taken taken = std::move(*taken_);
  taken_.reset();
  if (taken.operation != nullptr) return taken.operation->piece_ended(now - taken.since);
  if (taken.call_over) {
    taken.call->done = true;
    return;
  }
  taken.encoding->piece_ended();
  startable_ |= taken.encoding->done();
}

/// Small buckets, whose work is done without pieces, teach nothing.
void Engine::note_work(const AllreduceOperation& operation) {
  const Status status = operation.report().status;
  const bool ended =
      status == Status::complete || status == Status::partial || status == Status::late_self;
  const std::uint64_t bytes = operation.bucket_bytes();
  if (!ended || bytes <= options_.piece_bytes) return;
  work_rates_[operation.coded() ? 1 : 0]->learn(bytes, operation.worked());
}

}  // namespace tarpon
