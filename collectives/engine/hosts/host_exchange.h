// The data work of one collective beside AllReduce in the memory of its host: copies in what other
// ranks take, and takes what they have copied in, step by step (exchange_plan.h).
//
// A rank waits only for the ranks that it exchanges data with: until it has all that it takes, or,
// if it takes nothing, until they have taken all of its data. Before
// it uses a place again, it waits for all ranks of the host. Sums add in the order of ranks. They
// go straight into the output, or, if there are other hosts, into the bucket of the rail.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "collectives/engine/call/call_arguments.h"
#include "collectives/engine/hosts/contributions.h"
#include "collectives/engine/hosts/line_work.h"
#include "collectives/engine/schedules/exchange_plan.h"
#include "collectives/hosts/host_group.h"

namespace tarpon {

class HostExchange : public LineWork {
 public:
  /// All but the plan outlive it. The buffers of `call` are its own until it is done. `assignment`:
  /// of the call. `world`: ranks of the communicator. `rail`: the bucket of the rail; null: there
  /// is none. `has_come(elements)`: whether packets have brought these elements of the output.
  /// REQUIRES: before move() and what follows it in LineWork, the call has a line, and
  /// HostLine::begin() has run with parts(). Throws std::bad_alloc.
  HostExchange(const CallArguments& call, const hosts::HostGroup& group,
               const hosts::HostPeers& peers, const hosts::Assignment& assignment,
               const ExchangePlan& plan, std::uint32_t world, std::byte* rail,
               std::function<bool(Range elements)> has_come);

  /// How many elements of a slice of the bucket of the rail have been added up.
  std::uint64_t sums(std::uint32_t slice) const;

  bool move() override;
  bool can_move() const override;
  std::optional<hosts::Wish> wish() const override;
  std::uint64_t lacking() const override;
  std::array<std::uint64_t, 2> due_from(std::uint32_t rank) const override;
  std::array<std::uint64_t, 2> taken_from(std::uint32_t rank) const override;

 private:
  std::uint64_t others() const;
  std::uint64_t awaited() const;
  bool may_copy_in() const;
  bool has_come(std::uint32_t step) const;
  bool may_take() const;
  void copy_in();
  void take();
  void copy_out(std::uint32_t step, std::uint32_t slice);
  void add_up(std::uint32_t step, std::uint32_t slice);
  std::uint64_t elements_from(std::uint32_t rank, std::uint32_t steps) const;

  const CallArguments& call_;
  const std::uint32_t self_;   // local rank
  const Rank rank_;            // of the communicator
  const std::uint32_t local_;  // ranks of the host
  const std::size_t width_;    // bytes of an element
  const ExchangePlan plan_;
  std::byte* const rail_;
  const std::function<bool(Range)> has_come_;
  std::uint64_t sources_ = 0;    // bit r: this rank takes data of local rank r
  std::uint64_t receivers_ = 0;  // bit r: local rank r takes data of this rank
  Contributions sums_;
  std::vector<const std::byte*> from_;  // of add_up(), by local rank
};

}  // namespace tarpon
