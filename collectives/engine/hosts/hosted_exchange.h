// One exact collective beside AllReduce among the ranks of one host, through the memory that they
// share (host_exchange.h). It sends no packets while all goes well.
#pragma once

#include <memory>

#include "collectives/engine/hosts/host_exchange.h"
#include "collectives/engine/hosts/hosted_call.h"

namespace tarpon {

class HostedExchange : public HostedCall {
 public:
  /// As TarCall. `calls` outlives the call. REQUIRES: suits().
  HostedExchange(const Setting& setting, const std::shared_ptr<PendingCall>& call,
                 Endpoint& endpoint, hosts::HostCalls& calls, Time submitted, Time now);

  /// Whether ranks that lie as `layout` says can run a collective of `parts` so. Null: one whose
  /// arguments are refused.
  static bool suits(const CollectiveParts* parts, const hosts::HostLayout& layout);

 private:
  static Program program_of(const Setting& setting, const PendingCall& call);
  LineWork& work_in_memory() override { return exchange_; }

  HostExchange exchange_;
};

}  // namespace tarpon
