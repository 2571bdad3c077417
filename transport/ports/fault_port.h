// Injects faults from a seed over any port: packets that the inner port received are dropped,
// duplicated, held back or corrupted before the endpoint sees them. Works on live jobs and in
// simulation alike.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "transport/fault_options.h"
#include "transport/ports/forwarding_port.h"
#include "transport/random.h"

namespace tarpon {

/// Numbers of packets that have met each fault so far.
struct FaultStatistics {
  std::uint64_t lost = 0;
  std::uint64_t duplicated = 0;
  std::uint64_t reordered = 0;
  std::uint64_t corrupted = 0;
  std::uint64_t truncated = 0;
};

class FaultPort : public ForwardingPort {
 public:
  FaultPort(std::unique_ptr<Port> inner, const FaultOptions& options);

  const PortCapabilities& capabilities() const override { return capabilities_; }
  std::span<const RxPacket> receive(Time now) override;
  void wait(Time now, Time until) override;

  const FaultStatistics& faults() const { return faults_; }

  /// When the next packet held back is due; kNever when none is. Simulation advances to it.
  Time next_release() const;

  /// Calls `tell` with each packet that meets a fault, and which: "lost", "duplicated",
  /// "reordered", "corrupted", "truncated".
  void watch(std::function<void(Time, const RxPacket&, std::string_view)> tell) {
    tell_ = std::move(tell);
  }

  /// Ends all faults from now on; packets held back still come.
  void heal() {
    options_.loss = options_.duplicate = options_.reorder = options_.corrupt = options_.truncate =
        0;
  }

 private:
  struct Held {
    Time release;
    std::vector<std::byte> bytes;
    Rank source;
  };
  void pass(const RxPacket& packet);
  void pass_copy(std::vector<std::byte> bytes, Rank source);
  void inject(Time now, const RxPacket& packet);
  void count(std::uint64_t& fault, Time now, const RxPacket& packet, std::string_view name);

  PortCapabilities capabilities_;
  FaultOptions options_;
  Random random_;
  FaultStatistics faults_;
  std::function<void(Time, const RxPacket&, std::string_view)> tell_;
  std::vector<Held> held_;
  std::vector<RxPacket> batch_;
  std::deque<std::vector<std::byte>> copies_;  // changed or held-back packets of the batch
};

}  // namespace tarpon
