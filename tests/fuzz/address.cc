// Addresses of rank 0, the file that tells one, and ranges of ports.
#include "collectives/rendezvous/address.h"

#include "collectives/port_range.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scratch_file.h"

using namespace tarpon;
using fuzz::require;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(fuzz::text_of(data, size));
  const auto content = rendezvous::read_address_file(fuzz::path_of_file(data, size));
  require(!content || content->address.sin_port != 0, "a file tells a port");
  if (const auto address = rendezvous::parse_address(text)) {
    require(address->text == text, "an address remembers its text");
    require(address->is_file() == address->host.empty(), "a host or a path");
    require(address->is_file() == (address->port == 0), "a host has a port");
  } else {
    require(address.error().message.find(text) != std::string::npos, "a refusal names the value");
  }
  if (const auto range = parse_port_range(text)) {
    require(range->first > 0 && range->first <= range->last, "a range has ports");
  } else {
    require(range.error().message.find(text) != std::string::npos, "a refusal names the value");
  }
  return 0;
}
