// Cutting GRO trains and reading their control data.
#include "transport/ports/rx_batch.h"

#include <linux/udp.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace tarpon {
namespace {

struct Control {
  std::size_t segment = 0;  // 0: one datagram
  std::optional<std::uint32_t> overruns;
};

Control read_control(const RxUnit& unit) {
  Control result;
  msghdr message{};
  message.msg_control = unit.control;
  message.msg_controllen = unit.control_bytes;
  for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
    if (at->cmsg_level == IPPROTO_UDP && at->cmsg_type == UDP_GRO) {
      int segment = 0;
      std::memcpy(&segment, CMSG_DATA(at), sizeof segment);
      result.segment = static_cast<std::size_t>(std::max(segment, 0));
    } else if (at->cmsg_level == SOL_SOCKET && at->cmsg_type == SO_RXQ_OVFL) {
      std::uint32_t overruns = 0;
      std::memcpy(&overruns, CMSG_DATA(at), sizeof overruns);
      result.overruns = overruns;
    }
  }
  return result;
}

}  // namespace

RxBatch::RxBatch(std::span<const sockaddr_in> peers, std::span<const FlowSource> others)
    : addresses_(peers, others) {
  packets_.reserve(kCapacity);
}

void RxBatch::add(const RxUnit& unit) {
  const Control control = read_control(unit);
  const std::size_t segment = control.segment == 0 ? unit.bytes : control.segment;
  const Rank source = addresses_.rank_of(unit.from);
  const std::size_t before = packets_.size();
  std::size_t at = 0;
  do {
    const std::size_t bytes = std::min(segment, unit.bytes - at);
    packets_.push_back(
        {.data = unit.data + at, .length = static_cast<std::uint32_t>(bytes), .source = source});
    at += bytes;
  } while (at < unit.bytes && packets_.size() < before + kLargestUnit);
  const std::size_t cut = packets_.size() - before;
  ++statistics_.rx_units;
  statistics_.rx_packets += cut;
  statistics_.rx_bytes += at;
  if (at < unit.bytes) statistics_.rx_overruns += (unit.bytes - at + segment - 1) / segment;
  if (control.overruns) {
    const std::uint32_t lost = *control.overruns - overrun_units_;
    statistics_.rx_overruns += lost * cut;
    overrun_units_ = *control.overruns;
  }
}

void RxBatch::count(PortStatistics& statistics) const {
  statistics.rx_packets = statistics_.rx_packets;
  statistics.rx_bytes = statistics_.rx_bytes;
  statistics.rx_units = statistics_.rx_units;
  statistics.rx_overruns = statistics_.rx_overruns;
}

}  // namespace tarpon
