// A port that passes everything on to another one: the base of ports that change one thing.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "transport/port.h"

namespace tarpon {

/// The contract is that of Port, also for the threads that may call.
class ForwardingPort : public Port {
 public:
  /// Owns `inner`.
  explicit ForwardingPort(std::unique_ptr<Port> inner) : inner_(std::move(inner)) {}

  const PortCapabilities& capabilities() const override { return inner_->capabilities(); }
  std::span<TxPacket> transmit_frames(std::size_t at_most) override {
    return inner_->transmit_frames(at_most);
  }
  void transmit(std::span<TxPacket> packets) override { inner_->transmit(packets); }
  std::size_t unsent() const override { return inner_->unsent(); }
  bool holds(Lender lender) const override { return inner_->holds(lender); }
  void drop_unsent(Lender lender) override { inner_->drop_unsent(lender); }
  std::span<const RxPacket> receive(Time now) override { return inner_->receive(now); }
  void wait(Time now, Time until) override { inner_->wait(now, until); }
  void wake() override { inner_->wake(); }
  BellName bell() const override { return inner_->bell(); }
  void ring(const BellName& bell) override { inner_->ring(bell); }
  void end_multicast() override { inner_->end_multicast(); }
  void publish(std::uint32_t tag, std::uint32_t lowest) override { inner_->publish(tag, lowest); }
  PortStatistics statistics() const override { return inner_->statistics(); }
  std::optional<Error> failure() const override { return inner_->failure(); }

 private:
  std::unique_ptr<Port> inner_;
};

}  // namespace tarpon
