// Flight recordings that an operator collects from hosts: parsing, and merging them.
// Input: recordings one after another, each behind its length (2 bytes).
#include <cstring>

#include "collectives/flight/file.h"
#include "tests/fuzz/fuzz.h"
#include "tools/flight/merge.h"

using namespace tarpon;
using fuzz::Input;
using fuzz::require;

namespace {

void check_merged(const FlightJob& job) {
  require(!job.ranks.empty() && job.ranks.size() <= 64, "a job has 1 to 64 ranks");
  for (const auto& [key, operation] : operations_of(job)) {
    require(operation.size() == job.ranks.size(), "every rank has its entry");
    begin_of(job, operation);
    for (const OperationAtRank& at : operation) static_cast<void>(at.lacks(~0ull));
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  std::vector<FlightDump> dumps;
  while (!input.empty() && dumps.size() < 8) {
    const auto bytes = input.bytes(input.number<std::uint16_t>());
    auto dump = parse_flight(std::as_bytes(bytes), "input");
    if (!dump) {
      require(dump.error().message.starts_with("input: "), "a refusal names the file");
      continue;
    }
    require(dump->records.size() <= Recorder::kCapacity, "no more records than a recorder has");
    require(dump->header.rank < dump->header.world_size, "the rank is one of the job");
    require(dump->header.host.back() == '\0', "the host's name ends");
    dumps.push_back(std::move(*dump));
  }
  const auto job = merge_flights(std::move(dumps), std::nullopt);
  if (job) check_merged(*job);
  return 0;
}
