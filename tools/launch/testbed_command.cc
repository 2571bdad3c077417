#include "tools/launch/testbed_command.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "tools/cli/exit_code.h"
#include "tools/cli/voice.h"
#include "tools/collective/file_job.h"
#include "tools/job/session.h"
#include "tools/launch/exec_program.h"
#include "tools/launch/program_secret.h"

namespace tarpon {
namespace {

/// Replaces this process; returns only on failure.
int execute(const std::vector<std::string>& command, const LaunchPlace& place,
            const TestbedPlaces& places) {
  const std::string address = place.rendezvous->substr(std::strlen("tcp://"));
  const std::size_t colon = address.rfind(':');
  setenv("RANK", std::to_string(place.rank).c_str(), 1);
  const std::uint32_t size = place.world_size;
  setenv("LOCAL_RANK", std::to_string(places.local_rank(place.rank, size)).c_str(), 1);
  setenv("LOCAL_WORLD_SIZE", std::to_string(places.local_size(place.rank, size)).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
  setenv("MASTER_ADDR", address.substr(0, colon).c_str(), 1);
  setenv("MASTER_PORT", address.substr(colon + 1).c_str(), 1);
  // Name the interface, because otherwise a veth counts as a container's.
  setenv("TARPON_SOCKET_IFNAME", place.interface->c_str(), 1);
  setenv("GLOO_SOCKET_IFNAME", place.interface->c_str(), 1);
  if (place.secret != nullptr && !names_secret(process_environment())) {
    if (const auto given = give_program(*place.secret); !given) return report(given.error());
  }
  std::vector<std::string> words;
  words.reserve(command.size());
  for (const std::string& word : command) words.push_back(path_of_rank(word, place.rank));
  return exec_program(std::move(words));
}

}  // namespace

void add_testbed_options(cli::OptionTable& table, TestbedCommandOptions& options) {
  add_testbed_job_options(table, options.job);
  add_program(table, options.command);
  table.note(
      "Set for the program: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, "
      "MASTER_PORT, TARPON_SOCKET_IFNAME, the same for Gloo; TARPON_SECRET_FILE where "
      "TARPON_INTEGRITY is set, and no variable names a secret. In its arguments, {rank} becomes "
      "the rank.");
}

int run_testbed(TestbedCommandOptions options) {
  if (options.job.local_ranks == 0) {
    Voice().error("how many network namespaces? Give --local-ranks P");
    return 2;
  }
  options.job.network = Network::veth;
  if (auto good = check_job_options(options.job); !good) return report(good.error());
  return run_job(
      options.job,
      [&](const LaunchPlace& place) {
        return execute(options.command, place, options.job.testbed.places);
      },
      /*foreign=*/true);
}

}  // namespace tarpon
