// Translates between the values of the C interface and those of the library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "collectives/communicator.h"
#include "collectives/environment/meeting_place.h"
#include "collectives/tarpon.h"
#include "transport/time.h"
#include "xdp/base/result.h"

struct tarpon_listener {
  tarpon::MeetingPlace place;
};

namespace tarpon::c_api {

/// Values that do not fit become the longest Duration.
Duration from_us(std::int64_t us);

/// The same for functions that refuse no deadline: negative values become 0.
Duration wait_from_us(std::int64_t us);

/// Numbers that no rank can have become kUnknownRank.
Rank to_rank(std::uint32_t number);

/// A number without an enumerator becomes a value without one: the engine refuses it by name. Where
/// memory is refused, the result is a call that the engine refuses for that reason.
AllreduceArguments translate(const tarpon_arguments& from) noexcept;

/// The same of another collective, in a job of `world` ranks.
CollectiveArguments translate(const tarpon_collective_arguments& from,
                              std::uint32_t world) noexcept;

/// The same of a message. `direction`: send or receive.
CollectiveArguments translate(const tarpon_message& from, Collective direction) noexcept;

/// A call that the engine refuses: it takes its number, and ends on all ranks. Needs no memory.
AllreduceArguments refused_call(std::uint32_t tag);

/// Errors: invalid_argument names the member.
Result<CommunicatorOptions> translate(const tarpon_options& from);

/// The same, but takes the place and everything else that `from` leaves out from the environment.
/// Errors: also those of CommunicatorOptions::from_environment().
Result<CommunicatorOptions> add_environment(const tarpon_options& from);

tarpon_summary summarize(const Report& report);

tarpon_step_verdict translate(const StepVerdict& from);

}  // namespace tarpon::c_api
