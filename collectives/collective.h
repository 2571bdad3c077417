// The arguments of the collectives beside AllReduce, and of messages. All of them run exact:
// repaired until complete. reduce_scatter and all_gather may run bounded.
//
// Parts. A collective that collects or distributes works on a buffer with a part for each rank, in
// the order of ranks: `count` elements each, or counts[r] elements for rank r. A part may be empty.
//
//   collective      input                       output
//   reduce_scatter  all parts                   this rank's part of the reduction of all inputs
//   all_gather      this rank's part            the parts of all ranks
//   broadcast       the root's: `count`         `count` elements, those of the root
//   reduce          `count`                     the root's: the reduction of all inputs
//   gather          this rank's part            the root's: the parts of all ranks
//   scatter         the root's: all parts       this rank's part
//   all_to_all      a part for each rank        a part from each rank
//   send            `count`                     none
//   receive         none                        the `count` elements of `peer`
//
// all_to_all with different parts: counts[r] elements go to rank r, and output_counts[r] come from
// it. All ranks give both, or none does; the numbers may differ. Two ranks that count their parts
// differently end as Status::mismatch.
//
// Messages: send and receive are calls of two ranks. They match by sender, receiver and tag, in
// their order, apart from all other calls. Type and count are alike at both. The sender's call ends
// when the receiver has the message.
//
// A buffer that a rank does not need may be null: the input of broadcast and scatter at other ranks
// than the root, the output of reduce and gather there.
//
// In place: reduce_scatter and scatter with output == input + (elements before this rank's part),
// all_gather and gather with input == output + the same, the others with input == output. Else
// input and output lie apart. all_to_all with counts needs counts == output_counts for that.
//
// reduce_scatter adds in the order of AllReduce by TAR: the owner's contribution first, then those
// of the next ranks. Repeated calls with equal inputs give equal bits. reduce adds in the order of
// ranks, from the root on. Where ranks share the memory of their hosts, the ranks of a host are
// added up in their order first, then the hosts, from that of the owner or the root on.
//
// Bounded reduce_scatter: of sums and averages of floats; others run exact. The rules are those of
// a bounded AllReduce (allreduce.h) up to the end of its scatter. The call ends within its bound,
// and adds up what has come by then. Where it lacks contributions, the sum is scaled by
// Mechanisms::rescale. The report describes this rank's part alone: its elements count from 0 in
// `Report::runs`, and lost shares are shares of this part. Its own contribution is always there. A
// call without `bound` learns one, and waits beyond that for live ranks as an AllReduce does; these
// then get this rank's data as well. Nothing is kept for ranks that begin after the end: such a
// rank ends as Status::late_self, its part holds what had come. Calls run uncoded, and go to each
// rank over the network also where ranks share a host.
//
// Bounded all_gather: of any elements, in calls that ask for it. The call ends within its bound.
// What has not come by then stays in the output as it was before the call: a caller that gathers
// parameters keeps the previous ones. The own part is always there. In `Report::runs` an element
// has one contributor, the rank of its part, or none. Missing elements and lost shares count all
// parts together, `void_shards` are ranks of whose parts nothing came, and all loss is of stage 1.
// The rest is as in a bounded reduce_scatter: what a call without `bound` waits for, late ranks,
// and hosts. No rank looks for NaN.
//
// Memory beside the buffers: of reduce at the root (ranks - 2) times `count` elements at most, of
// reduce_scatter (ranks - 2) times this rank's part; as much of it is touched as comes early. Of
// all_to_all in place a copy of the input.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "collectives/custom_function.h"
#include "collectives/types.h"
#include "transport/rank.h"
#include "transport/time.h"

namespace tarpon {

/// Tags of messages are below this.
inline constexpr std::uint32_t kMessageTags = 1 << 16;

/// Everything but the buffers is alike on all ranks, apart from the counts of all_to_all and the
/// peer of messages: a difference is Status::mismatch.
struct CollectiveArguments {
  Collective collective = Collective::reduce_scatter;
  const void* input = nullptr;
  void* output = nullptr;
  std::uint64_t count = 0;                        // elements of each part; 0 with `counts`
  std::vector<std::uint64_t> counts = {};         // of the part of each rank; empty: `count` each
  std::vector<std::uint64_t> output_counts = {};  // of all_to_all with counts; else empty
  Rank root = 0;                                  // of broadcast, reduce, gather, scatter; else 0
  Rank peer = 0;                                  // of send and receive: the other rank; else 0
  DataType type = DataType::float32;
  ReduceOp function = ReduceOp::sum;  // of reduce_scatter and reduce
  CustomFunction custom = {};         // used if `function` is custom
  std::uint32_t tag = 0;    // as AllreduceArguments::tag; one order with AllReduce. Of messages:
                            // below kMessageTags
  Mode mode = Mode::exact;  // of reduce_scatter and all_gather; else exact
  std::optional<Duration> bound = std::nullopt;  // as AllreduceArguments::bound; if bounded
  Duration deadline = 10s;                       // hard, from the call on
  std::string refusal = {};                      // as AllreduceArguments::refusal
};

}  // namespace tarpon
