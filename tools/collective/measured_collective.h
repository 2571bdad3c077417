// The collectives that `tarpon` measures, a row each: nccl-tests' names, the meaning of size and
// count, bus bandwidth, and the right output.
//
// A call works on a whole of `size` bytes. The whole is one buffer of `count` elements or, where
// the row is `divided`, a part of `count` elements for each rank, in the order of ranks.
//
// The row of Collective::send stands for two messages at once: each rank sends its whole to the
// next rank and receives that of the one before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "collectives/types.h"
#include "transport/rank.h"

namespace tarpon {

/// What a buffer of a rank holds.
enum class Holds {
  whole,
  part,  // this rank's part of the whole
  root,  // the whole at the root, nothing at other ranks
};

struct MeasuredCollective {
  Collective collective = Collective::allreduce;
  const char* command = "";  // nccl-tests' name
  const char* summary = "";  // one line, for the help
  bool divided = false;
  Holds input = Holds::whole;
  Holds output = Holds::whole;
  double (*bus_factor)(double ranks) = nullptr;  // busbw over algbw

  /// Whether calls in place exist: the buffer of a message that is sent must not change.
  bool has_in_place() const { return !is_message(collective); }
  /// Elements as the table counts them, of at most `bytes`. A part has a multiple of 16 bytes, as
  /// in nccl-tests.
  std::uint64_t count_in(std::uint64_t bytes, std::size_t element_bytes, std::uint32_t ranks) const;
  /// Elements of the whole.
  std::uint64_t whole_of(std::uint64_t count, std::uint32_t ranks) const;
};

/// All rows, in the order of the help.
const std::vector<MeasuredCollective>& measured_collectives();

const MeasuredCollective& row_of(Collective collective);

/// One call, as one rank makes it.
struct CallShape {
  std::uint64_t count = 0;  // MeasuredCollective::count_in()
  Rank rank = 0;
  Rank root = 0;
  std::uint32_t ranks = 1;
};

/// The peers of a rank's messages, in a ring of all ranks.
Rank rank_after(Rank rank, std::uint32_t ranks);
Rank rank_before(Rank rank, std::uint32_t ranks);

/// Elements [first, first + count) of the whole.
struct HeldElements {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

/// What this rank's input or output holds; nullopt: the rank has no such buffer. In place, both lie
/// so in one buffer for the whole.
std::optional<HeldElements> held(const MeasuredCollective& row, Holds holds,
                                 const CallShape& shape);

/// Elements [first, first + count) of a rank's output.
struct ExpectedPiece {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::optional<Rank> from;          // whose input they are; nullopt: a reduction of inputs
  std::uint64_t first_in_input = 0;  // the input's element that belongs at `first`
  std::uint64_t contributors = ~std::uint64_t{0};  // to a reduction; bit r: rank r
};

/// The right output of this rank; empty where it has none.
std::vector<ExpectedPiece> expected_output(const MeasuredCollective& row, const CallShape& shape);

}  // namespace tarpon
