// Verdicts of rank 0, which a rank that joins decodes.
#include "collectives/rendezvous/hello.h"
#include "tests/fuzz/fuzz.h"

using tarpon::fuzz::require;
using namespace tarpon::rendezvous;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body = tarpon::fuzz::text_of(data, size);
  const auto verdict = decode_verdict(body);
  if (!verdict) return 0;
  require(body.size() >= 8, "a verdict has a code and a job");
  require(!verdict->error || verdict->error->code <= tarpon::Error::Code::io,
          "the code is a known one");
  const auto again = decode_verdict(encode(*verdict));
  require(again && again->job == verdict->job, "decode inverts encode");
  require(again->error.has_value() == verdict->error.has_value(), "an error stays one");
  if (verdict->error) {
    require(again->error->code == verdict->error->code &&
                again->error->message == verdict->error->message,
            "the error survives");
  }
  return 0;
}
