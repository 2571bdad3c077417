// One exact collective beside AllReduce through the memory that the ranks of a host share
// (host_exchange.h), and over the network between hosts (exchange_plan.h).
//
// Memory beside the buffers: of reduce_scatter over several hosts the parts of the ranks of this
// rank's rail; of reduce there the whole buffer, at the rail of the root.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/engine/hosts/host_exchange.h"
#include "collectives/engine/hosts/hosted_call.h"

namespace tarpon {

class HostedExchange : public HostedCall {
 public:
  /// As TarCall. `calls` outlives the call. REQUIRES: ExchangePlan::suits().
  HostedExchange(const Setting& setting, const std::shared_ptr<PendingCall>& call,
                 Endpoint& endpoint, hosts::HostCalls& calls, Time submitted, Time now);

 private:
  /// The bucket of the rail, if there is one: its memory goes back to the pool.
  class RailBucket {
   public:
    RailBucket(const ExchangePlan& plan, std::uint32_t self, std::size_t element_bytes,
               FloatBufferPool& pool);
    RailBucket(RailBucket&& other) noexcept
        : pool_(other.pool_), buffer_(std::exchange(other.buffer_, std::nullopt)) {}
    ~RailBucket();
    std::byte* data() const;

   private:
    FloatBufferPool& pool_;
    std::optional<FloatBufferPool::Buffer> buffer_;
  };

  HostedExchange(const Setting& setting, const std::shared_ptr<PendingCall>& call,
                 Endpoint& endpoint, hosts::HostCalls& calls, Time submitted, Time now,
                 const ExchangePlan& plan, RailBucket rail);
  static ExchangePlan plan_of(const PendingCall& call, const hosts::HostGroup& group);
  static Program program_of(const Setting& setting, const CallArguments& arguments,
                            const hosts::HostGroup& group, const ExchangePlan& plan,
                            const RailBucket& rail);
  void give_packets() override;
  bool has_come(Range elements);

  const RailBucket rail_;
  const std::vector<Schedule::Chunk> chunks_;  // of the messages over the network
  HostExchange exchange_;
};

}  // namespace tarpon
