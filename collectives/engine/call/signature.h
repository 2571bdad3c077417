// The signature of an operation: the fields that must be equal on all ranks before a byte is added.
//
// It is sent in READY (bpf/wire.h). The transport compares the bytes; they are decoded only when
// they differ. Little-endian layout of the 24 bytes:
//
//   offset  0     1         2          3     4           6       8      16     18  19     20
//   bytes   1     1         1          1     2           2       8      2      1   1      4
//   field   type  function  algorithm  mode  slot bytes  shares  count  epoch  pa  codec  custom
//
// `mode` has the mode in its lower half and the collective in the upper one. Collectives other than
// AllReduce have algorithm tar or hosts, and their root in `pa`, messages their sender. A hash of their
// parts lies in `shares` and, unless the function is the caller's own, in `custom`. all_to_all with
// counts has count 0 and hash 1: the ranks compare their counts by the terms of READY
// (pair_counts.h). `shares` is Shares::hash(). If two ranks have different shares with the same
// hash, either they cut the bucket alike, or no rank gets a result: some owner waits for more than
// it is sent. `pa` is the algorithm's parameter: the size of the groups of
// Algorithm::two_level_tar, 1 + the late rank of Algorithm::late_rank, 1 for Algorithm::tar where
// the shares are learnt, else 0. `custom` is the id of the caller's own function, 0 for every other
// one.
//
// Values and pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "bpf/wire.h"
#include "collectives/engine/call/call_arguments.h"
#include "collectives/types.h"

namespace tarpon {

struct OperationSignature {
  Collective collective = Collective::allreduce;
  Rank root = 0;  // 0 unless the collective has one
  DataType type = DataType::float32;
  ReduceOp function = ReduceOp::sum;
  Algorithm algorithm = Algorithm::tar;
  Mode mode = Mode::exact;
  std::uint16_t slot_bytes = 0;
  std::uint16_t shares = 0;     // their hash, or that of the parts; 0: even
  std::uint64_t count = 0;      // elements
  std::uint16_t epoch = 0;      // of the job's agreed settings
  std::uint8_t group_size = 0;  // 0 unless the algorithm has groups
  std::uint8_t late_rank = 0;   // 1 + that rank; 0 unless the algorithm has one
  bool learns = false;          // the shares are learnt; false unless the algorithm is tar
  Codec codec = Codec::none;
  std::uint32_t custom = 0;  // CustomFunction::id, or more of the hash of the parts; else 0

  bool operator==(const OperationSignature&) const = default;
};

/// The fields that follow from the arguments alone.
OperationSignature common_signature(const CallArguments& arguments);

using SignatureBytes = std::array<std::uint8_t, TARPON_SIGNATURE_BYTES>;

SignatureBytes encode(const OperationSignature& signature);

/// Returns nullopt if a byte has a value that this version does not know.
std::optional<OperationSignature> decode(
    std::span<const std::uint8_t, TARPON_SIGNATURE_BYTES> bytes);

/// The first field of `here` that differs, in words: "count 1000 instead of 2000", "type float
/// instead of double". nullopt when they are equal.
std::optional<std::string> first_difference(const OperationSignature& here,
                                            const OperationSignature& there);

}  // namespace tarpon
