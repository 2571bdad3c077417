// Packets of strangers at a sealed port: none is opened, each is counted.
#include <algorithm>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "transport/ports/sealed_port.h"
#include "transport/simulated/simulated_port.h"

using tarpon::fuzz::require;

namespace {

constexpr tarpon::Rank kRanks = 3;

/// A port that has received `packets`.
class GivenPort : public tarpon::ForwardingPort {
 public:
  GivenPort(std::unique_ptr<tarpon::Port> inner, std::vector<tarpon::RxPacket> packets)
      : ForwardingPort(std::move(inner)), packets_(std::move(packets)) {}
  std::span<const tarpon::RxPacket> receive(tarpon::Time) override { return packets_; }

 private:
  std::vector<tarpon::RxPacket> packets_;
};

}  // namespace

/// The input: for each packet a byte with its source, a byte with its length in steps of 8, and the
/// packet.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Each of its own size, so that a sanitizer sees what is read behind it.
  std::deque<std::vector<std::byte>> bytes;
  std::vector<tarpon::RxPacket> packets;
  for (std::size_t at = 0; at + 2 <= size;) {
    const auto source = static_cast<tarpon::Rank>(data[at] % (kRanks + 1));
    const std::size_t length = std::min<std::size_t>(data[at + 1] * 8u, size - at - 2);
    const auto* const begin = reinterpret_cast<const std::byte*>(data + at + 2);
    const auto& packet = bytes.emplace_back(begin, begin + length);
    packets.push_back({packet.data(), static_cast<std::uint32_t>(length),
                       source == kRanks ? tarpon::kUnknownRank : source});
    at += 2 + length;
  }
  const std::size_t count = packets.size();
  for (const bool encrypts : {false, true}) {
    tarpon::SimulatedNetwork network({.ranks = kRanks});
    tarpon::SealedPort port(std::make_unique<GivenPort>(network.make_port(0), packets),
                            {.ranks = kRanks, .encrypts = encrypts});
    require(port.receive(tarpon::Time{}).empty(), "no packet of a stranger is opened");
    const tarpon::PortStatistics counted = port.statistics();
    require(counted.rx_forged == count && counted.rx_replayed == 0, "each one is counted");
  }
  return 0;
}
