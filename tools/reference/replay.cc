#include "tools/reference/replay.h"

#include <algorithm>

#include "collectives/engine/kernels/reduce.h"

namespace tarpon {
namespace {

class Replay {
 public:
  explicit Replay(const std::vector<Schedule>& ranks) : ranks_(ranks) {}

  /// Appends the steps by which `rank` makes `version` of the chunk of `elements`.
  void value(Rank rank, const Range& elements, std::uint32_t version, std::vector<int>& steps) {
    const Schedule::Chunk& chunk = ranks_[rank].chunks[chunk_of(rank, elements)];
    if (chunk.own_turn == 0 || version == 0) steps.push_back(rank);
    for (std::uint32_t made = 1; made <= version; ++made) {
      const bool left = add_sent(rank, elements, made, steps);
      if (made > 1 || chunk.own_turn == 0) {
        steps.push_back(left ? AdditionProgram::kAddLeft : AdditionProgram::kAdd);
      }
      if (made != chunk.own_turn) continue;
      steps.push_back(rank);
      steps.push_back(AdditionProgram::kAdd);
    }
  }

 private:
  std::uint32_t chunk_of(Rank rank, const Range& elements) const {
    const auto& chunks = ranks_[rank].chunks;
    return static_cast<std::uint32_t>(
        std::find_if(chunks.begin(), chunks.end(),
                     [&](const auto& one) { return one.elements == elements; }) -
        chunks.begin());
  }

  /// Appends the steps that make the piece for version `made` of the chunk at `rank`. Returns
  /// whether the piece is the left operand.
  bool add_sent(Rank rank, const Range& elements, std::uint32_t made, std::vector<int>& steps) {
    const std::uint32_t chunk = chunk_of(rank, elements);
    for (std::size_t stage = 0; stage < ranks_[rank].stages.size(); ++stage) {
      for (const Schedule::Message& message : ranks_[rank].stages[stage].receives) {
        const auto pieces = ranks_[rank].pieces_of(message);
        for (std::size_t i = 0; i < pieces.size(); ++i) {
          const Schedule::Piece& piece = pieces[i];
          if (piece.chunk != chunk || piece.version != made) continue;
          value(message.peer, elements, sent_version(stage, message.peer, rank, i), steps);
          return piece.left;
        }
      }
    }
    return false;
  }

  std::uint32_t sent_version(std::size_t stage, Rank from, Rank to, std::size_t piece) const {
    for (const Schedule::Message& message : ranks_[from].stages[stage].sends) {
      if (message.peer == to) return ranks_[from].pieces_of(message)[piece].version;
    }
    return 0;
  }

  const std::vector<Schedule>& ranks_;
};

/// Appends the steps by which a host adds up its ranks.
void add_host(const std::vector<Rank>& ranks, std::vector<int>& steps) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    steps.push_back(ranks[i]);
    if (i > 0) steps.push_back(AdditionProgram::kAdd);
  }
}

}  // namespace

std::vector<AdditionProgram> addition_programs(const AllreduceArguments& call, std::uint32_t world,
                                               std::uint32_t operation) {
  std::vector<Schedule> ranks;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    ranks.push_back(schedule_of(call, world, static_cast<Rank>(rank), operation));
  }
  Replay replay(ranks);
  std::vector<AdditionProgram> programs;
  for (const Schedule::Chunk& chunk : ranks[0].chunks) {
    if (chunk.elements.count == 0) continue;
    // The rank that makes the result.
    for (Rank rank = 0; rank < world; ++rank) {
      const auto& chunks = ranks[rank].chunks;
      const auto here = std::find_if(chunks.begin(), chunks.end(), [&](const auto& one) {
        return one.elements == chunk.elements;
      });
      if (here->stored) continue;
      programs.push_back({chunk.elements, {}});
      replay.value(rank, chunk.elements, here->additions, programs.back().steps);
      break;
    }
  }
  return programs;
}

namespace {

/// Adds up the hosts, from `first` on.
void add_hosts(const AllreduceArguments& call, const hosts::HostLayout& layout, std::size_t first,
               AdditionProgram& program) {
  const std::size_t hosts = layout.count();
  const bool rounds = hosts > 1 && needs_partials(call.type, call.function);
  program.averages = rounds && call.function == ReduceOp::avg;
  for (std::size_t i = 0; i < hosts; ++i) {
    add_host(layout.hosts[(first + i) % hosts], program.steps);
    if (program.averages) program.steps.push_back(AdditionProgram::kAverage);
    if (rounds && !program.averages) program.steps.push_back(AdditionProgram::kRound);
    if (i > 0) program.steps.push_back(AdditionProgram::kAdd);
  }
}

}  // namespace

AdditionProgram addition_program(const AllreduceArguments& call, const hosts::HostLayout& layout,
                                 Rank to) {
  AdditionProgram program;
  add_hosts(call, layout, layout.host_of(to), program);
  return program;
}

std::vector<AdditionProgram> addition_programs(const AllreduceArguments& call,
                                               const hosts::HostLayout& layout,
                                               const hosts::HostShape& shape,
                                               std::uint32_t operation) {
  const HostPlan plan(call, layout, shape);
  const std::uint32_t hosts = plan.hosts();
  std::vector<AdditionProgram> programs;
  for (std::uint32_t owner = 0; owner < plan.owners(); ++owner) {
    for (std::uint32_t shard = 0; shard < hosts; ++shard) {
      if (plan.shard(owner, shard).count == 0) continue;
      programs.push_back({.elements = plan.shard(owner, shard), .steps = {}});
      add_hosts(call, layout, owner_of(shard, operation, hosts), programs.back());
    }
  }
  return programs;
}

}  // namespace tarpon
