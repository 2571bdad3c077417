#include "tools/launch/program_secret.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "collectives/environment/environment_options.h"
#include "transport/integrity.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon {
namespace {

constexpr const char* kDeed = "giving the program a secret";

/// Whether ranks that this process does not start belong to its job.
bool has_peers(const Environment& environment) {
  const auto place = find_job_place(LaunchFlags(), environment);
  return !place || (*place && (*place)->world_size > 1);
}

}  // namespace

bool names_secret(const Environment& environment) {
  return environment("TARPON_SECRET_FILE") || environment("TARPON_SECRET_FD") ||
         environment("TARPON_SECRET_FROM_STORE") == "1";
}

Result<void> give_program(const JobSecret& secret) {
  const FileDescriptor file(memfd_create("tarpon-secret", MFD_CLOEXEC));
  if (!file || fchmod(file.get(), 0600) != 0) return fail_system(errno, kDeed);
  const auto bytes = secret.bytes();
  const ssize_t written = write(file.get(), bytes.data(), bytes.size());
  if (written != static_cast<ssize_t>(bytes.size())) return fail_system(errno, kDeed);
  const int kept = dup(file.get());  // open across execve(), which keeps the number of the process
  if (kept < 0) return fail_system(errno, kDeed);
  const std::string path = fmt::format("/proc/{}/fd/{}", getpid(), kept);
  setenv("TARPON_SECRET_FILE", path.c_str(), 1);
  return {};
}

Result<void> give_program_secret(const Environment& environment) {
  const auto settings = read_settings(environment);
  if (!settings) return fail(settings.error());
  if (!settings->integrity || !needs_secret(*settings->integrity)) return {};
  if (names_secret(environment) || has_peers(environment)) return {};
  const auto secret = JobSecret::random();
  if (!secret) return fail(secret.error());
  return give_program(**secret);
}

}  // namespace tarpon
