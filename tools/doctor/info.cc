#include "tools/doctor/info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>

#include "bpf/wire.h"
#include "codec/hadamard.h"
#include "collectives/communicator.h"
#include "collectives/driver/datapath_port.h"
#include "collectives/engine/kernels/reduce.h"
#include "collectives/environment/launcher.h"
#include "collectives/hosts/host_memory.h"
#include "tools/build_info.h"
#include "tools/cli/environment_variables.h"
#include "tools/cli/units.h"
#include "tools/cli/wrapped_text.h"
#include "tools/doctor/info_datapaths.h"
#include "tools/system/host_info.h"
#include "tools/version.h"
#include "transport/ports/udp_options.h"
#include "xdp/base/printable.h"
#include "xdp/base/processors.h"
#include "xdp/pins.h"

namespace tarpon {
namespace {

using nlohmann::json;

InfoRow row(const char* id, const char* title, std::string text) {
  json value = text;
  return {id, title, std::move(text), std::move(value)};
}

InfoRow number(const char* id, const char* title, std::uint64_t value, const std::string& text) {
  return {id, title, text, value};
}

InfoSection version_section() {
  InfoSection section{"version", "Version and build", {}};
  section.rows.push_back(
      {"version", "tarpon",
       fmt::format("{} ({}), wire version {}", kVersion, kGitCommit, TARPON_WIRE_VERSION),
       kVersion});
  section.rows.push_back({"commit", "", "", kGitCommit});
  section.rows.push_back({"wire", "", "", TARPON_WIRE_VERSION});
  std::string build;
  for (const BuildPart& part : kBuildParts) {
    section.rows.push_back({part.id, "", "", part.value});
    if (part.value.empty()) continue;
    const bool named = part.id == std::string_view("sanitizers");
    build +=
        fmt::format("{}{}{}", build.empty() ? "" : ", ", named ? "sanitizers " : "", part.value);
  }
  section.rows.push_back({"build", "build", build, build});
  json versions = json::object();
  std::string libraries;
  for (const BuildPart& library : kLibraries) {
    versions[library.id] = library.value;
    libraries += fmt::format("{}{} {}", libraries.empty() ? "" : ", ", library.id, library.value);
  }
  section.rows.push_back({"libraries", "libraries", libraries, versions});
  return section;
}

/// Which of the extensions that kernels are compiled for this processor has.
InfoRow extensions() {
  std::vector<std::string> present, absent;
  const std::vector<std::string> flags = cpu_flags();
  for (const char* each : {"avx2", "fma", "f16c", "avx512f", "avx512dq"}) {
    const bool there = std::find(flags.begin(), flags.end(), each) != flags.end();
    (there ? present : absent).emplace_back(each);
  }
  return {
      "extensions", "instruction sets",
      fmt::format("{}{}{}",
                  present.empty() ? "none of these" : fmt::format("{}", fmt::join(present, ", ")),
                  absent.empty() ? "" : "; not ", fmt::join(absent, ", ")),
      present};
}

/// The kernels that run here, of which the last and widest is used.
template <typename Variants>
InfoRow kernels(const char* id, const char* title, const Variants& variants) {
  std::vector<std::string_view> names;
  for (const auto& each : variants) names.push_back(each.instruction_set);
  return {id, title, fmt::format("{} (runnable: {})", names.back(), fmt::join(names, ", ")),
          json{{"used", names.back()}, {"runnable", names}}};
}

InfoSection processor_section() {
  InfoSection section{"processor", "Processor", {}};
  const HostInfo host = read_host_info();
  section.rows.push_back(
      {"model", "processor",
       fmt::format("{}, {} CPUs for this process{}",
                   host.cpu_model.empty() ? "unknown model" : host.cpu_model, host.cpus,
                   host.cpu_quota ? fmt::format(", of which its control group grants the time of "
                                                "{:g}",
                                                *host.cpu_quota)
                                  : ""),
       host.cpu_model});
  section.rows.push_back({"cpus", "", "", host.cpus});
  section.rows.push_back(
      {"cpu_quota", "", "", host.cpu_quota ? json(*host.cpu_quota) : json(nullptr)});
#if defined(__x86_64__)
  section.rows.push_back(extensions());
#endif
  section.rows.push_back(kernels("reduction", "reduction kernels", reduce_variants()));
  section.rows.push_back(kernels("codec", "codec kernels", codec::codec_kernels()));
  section.rows.push_back(row("kernel", "Linux", host.kernel));
  return section;
}

/// Size of the memory that `ranks` ranks of a host share.
std::uint64_t shared_bytes(std::uint32_t ranks) {
  return hosts::HostMemory::bytes({.ranks = ranks});
}

InfoSection limit_section() {
  const EndpointOptions endpoint;
  constexpr std::uint32_t most = Communicator::kMostOfOne;
  return {
      "limits",
      "Limits",
      {number("ranks", "ranks of a job", Communicator::kMostRanks,
              fmt::format("{}; above {} ranks as many on each of at most {} hosts",
                          Communicator::kMostRanks, most, most)),
       number("flows", "UDP flows to a rank", TARPON_MAX_FLOWS,
              fmt::format("{}; a trial compares {} with 1", TARPON_MAX_FLOWS, kTrialFlows)),
       number("slot_bytes_mtu_1500", "payload of a packet", max_payload_for_mtu(1500),
              fmt::format("{} bytes at MTU 1500, {} at 9000", max_payload_for_mtu(1500),
                          max_payload_for_mtu(9000))),
       number("slot_bytes_mtu_9000", "", max_payload_for_mtu(9000), ""),
       number("open_operations", "open calls of a tag", endpoint.window,
              fmt::format("{}", endpoint.window)),
       number("retain_bytes", "results kept", endpoint.retain_bytes,
              format_bytes(endpoint.retain_bytes) + " unless --retain says otherwise"),
       number(
           "host_bytes", "memory of a host", shared_bytes(most),
           fmt::format("addresses for {} with 2 ranks that share it, {} with {}; calls take what "
                       "they use",
                       format_bytes(shared_bytes(2)), format_bytes(shared_bytes(most)), most)),
       number("remembered_tags", "tags remembered", endpoint.remembered_tags,
              fmt::format("{}", endpoint.remembered_tags)),
       number("threads", "threads of a rank", kThreadsOfRank,
              fmt::format("{} beside its caller, and one for each further lane", kThreadsOfRank)),
       number("lanes", "lanes of a rank", lanes_by_processors(usable_processors(), 1),
              fmt::format("{} if it is alone on this machine, up to {} with --lanes",
                          lanes_by_processors(usable_processors(), 1), kMaxLanes)),
       number("descriptors", "descriptors of a rank", descriptors_of_rank(0, most),
              fmt::format("up to {} in a job of 2, {} in one of {}; more with AF_XDP, --flows 8 or "
                          "shared memory",
                          descriptors_of_rank(0, 2), descriptors_of_rank(0, most), most))}};
}

InfoSection path_section(const Environment& environment) {
  const std::string runtime = runtime_directory(environment);
  const std::string sockets = fmt::format("@tarpon.{}.JOB.RANK", geteuid());
  const bool mounted = xdp::bpf_file_system_mounted();
  const auto flight = environment("TARPON_FLIGHT");
  return {"paths",
          "Paths",
          {{"status_sockets", "status sockets", sockets + ", abstract, in the network namespace",
            sockets},
           {"bpf_file_system", "BPF file system",
            fmt::format("{}, {}", xdp::kBpfFileSystem,
                        mounted ? "mounted" : "not mounted: tarpon xdp load mounts it"),
            json{{"path", xdp::kBpfFileSystem}, {"mounted", mounted}}},
           {"pins", "pinned programs", "below " + xdp::pin_root(), xdp::pin_root()},
           {"flight", "flight recordings",
            flight ? printable(*flight, kLongestMessage)
                   : "nowhere: set TARPON_FLIGHT, or give --flight",
            flight ? json(*flight) : json(nullptr)},
           {"rendezvous", "rendezvous of launchers", "below " + printable(runtime, kLongestMessage),
            runtime}}};
}

/// This process's place in a job by the environment variables.
InfoRow place_row(const Environment& environment) {
  const auto place = find_job_place({}, environment);
  if (!place)
    return {"place", "place in a job", printable(place.error().message, kLongestMessage), nullptr};
  if (!*place) return {"place", "place in a job", "none by the variables of a launcher", nullptr};
  const JobPlace& found = **place;
  return {"place", "place in a job",
          fmt::format("rank {} of {}, by {}", found.rank, found.world_size, found.launcher),
          json{{"rank", found.rank}, {"world_size", found.world_size}, {"by", found.launcher}}};
}

InfoSection environment_section(const Environment& environment) {
  InfoSection section{"environment", "Environment", {place_row(environment)}};
  json values = json::object();
  std::string unset;
  for (const std::string& name : environment_names()) {
    const auto value = environment(name.c_str());
    values[name] = value ? json(*value) : json(nullptr);
    if (value) {
      section.rows.push_back({"", name, printable(*value, kLongestMessage), nullptr});
    } else {
      unset += (unset.empty() ? "" : ", ") + name;
    }
  }
  if (!unset.empty()) section.rows.push_back({"", "not set", unset, nullptr});
  section.rows.push_back({"variables", "", "", values});
  return section;
}

}  // namespace

std::uint32_t descriptors_of_rank(Rank rank, std::uint32_t world) {
  constexpr std::uint32_t kOwn = 13;  // sockets of data path and mesh, events, rings, status socket
  const std::uint32_t others = world - 1;
  return kOwn + others + (rank == 0 ? others : 1);
}

std::vector<InfoSection> read_info(const Environment& environment) {
  return {version_section(), processor_section(),       read_datapaths(environment),
          limit_section(),   path_section(environment), environment_section(environment)};
}

std::string info_text(const std::vector<InfoSection>& sections) {
  constexpr std::size_t kColumns = 100, kTitle = 23;
  std::string text;
  for (const InfoSection& section : sections) {
    text += "# " + section.title + "\n";
    for (const InfoRow& row : section.rows) {
      if (row.title.empty()) continue;
      text += wrapped(fmt::format("{:<{}} {}", row.title, kTitle - 1, row.text),
                      std::string(kTitle, ' '), kColumns) +
              "\n";
    }
  }
  return text;
}

nlohmann::json info_results(const std::vector<InfoSection>& sections) {
  json results = json::object();
  for (const InfoSection& section : sections) {
    for (const InfoRow& row : section.rows) {
      if (!row.id.empty()) results[section.id][row.id] = row.value;
    }
  }
  return results;
}

}  // namespace tarpon
