#include "transport/ports/fault_port.h"

#include <algorithm>
#include <utility>

namespace tarpon {

FaultPort::FaultPort(std::unique_ptr<Port> inner, const FaultOptions& options)
    : ForwardingPort(std::move(inner)),
      capabilities_(ForwardingPort::capabilities()),
      options_(options),
      random_(options.seed) {
  // These faults are injected after the kernel has verified its checksum: nothing below detects
  // them.
  if (options.corrupt > 0 || options.truncate > 0) capabilities_.checksums = false;
}

void FaultPort::pass(const RxPacket& packet) {
  batch_.push_back(packet);
}

void FaultPort::pass_copy(std::vector<std::byte> bytes, Rank source) {
  copies_.push_back(std::move(bytes));
  const std::vector<std::byte>& kept = copies_.back();
  batch_.push_back({kept.data(), static_cast<std::uint32_t>(kept.size()), source});
}

void FaultPort::count(std::uint64_t& fault, Time now, const RxPacket& packet,
                      std::string_view name) {
  ++fault;
  if (tell_) tell_(now, packet, name);
}

void FaultPort::inject(Time now, const RxPacket& packet) {
  if (random_.chance(options_.loss)) {
    count(faults_.lost, now, packet, "lost");
    return;
  }
  std::vector<std::byte> bytes;
  const auto copy = [&] {
    if (bytes.empty()) bytes.assign(packet.data, packet.data + packet.length);
  };
  if (packet.length > 0 && random_.chance(options_.corrupt)) {
    copy();
    const std::uint64_t bit = random_.below(std::uint64_t{packet.length} * 8);
    bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    count(faults_.corrupted, now, packet, "corrupted");
  }
  if (packet.length > 1 && random_.chance(options_.truncate)) {
    copy();
    bytes.resize(1 + random_.below(packet.length - 1));
    count(faults_.truncated, now, packet, "truncated");
  }
  if (random_.chance(options_.duplicate)) {
    if (bytes.empty()) {
      pass(packet);
    } else {
      pass_copy(bytes, packet.source);
    }
    count(faults_.duplicated, now, packet, "duplicated");
  }
  if (random_.chance(options_.reorder)) {
    copy();
    const auto most = static_cast<std::uint64_t>(options_.reorder_delay.count());
    held_.push_back({now + Duration(static_cast<std::int64_t>(random_.below(most + 1))),
                     std::move(bytes), packet.source});
    count(faults_.reordered, now, packet, "reordered");
  } else if (bytes.empty()) {
    pass(packet);
  } else {
    pass_copy(std::move(bytes), packet.source);
  }
}

std::span<const RxPacket> FaultPort::receive(Time now) {
  batch_.clear();
  copies_.clear();
  for (const RxPacket& packet : ForwardingPort::receive(now)) inject(now, packet);
  for (Held& held : held_) {
    if (held.release <= now) pass_copy(std::move(held.bytes), held.source);
  }
  std::erase_if(held_, [now](const Held& held) { return held.release <= now; });
  return batch_;
}

Time FaultPort::next_release() const {
  Time next = kNever;
  for (const Held& held : held_) next = std::min(next, held.release);
  return next;
}

void FaultPort::wait(Time now, Time until) {
  ForwardingPort::wait(now, std::min(until, next_release()));
}

}  // namespace tarpon
