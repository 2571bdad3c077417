// Hellos of ranks, or of strangers, that come to the meeting: decoding and comparison.
#include "collectives/rendezvous/hello.h"

#include "tests/fuzz/fuzz.h"

using tarpon::fuzz::require;
using namespace tarpon::rendezvous;

namespace {

/// One line that a terminal can show. A hostile hello is quoted in it.
void require_one_line(const std::string& message) {
  require(message.size() < 600, "a message stays short");
  for (const char c : message) require(c >= ' ' && c <= '~', "a message is printable");
}

Hello host_of(const Hello& other, bool same_shape) {
  Hello host;
  host.version = same_shape ? other.version : 1;
  host.world_size = same_shape ? other.world_size : 4;
  host.agreed = "version=1\nalgorithm=transpose\nmtu=1500\n";
  return host;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto hello = decode_hello(tarpon::fuzz::text_of(data, size));
  if (!hello) return 0;
  const auto again = decode_hello(encode(*hello));
  require(again.has_value(), "decode inverts encode");
  require(again->rank == hello->rank && again->nonce == hello->nonce &&
              again->agreed == hello->agreed && again->world_size == hello->world_size,
          "every field survives");
  for (const bool same_shape : {false, true}) {
    const auto error = difference(host_of(*hello, same_shape), *hello);
    if (error) {
      require_one_line(error->for_host.message);
      require_one_line(error->for_guest.message);
    }
    require(error || hello->rank < hello->world_size, "an accepted rank is in range");
  }
  require(hello->rank >= hello->world_size || !difference(*hello, *hello),
          "a rank does not differ from itself");
  return 0;
}
