// Calls that this rank does not run: their arguments make no sense, or it has no memory for them,
// or an exception is thrown inside.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "collectives/allreduce.h"
#include "collectives/engine/call/pending_call.h"
#include "collectives/mechanisms.h"

namespace tarpon {

/// Why this rank does not run a call.
struct Refusal {
  AbortReason reason = AbortReason::argument;
  std::string detail;
};

/// What a communicator allows.
struct RefusalRules {
  std::uint32_t world = 1;
  std::uint32_t slot_bytes = 0;
  bool rotation = true;       // Mechanisms::rotation
  bool shares_hosts = false;  // ranks of a host share memory
};

/// Why a call with these arguments is refused; nullopt when it is not.
std::optional<Refusal> refusal_of(const CallArguments& arguments, const RefusalRules& rules);

Refusal no_memory();
Refusal exception_inside(const std::exception& error);

/// Runs a call in a job of one rank, which has no network, or ends it as refused.
void run_alone(PendingCall& call, const std::optional<Refusal>& refused);

}  // namespace tarpon
