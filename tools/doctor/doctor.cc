#include "tools/doctor/doctor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tools/system/drivers.h"

namespace tarpon {
namespace {

// Rungs that an unmet requirement forbids.
constexpr unsigned kZeroCopy = 1, kCopy = 2, kUring = 4, kMmsg = 8;
constexpr unsigned kXdp = kZeroCopy | kCopy, kAll = kXdp | kUring | kMmsg;

struct Requirement {
  DoctorRow row;
  unsigned forbids = 0;  // rungs, when it is not met
};

Answer answer_of(bool met) {
  return met ? Answer::yes : Answer::no;
}

/// Makes a row. Drops the command if the requirement is met.
Requirement requirement(const char* id, const char* title, Answer answer, std::string why,
                        std::string command, unsigned forbids) {
  if (answer == Answer::yes) command.clear();
  return {{id, title, answer, std::move(why), std::move(command)}, forbids};
}

Requirement up(const DoctorFacts& facts) {
  return requirement("up", "interface is up", answer_of(facts.up), facts.up ? "" : "it is down",
                     fmt::format("ip link set dev {} up", facts.name), kAll);
}

Requirement ipv4(const DoctorFacts& facts) {
  std::string why = facts.address;
  if (why.empty()) {
    why = facts.has_ipv6 ? "it has IPv6 addresses only; Tarpon needs IPv4" : "it has no address";
  }
  return requirement("ipv4", "IPv4 address", answer_of(!facts.address.empty()), why,
                     fmt::format("ip address add ADDRESS/PREFIX dev {}", facts.name), kAll);
}

Requirement io_uring(const DoctorFacts& facts) {
  const bool good = facts.rung.against_uring.empty();
  std::string command;
  if (facts.uring_disabled != 0) {
    command = "sysctl -w kernel.io_uring_disabled=0";
  } else if (facts.seccomp) {
    command = "docker run --security-opt seccomp=PROFILE (one that allows io_uring)";
  }
  return requirement(
      "io_uring", "io_uring allowed", answer_of(good),
      good ? fmt::format("sysctl kernel.io_uring_disabled={}, {}", facts.uring_disabled,
                         facts.seccomp ? "seccomp lets it pass" : "no seccomp")
           : facts.rung.against_uring,
      command, kUring);
}

Requirement udp_trains(const DoctorFacts& facts) {
  const bool good = facts.udp_gso && facts.udp_gro;
  return requirement("udp_gso_gro", "UDP GSO and GRO", answer_of(good),
                     good ? "several packets a call"
                          : fmt::format("this kernel lacks {} (Linux 5.0): one packet a call",
                                        facts.udp_gso ? "UDP_GRO" : "UDP_SEGMENT"),
                     "", 0);
}

Requirement socket_buffers(const DoctorFacts& facts) {
  const std::uint64_t least = std::min(facts.receive_buffer, facts.send_buffer);
  return requirement(
      "socket_buffers", "socket buffers", answer_of(least >= facts.wanted_buffer),
      fmt::format("{} KiB to receive, {} KiB to send{}", facts.receive_buffer >> 10,
                  facts.send_buffer >> 10,
                  least >= facts.wanted_buffer
                      ? ""
                      : "; longer bursts are lost in this host, not in the network"),
      fmt::format("sysctl -w net.core.rmem_max={0} net.core.wmem_max={0}", facts.wanted_buffer), 0);
}

Requirement processors(const DoctorFacts& facts) {
  if (!facts.cpu_quota || *facts.cpu_quota >= facts.cpus) {
    return requirement("cpu_quota", "processors without a quota", Answer::yes,
                       fmt::format("{}", facts.cpus), "", 0);
  }
  return requirement("cpu_quota", "processors without a quota", Answer::no,
                     fmt::format("{} processors, time of {:g} (cpu.max of the control group): the "
                                 "kernel stops all threads for the rest of each period, and "
                                 "bounded calls lose what comes meanwhile; raise the quota",
                                 facts.cpus, *facts.cpu_quota),
                     "", 0);
}

Requirement af_xdp(const DoctorFacts& facts) {
  return requirement("af_xdp", "AF_XDP in the kernel", answer_of(facts.has_af_xdp),
                     facts.has_af_xdp ? "" : "it was built without CONFIG_XDP_SOCKETS", "", kXdp);
}

constexpr const char* kServed = "by tarpon xdp serve";

bool lacks_native_xdp(const DoctorFacts& facts) {
  return facts.features && !facts.features->native_xdp;
}

/// Loads our program in the mode that the driver has; in native mode if that is not known.
std::string load_command(const DoctorFacts& facts) {
  if (lacks_native_xdp(facts)) return fmt::format("tarpon xdp load {} --mode skb", facts.name);
  return fmt::format("tarpon xdp load {}", facts.name);
}

Requirement capabilities(const DoctorFacts& facts, const char* id, const char* title,
                         const std::vector<std::string>& missing) {
  if (facts.rung.served) return requirement(id, title, Answer::yes, kServed, "", 0);
  return requirement(
      id, title, answer_of(missing.empty()),
      missing.empty() ? "" : fmt::format("missing {}; root has them", fmt::join(missing, ", ")),
      (lacks_native_xdp(facts) ? "sudo " + load_command(facts) + " && " : "") +
          fmt::format("sudo tarpon xdp serve {} --group $(id -gn)", facts.name),
      kXdp);
}

Requirement memlock(const DoctorFacts& facts) {
  const bool good = facts.memlock_bytes >= facts.queue_bytes;
  const std::string need = fmt::format("a queue locks {} KiB", facts.queue_bytes >> 10);
  return requirement(
      "memlock", "memory to lock", answer_of(good),
      good ? need : fmt::format("{}, allowed are {} KiB", need, facts.memlock_bytes >> 10),
      "ulimit -l unlimited", kXdp);
}

Requirement no_foreigner(const DoctorFacts& facts) {
  if (facts.rung.served) {
    return requirement("no_foreign_program", "no foreign XDP program", Answer::yes, kServed, "", 0);
  }
  if (!facts.attached_error.empty()) {
    return requirement("no_foreign_program", "no foreign XDP program", Answer::unknown,
                       facts.attached_error, "run as root", 0);
  }
  if (!facts.attached || facts.attached->ours) {
    return requirement("no_foreign_program", "no foreign XDP program", Answer::yes, "", "", 0);
  }
  const bool sharable = facts.attached->dispatcher;
  return requirement(
      "no_foreign_program", "no foreign XDP program", Answer::no,
      fmt::format("{} (id {}) is attached{}", facts.attached->name, facts.attached->id,
                  sharable ? ", which can be shared with"
                           : ": remove it with the program that attached it"),
      sharable ? fmt::format("tarpon xdp load {} --shared", facts.name) : "", kXdp);
}

Requirement native_xdp(const DoctorFacts& facts) {
  if (!facts.features) {
    return requirement("native_xdp", "native XDP in the driver", Answer::unknown,
                       facts.features_error, "", 0);
  }
  const bool good = facts.features->native_xdp;
  return requirement("native_xdp", "native XDP in the driver", answer_of(good),
                     good ? ""
                          : fmt::format("{} has none; skb mode copies",
                                        facts.driver.empty() ? "it" : facts.driver),
                     facts.loopback ? "" : load_command(facts), kXdp);
}

Requirement zero_copy(const DoctorFacts& facts) {
  const bool known = facts.features.has_value();
  const bool good = known && facts.features->zero_copy;
  return requirement("zero_copy", "zero-copy in the driver",
                     known ? answer_of(good) : Answer::unknown,
                     good    ? ""
                     : known ? "it has none: AF_XDP would silently copy"
                             : facts.features_error,
                     "", known ? kZeroCopy : 0);
}

Requirement one_buffer(const DoctorFacts& facts) {
  const std::uint32_t buffers = buffers_for_mtu(facts.mtu);
  const std::uint32_t most = facts.features ? facts.features->zero_copy_segments : 1;
  const bool good = buffers <= most;
  return requirement(
      "mtu", "MTU within one buffer", answer_of(good),
      buffers == 1 ? fmt::format("{}", facts.mtu)
      : good ? fmt::format("{}: {} buffers, of {} that the driver takes", facts.mtu, buffers, most)
             : fmt::format("{}, above {}: {} buffers a frame, never zero-copy", facts.mtu,
                           kSingleBufferMtu, buffers),
      // Loopback has no zero-copy with any MTU.
      facts.loopback ? "" : fmt::format("ip link set dev {} mtu {}", facts.name, kSingleBufferMtu),
      kZeroCopy);
}

/// For drivers that keep half of the channels for XDP.
Requirement half_of_channels(const DoctorFacts& facts, const ChannelCount& channels) {
  const std::uint32_t used = std::max(channels.receive, channels.send);
  const std::uint32_t allowed = channels.most / 2;
  const std::string count = channels.combined ? fmt::format("combined {}", allowed)
                                              : fmt::format("rx {0} tx {0}", allowed);
  return requirement("queues", "queues for XDP", answer_of(used <= allowed),
                     fmt::format("{} of {} channels in use, {} allows XDP on half of them", used,
                                 channels.most, facts.driver),
                     fmt::format("ethtool -L {} {}", facts.name, count), kXdp);
}

std::string receive_queues(const ChannelCount& channels) {
  return fmt::format("{} receive queue{}", channels.receive, channels.receive == 1 ? "" : "s");
}

Requirement queues(const DoctorFacts& facts) {
  if (!facts.channels) {
    return requirement("queues", "queues for XDP", Answer::unknown,
                       "the driver does not report its channels", "", 0);
  }
  const ChannelCount& channels = *facts.channels;
  if (driver_notes(facts.driver).half_of_channels) return half_of_channels(facts, channels);
  if (facts.driver != "veth") {
    return requirement("queues", "queues for XDP", Answer::yes,
                       fmt::format("{}; ranks on this host divide them", receive_queues(channels)),
                       "", 0);
  }
  // A veth has native XDP while it has these, so the kernel knows of a peer that we do not see.
  const bool good = facts.features && facts.features->native_xdp;
  const std::string peer =
      facts.peer_channels ? fmt::format("{}", facts.peer_channels->send) : std::string("N");
  return requirement("queues", "queues for XDP", facts.features ? answer_of(good) : Answer::unknown,
                     fmt::format("{}{}", receive_queues(channels),
                                 good ? ", no fewer than the peer sends on"
                                      : fmt::format("; the peer sends on {}, more", peer)),
                     fmt::format("ethtool -L {} rx {}", facts.name, peer), kXdp);
}

Requirement loaded(const DoctorFacts& facts) {
  if (facts.rung.served) {
    return requirement("loaded", "our XDP program loaded", answer_of(!facts.rung.served->copies),
                       kServed, "", kZeroCopy);
  }
  const std::string command = load_command(facts);
  if (!facts.attached || !facts.attached->ours) {
    return requirement("loaded", "our XDP program loaded", Answer::no,
                       "auto attaches nothing by itself; --datapath xdp does",
                       facts.loopback ? "" : command, 0);
  }
  const bool native = facts.attached->mode == xdp::AttachMode::native;
  return requirement(
      "loaded", "our XDP program loaded", answer_of(native),
      fmt::format("id {}, {} mode", facts.attached->our_program, xdp::name(facts.attached->mode)),
      lacks_native_xdp(facts) ? "" : fmt::format("tarpon xdp unload {} && {}", facts.name, command),
      kZeroCopy);
}

Requirement bpf_file_system(const DoctorFacts& facts) {
  if (!facts.bpf_file_system && facts.mounts_go_with_us) {
    return requirement("bpf_file_system", "BPF file system", Answer::no,
                       "a mount made here goes with this process, as below `ip netns exec`: "
                       "tarpon xdp load refuses",
                       "nsenter --net=/run/netns/NAME " + load_command(facts), 0);
  }
  return requirement("bpf_file_system", "BPF file system", answer_of(facts.bpf_file_system),
                     facts.bpf_file_system ? "" : "tarpon xdp load mounts it",
                     "mount -t bpf bpf /sys/fs/bpf", 0);
}

Requirement busy_polling(const DoctorFacts& facts) {
  const bool none = facts.driver == "veth" || facts.loopback;
  return requirement("busy_poll", "busy polling", none ? Answer::no : Answer::unknown,
                     none ? "without effect: its queues have no NAPI instance of their own"
                          : "known once a socket is bound; the port reports it",
                     "", 0);
}

Requirement huge_pages(const DoctorFacts& facts) {
  const std::uint64_t size = std::max<std::uint64_t>(1, facts.huge_page_bytes);
  const std::uint64_t pages = (facts.queue_bytes + size - 1) / size;
  const bool good = facts.huge_page_bytes > 0 && facts.huge_pages_free >= pages;
  return requirement(
      "huge_pages", "hugepages", answer_of(good),
      fmt::format("{} free, {} a queue; without them ordinary pages", facts.huge_pages_free, pages),
      fmt::format("sysctl -w vm.nr_hugepages=$(($(sysctl -n vm.nr_hugepages) + {}))", pages), 0);
}

/// Usable unless a requirement forbids it; the first that does says why.
DoctorRow rung_row(const char* id, const char* title, unsigned rung,
                   const std::vector<Requirement>& requirements, std::string why) {
  for (const Requirement& each : requirements) {
    if (each.row.answer != Answer::no || (each.forbids & rung) == 0) continue;
    return {id, title, Answer::no, fmt::format("{}: {}", each.row.title, each.row.why),
            each.row.command};
  }
  return {id, title, Answer::yes, std::move(why), ""};
}

std::string how_to_get(const DoctorFacts& facts) {
  const bool ours = facts.rung.served || (facts.attached && facts.attached->ours);
  return ours ? "" : "by --datapath xdp, which loads our program, or auto after tarpon xdp load";
}

}  // namespace

Diagnosis diagnose(const DoctorFacts& facts) {
  // Requirements that cannot be changed come first: the first unmet one explains a rung.
  const std::vector<Requirement> all{
      up(facts),
      ipv4(facts),
      io_uring(facts),
      udp_trains(facts),
      socket_buffers(facts),
      processors(facts),
      af_xdp(facts),
      zero_copy(facts),
      queues(facts),
      native_xdp(facts),
      one_buffer(facts),
      no_foreigner(facts),
      capabilities(facts, "cap_socket", "CAP_NET_RAW for the socket", facts.missing_for_socket),
      capabilities(facts, "cap_program", "capabilities for the program", facts.missing_for_program),
      memlock(facts),
      loaded(facts),
      bpf_file_system(facts),
      busy_polling(facts),
      huge_pages(facts)};
  Diagnosis result;
  result.rungs = {
      rung_row("af_xdp_zero_copy", "AF_XDP zero-copy", kZeroCopy, all, how_to_get(facts)),
      rung_row("af_xdp_copy", "AF_XDP copy", kCopy, all,
               "by --datapath xdp alone: auto prefers io_uring, which carries more"),
      rung_row("io_uring", "io_uring", kUring, all, ""),
      rung_row("mmsg", "mmsg with GSO and GRO", kMmsg, all, "always there")};
  for (const Requirement& each : all) result.requirements.push_back(each.row);
  result.choice = choose_rung(facts.rung);
  const bool usable = facts.up && !facts.address.empty();
  const bool could_be_xdp = facts.features && facts.features->zero_copy;
  const Rung best = could_be_xdp ? Rung::xdp : Rung::uring;
  if (!usable) {
    result.shortfall = "the interface is down or has no IPv4 address";
  } else if (result.choice.rung != best) {
    result.shortfall = fmt::format("auto does not take the best of this driver, {}", name(best));
  }
  return result;
}

std::string_view text_of(Answer answer) {
  switch (answer) {
    case Answer::yes:
      return "yes";
    case Answer::no:
      return "no";
    case Answer::unknown:
      return "?";
  }
  return "?";
}

}  // namespace tarpon
