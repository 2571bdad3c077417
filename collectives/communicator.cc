// What all communicators have in common, and the choice between them.
#include "collectives/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "collectives/driver/call_keeper.h"
#include "collectives/driver/job_communicator.h"
#include "collectives/engine/call/pending_call.h"
#include "collectives/grid/grid_communicator.h"
#include "collectives/reserved_tags.h"
#include "transport/clock.h"

namespace tarpon {
namespace {

// Bytes that resync() moves at once.
constexpr std::uint64_t kResyncPiece = 4ull << 20;

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::connect(const CommunicatorOptions& options) {
  if (options.rendezvous.world_size > kMostOfOne) {
    auto grid = grid::GridCommunicator::connect(options);
    if (!grid) return fail(grid.error());
    return *std::move(grid);
  }
  auto job = JobCommunicator::connect(options);
  if (!job) return fail(job.error());
  return *std::move(job);
}

/// Runs an exact call for a caller that does not see its report.
Result<void> Communicator::run_exact(const AllreduceArguments& arguments, const char* what) {
  auto report = run_reserved(arguments);
  if (!report) return fail(report.error());
  Error::Code code = Error::Code::unavailable;
  switch (report->status) {
    case Status::complete:
      return {};
    case Status::peer_late:
      code = Error::Code::timeout;
      break;
    case Status::mismatch:
      code = Error::Code::mismatch;
      break;
    case Status::partial:  // integers run exact
    case Status::late_self:
    case Status::aborted:
    case Status::failed:
    case Status::peer_dead:
    case Status::evicted:
    case Status::peer_left:
      break;
  }
  return fail(code, fmt::format("{}: {}", what, report->detail));
}

Result<void> Communicator::barrier(Duration deadline) {
  std::int32_t nothing = 0;
  return run_exact({.input = &nothing,
                    .output = &nothing,
                    .count = 1,
                    .type = DataType::int32,
                    .tag = kBarrierTag,
                    .deadline = deadline},
                   "barrier");
}

Result<void> Communicator::resync(Rank root, void* data, std::uint64_t bytes, Duration deadline) {
  const Time until = after(monotonic_now(), deadline);
  if (root >= world_size() || (bytes > 0 && data == nullptr)) {
    return fail(Error::Code::invalid_argument,
                fmt::format("resync of {} bytes from rank {} of {}: {}", bytes, root, world_size(),
                            root >= world_size() ? "no such rank" : "the buffer is null"));
  }
  AllreduceArguments call{.tag = kBarrierTag};
  const auto run_piece = [&](void* buffer, std::uint64_t count, DataType type) {
    call.input = call.output = buffer;
    call.count = count;
    call.type = type;
    call.deadline = std::max<Duration>(until - std::min(until, monotonic_now()), 1ms);
    return run_exact(call, "resync");
  };
  // The largest values and, through the negatives, the smallest: equal if all ranks mean the same.
  const auto size = static_cast<std::int64_t>(bytes);
  std::array<std::int64_t, 4> meant{root, -std::int64_t{root}, size, -size};
  call.function = ReduceOp::max;
  if (auto same = run_piece(meant.data(), meant.size(), DataType::int64); !same) return same;
  if (meant[0] != -meant[1] || meant[2] != -meant[3]) {
    return fail(Error::Code::mismatch, "resync: the ranks differ in root or bytes");
  }
  // All but the root add zeros, which changes no bit of an integer. Barriers have another type, so
  // that a barrier of a rank that gave up ends as a mismatch with a piece.
  call.function = ReduceOp::sum;
  std::vector<std::uint32_t> piece(std::min(bytes, kResyncPiece) / sizeof(std::uint32_t) + 1);
  for (std::uint64_t at = 0; at < bytes; at += kResyncPiece) {
    const std::uint64_t here = std::min(kResyncPiece, bytes - at);
    std::fill(piece.begin(), piece.end(), 0);
    std::byte* const place = static_cast<std::byte*>(data) + at;
    if (rank() == root) std::memcpy(piece.data(), place, here);
    const std::uint64_t words = (here + sizeof(std::uint32_t) - 1) / sizeof(std::uint32_t);
    if (auto done = run_piece(piece.data(), words, DataType::uint32); !done) return done;
    if (rank() != root) std::memcpy(place, piece.data(), here);
  }
  return {};
}

AsyncAllreduce::AsyncAllreduce(std::shared_ptr<CallKeeper> keeper,
                               std::shared_ptr<PendingCall> call)
    : keeper_(std::move(keeper)), call_(std::move(call)) {}

Result<void> AsyncAllreduce::check_process() const {
  return keeper_->check_process();
}

bool AsyncAllreduce::done() const {
  return call_->done || !keeper_->check_process();
}

Report AsyncAllreduce::wait() {
  if (auto here = check_process(); !here) {
    Report report;
    report.status = Status::failed;
    report.detail = here.error().message;
    return report;
  }
  keeper_->wait(call_);
  return call_->report;
}

}  // namespace tarpon
