// Addresses of rank 0, the file that tells one, and ranges of ports.
#include "collectives/rendezvous/address.h"

#include <sys/mman.h>
#include <unistd.h>

#include "collectives/port_range.h"
#include "tests/fuzz/fuzz.h"
#include "xdp/base/file_descriptor.h"

using namespace tarpon;
using fuzz::require;

namespace {

/// A file in memory; made once, since a system call costs more than the parser.
const FileDescriptor& scratch_file() {
  static const FileDescriptor file(::memfd_create("tarpon-fuzz", MFD_CLOEXEC));
  require(static_cast<bool>(file), "memfd_create works");
  return file;
}

void try_file(const std::string& text) {
  const int file = scratch_file().get();
  require(::ftruncate(file, 0) == 0, "ftruncate works");
  require(::pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()),
          "pwrite works");
  const auto content = rendezvous::read_address_file("/proc/self/fd/" + std::to_string(file));
  require(!content || content->address.sin_port != 0, "a file tells a port");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(fuzz::text_of(data, size));
  try_file(text);
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
