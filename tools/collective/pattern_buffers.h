// The buffers of one rank for calls out of place and in place: filled with test patterns before a
// call, checked after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tools/collective/collective_options.h"
#include "tools/collective/divergence.h"
#include "tools/collective/measured_collective.h"
#include "tools/collective/tensor_memory.h"
#include "tools/collective/timed_calls.h"

namespace tarpon {

class PatternBuffers {
 public:
  PatternBuffers(const MeasuredCollective& row, Rank rank, std::uint32_t ranks);

  /// Makes room for calls of these kinds on up to `bytes`, and for their divergence if `bounded`.
  /// Throws std::bad_alloc or std::length_error.
  void allocate(std::uint64_t bytes, const std::vector<SweepKind>& kinds, bool bounded);

  /// Sets the call that the functions below mean. REQUIRES: allocate() for it.
  void begin(const SweepKind& kind, std::uint64_t bytes, bool in_place);

  std::uint64_t count() const { return shape_.count; }  // as CollectiveArguments::count
  std::uint64_t size() const;                           // bytes of the whole
  const void* input();                                  // null: this rank has none
  void* output();                                       // null: this rank has none

  /// Call before each iteration: a stale result must not look right.
  void refill();

  /// Counts the wrong elements of the output of the call that `report` describes.
  ResultCheck check(const Report& report, MissingFill missing);

  /// measure_divergence() of the output. REQUIRES: allocate() with `bounded`. Overwrites the input
  /// of a call out of place.
  std::optional<Divergence> divergence(Communicator& communicator, Duration deadline);

 private:
  /// What `holds` names, in `apart` where the call is out of place.
  std::span<std::byte> bytes_of(TensorBytes& apart, const std::optional<HeldElements>& holds);
  std::span<std::byte> input_bytes() { return bytes_of(input_, held_input_); }
  std::span<std::byte> output_bytes() { return bytes_of(output_, held_output_); }

  const MeasuredCollective& row_;
  TensorBytes input_;   // out of place
  TensorBytes output_;  // in place: the buffer for the whole
  TensorBytes spare_;
  SweepKind kind_;
  CallShape shape_;
  bool in_place_ = false;
  std::optional<HeldElements> held_input_, held_output_;
};

}  // namespace tarpon
