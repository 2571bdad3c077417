// Which algorithm runs a call of a communicator.
#pragma once

#include <cstdint>

#include "collectives/engine/call/call_arguments.h"
#include "collectives/hosts/host_layout.h"

namespace tarpon {

/// What decides it besides the call. Alike on all ranks.
struct CallChoice {
  std::uint32_t world = 1;
  const hosts::HostLayout* sharing = nullptr;  // how ranks share memory; null: they share none
  bool learns_shares = false;                  // CommunicatorOptions::learn_shares

  /// The call with the algorithm that is to run it, and what else follows.
  CallArguments chosen(CallArguments call) const;
};

}  // namespace tarpon
