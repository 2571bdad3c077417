// Frames of the wire: the parser of the XDP program, the header checks that need no state, probes.
// Input: the cookie of the job (4 bytes), bytes of the frame that lie in another buffer (1), frame.
#include "bpf/packet.h"

#include <cstring>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "transport/probe_packet.h"

using tarpon::RxPacket;
using tarpon::fuzz::Input;
using tarpon::fuzz::require;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const auto job = input.number<std::uint32_t>();
  const std::uint32_t elsewhere = input.byte();
  const auto frame = input.bytes(size);
  // Of its own size, so that a sanitizer sees what is read behind it; at an odd address, since the
  // headers lie unaligned in real frames too.
  std::vector<std::uint8_t> copy(frame.size() + 2);
  if (!frame.empty()) std::memcpy(copy.data() + 2, frame.data(), frame.size());
  const std::uint8_t* const begin = copy.data() + 2;
  const std::uint8_t* const end = begin + frame.size();
  const auto bytes = static_cast<std::uint32_t>(frame.size()) + elsewhere;

  tarpon_port_key key{};
  const tarpon_header* header = nullptr;
  std::int32_t payload = 0;
  const tarpon_verdict verdict = tarpon_parse_frame(begin, end, bytes, &key, &header, &payload);
  require(verdict < TARPON_VERDICT_COUNT, "a verdict is one of those that are counted");
  if (verdict != TARPON_VERDICT_RING) {
    require(verdict <= TARPON_VERDICT_NOT_UDP, "shape alone decides");
    return 0;
  }
  require(key.zero == 0, "the key has no stray bits");
  if (payload < 0) return 0;
  const auto* const at = reinterpret_cast<const std::uint8_t*>(header);
  require(at >= begin && static_cast<std::size_t>(end - at) >= sizeof *header,
          "the header lies within the frame");
  require(
      static_cast<std::size_t>(at - begin) + sizeof *header + static_cast<std::size_t>(payload) <=
          bytes,
      "the payload lies within the frame");
  tarpon_header copied;
  std::memcpy(&copied, at, sizeof copied);
  const auto length = static_cast<std::uint32_t>(payload);
  const bool accepted = tarpon_check_header(&copied, job, length) == TARPON_HEADER_OK;
  // As a port hands it on: from its sender, without its tag.
  const RxPacket packet{reinterpret_cast<const std::byte*>(at),
                        TARPON_HEADER_BYTES + length - tarpon_tag_bytes(&copied), copied.sender};
  if (length >= tarpon_tag_bytes(&copied)) {
    const auto probe = tarpon::read_probe(packet, job);
    require(!probe || accepted, "a probe has an accepted header");
    require(!probe || probe->bytes == copied.length, "a probe tells its length");
  }
  if (!accepted) return 0;
  require(copied.length + tarpon_tag_bytes(&copied) == length,
          "an accepted header tells the true length");
  require(tarpon_stage(&copied) < TARPON_MAX_STAGES, "an accepted header has a stage");
  require(copied.type != TARPON_DATA || tarpon_flows(&copied) <= TARPON_MAX_FLOWS,
          "an accepted header has a number of flows");
  require(!tarpon_is_closed(TARPON_NO_WINDOW, &copied), "without a window nothing is closed");
  return 0;
}
