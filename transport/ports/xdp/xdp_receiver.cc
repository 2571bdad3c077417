#include "transport/ports/xdp/xdp_receiver.h"

#include <netinet/in.h>

#include <cstring>
#include <utility>

#include "bpf/packet.h"
#include "transport/ports/xdp/xdp_frame.h"

namespace tarpon {

XdpReceiver::XdpReceiver(std::span<xdp::Queue> queues, AddressTable sources)
    : queues_(queues), sources_(std::move(sources)), parts_(queues.size()) {
  batch_.reserve(kChunksAtOnce * 4);
}

void XdpReceiver::release() {
  for (const Lent& lent : lent_) queues_[lent.queue].give_back(lent.frame);
  lent_.clear();
  batch_.clear();
  whole_used_ = 0;
}

void XdpReceiver::receive() {
  for (std::size_t queue = 0; queue < queues_.size(); ++queue) {
    queues_[queue].refill();
    const std::uint32_t count = queues_[queue].receive(chunks_);
    for (std::uint32_t i = 0; i < count; ++i) take_chunk(queue, chunks_[i]);
  }
}

void XdpReceiver::take_chunk(std::size_t queue, const xdp::ReceivedChunk& chunk) {
  std::vector<std::byte>& part = parts_[queue];
  if (part.empty() && !chunk.continues) {
    lent_.push_back({queue, chunk.frame});
    return take_frame(chunk.bytes);
  }
  part.insert(part.end(), chunk.bytes.begin(), chunk.bytes.end());
  queues_[queue].give_back(chunk.frame);
  if (chunk.continues) return;
  if (whole_used_ == whole_.size()) whole_.emplace_back();
  std::vector<std::byte>& whole = whole_[whole_used_++];
  whole.swap(part);
  part.clear();
  take_frame(whole);
}

void XdpReceiver::take_frame(std::span<const std::byte> frame) {
  tarpon_port_key key{};
  const tarpon_header* header = nullptr;
  __s32 payload_bytes = 0;
  const tarpon_verdict verdict =
      tarpon_parse_frame(frame.data(), frame.data() + frame.size(),
                         static_cast<std::uint32_t>(frame.size()), &key, &header, &payload_bytes);
  if (verdict != TARPON_VERDICT_RING || payload_bytes < 0) return;  // the program lets none through
  sockaddr_in source{};
  std::memcpy(&source.sin_addr, frame.data() + sizeof(ethhdr) + offsetof(iphdr, saddr), 4);
  std::memcpy(&source.sin_port,
              frame.data() + sizeof(ethhdr) + sizeof(iphdr) + offsetof(udphdr, source), 2);
  const std::uint32_t datagram = TARPON_HEADER_BYTES + static_cast<std::uint32_t>(payload_bytes);
  batch_.push_back({.data = frame.data() + kLowerHeaders,
                    .length = datagram,
                    .source = sources_.rank_of(source)});
  ++counted_.rx_packets;
  ++counted_.rx_units;
  counted_.rx_bytes += datagram;
}

}  // namespace tarpon
