// Descriptions that ranks exchange at rendezvous.
#include "collectives/rank_info.h"

#include "bpf/wire.h"
#include "tests/fuzz/fuzz.h"

using namespace tarpon;
using fuzz::require;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto info = decode_rank_info(std::string(fuzz::text_of(data, size)));
  if (!info) {
    require(info.error().message.find('\n') == std::string::npos, "a refusal is one line");
    return 0;
  }
  require(info->flow_ports.size() < TARPON_MAX_FLOWS, "the number of ports has a limit");
  const auto again = decode_rank_info(encode(*info));
  require(again && *again == *info, "decode inverts encode");
  return 0;
}
