#include "collectives/engine/schedules/schedule.h"

namespace tarpon {

void Schedule::add(std::vector<Message>& messages, Rank peer, std::span<const Piece> of) {
  const auto first = static_cast<std::uint32_t>(pieces.size());
  for (const Piece& piece : of) {
    if (has_elements(piece.chunk)) pieces.push_back(piece);
  }
  const auto count = static_cast<std::uint32_t>(pieces.size()) - first;
  if (count > 0) messages.push_back({peer, first, count});
}

Algorithm choose_algorithm(const AllreduceArguments& call, std::uint32_t world) {
  // So few bytes of a rank cost less than a second message delay (./dev bench menu).
  constexpr std::uint64_t kMostSent = 32 << 10;
  if (may_run_bounded(call) || !call.shares.even() || call.count > kMostSent) return Algorithm::tar;
  const std::uint64_t sent = bucket_bytes(call) * (world - 1);
  return sent <= kMostSent ? Algorithm::one_shot : Algorithm::tar;
}

Schedule schedule_of(const AllreduceArguments& call, std::uint32_t world, Rank rank,
                     std::uint32_t operation) {
  const std::uint64_t count = call.count;
  const std::size_t width = element_bytes(call.type);
  switch (call.algorithm) {
    case Algorithm::circulant:
      return circulant_schedule(world, rank, operation, count, width);
    case Algorithm::one_shot:
      return one_shot_schedule(world, rank, count);
    case Algorithm::ring:
      return ring_schedule(world, rank, operation, count, width);
    case Algorithm::recursive_doubling:
      return recursive_doubling_schedule(world, rank, count);
    case Algorithm::two_level_tar:
      return two_level_tar_schedule(
          world, rank, operation, count, width,
          call.group_size != 0 ? call.group_size : default_group_size(world));
    case Algorithm::late_rank:
      return late_rank_schedule(world, rank, operation, count, width, call.late_rank,
                                late_rank_segments(world, count * width));
    case Algorithm::automatic:
    case Algorithm::tar:
    case Algorithm::hosts:  // has no schedule: the data does not go over the network
      break;
  }
  return transpose_schedule(world, rank, operation, count, width, call.shares);
}

}  // namespace tarpon
