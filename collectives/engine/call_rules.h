// What a communicator looks at before it takes a call.
//
// Pure: any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "collectives/engine/hosts/host_calls.h"
#include "collectives/engine/refusal.h"
#include "collectives/mechanisms.h"

namespace tarpon {

class CallRules {
 public:
  /// `host_calls` outlives it.
  CallRules(std::uint32_t world, std::uint32_t slot_bytes, const Mechanisms& mechanisms,
            const hosts::HostCalls& host_calls)
      : world_(world), slot_bytes_(slot_bytes), mechanisms_(mechanisms), host_calls_(host_calls) {}

  /// Why a call with these arguments is refused; nullopt when it is not.
  std::optional<Refusal> refusal(const CallArguments& arguments) const;

  /// Searches the input for NaN and infinity if a call with these arguments has to know.
  bool looks_nonfinite(const CallArguments& arguments) const;

 private:
  const std::uint32_t world_;
  const std::uint32_t slot_bytes_;
  const Mechanisms mechanisms_;
  const hosts::HostCalls& host_calls_;
};

}  // namespace tarpon
