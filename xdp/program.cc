// The XDP program from loading to detaching. It is found by what the kernel says is attached.
#include "xdp/program.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "xdp/bpf_object_info.h"
#include "xdp/pins.h"

// Made by tarpon_embed_bpf().
extern "C" {
extern const char tarpon_bpf_xdp_object[];
extern const char tarpon_bpf_xdp_object_end[];
}

namespace tarpon::xdp {
namespace {

// Several ranks start at once: one attaches the program, the others find it. A program that its
// last holder has closed is detached a moment later.
constexpr int kTries = 50;
constexpr auto kPause = std::chrono::milliseconds(5);

struct ObjectCloser {
  void operator()(bpf_object* object) const { ::bpf_object__close(object); }
};
using Object = std::unique_ptr<bpf_object, ObjectCloser>;

FileDescriptor duplicate(int fd) {
  return FileDescriptor(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

/// A map of this name with the layout that this build expects.
struct MapPlan {
  std::string_view name;
  std::uint32_t key_bytes;
  std::uint32_t value_bytes;
  std::uint32_t entries;
};

constexpr MapPlan kPorts{"tarpon_ports", sizeof(tarpon_port_key), sizeof(tarpon_port_entry),
                         TARPON_MAX_ENTRIES};
constexpr MapPlan kSockets{"tarpon_xsks", 4, 4, TARPON_MAX_QUEUES};
constexpr MapPlan kSlots{"tarpon_slots", 4, sizeof(tarpon_port_slot), TARPON_MAX_PORTS};
constexpr MapPlan kWindows{"tarpon_windows", 4, 4, TARPON_MAX_PORTS};
constexpr MapPlan kCounts{"tarpon_counts", 4, 8, TARPON_VERDICT_COUNT};
constexpr MapPlan kLate{"tarpon_late", 4, 8, TARPON_MAX_PORTS* TARPON_MAX_SENDERS};

bool fits(const bpf_map_info& info, const MapPlan& plan) {
  return plan.name == info.name && info.key_size == plan.key_bytes &&
         info.value_size == plan.value_bytes && info.max_entries == plan.entries;
}

bool is_loopback(const std::string& interface) {
  const FileDescriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  interface.copy(request.ifr_name, IFNAMSIZ - 1);
  return socket && ::ioctl(socket.get(), SIOCGIFFLAGS, &request) == 0 &&
         (request.ifr_flags & IFF_LOOPBACK) != 0;
}

std::string load_in_skb_mode(const std::string& interface) {
  return fmt::format("load it in skb mode: tarpon xdp load {} --mode skb", interface);
}

/// Explains why attaching failed, by the error number: the kernel's own reasons are in a log that
/// creating a link does not return.
Error attach_error(int error, const std::string& interface, AttachMode mode) {
  if (error == EPERM || error == EACCES) {
    return Error::system(error, fmt::format("attaching to {} needs CAP_BPF and CAP_NET_ADMIN "
                                            "(run as root)",
                                            interface));
  }
  if (mode == AttachMode::native && is_loopback(interface)) {
    return Error::make(Error::Code::unavailable,
                       fmt::format("{} is loopback, which has no native XDP: choose another "
                                   "interface or another data path",
                                   interface));
  }
  if (mode == AttachMode::native) {
    switch (error) {
      case EOPNOTSUPP:
        return Error::make(Error::Code::unavailable,
                           fmt::format("the driver of {} has no native XDP, or none while LRO is "
                                       "on: ethtool -K {} lro off, or {}",
                                       interface, interface, load_in_skb_mode(interface)));
      case EINVAL:
      case ERANGE:
      case EMSGSIZE:
        return Error::make(Error::Code::unavailable,
                           fmt::format("the driver of {} refuses native XDP with its MTU: ip link "
                                       "set dev {} mtu 3498, or {}",
                                       interface, interface, load_in_skb_mode(interface)));
      case ENOSPC:
      case ENOMEM:
        return Error::make(
            Error::Code::unavailable,
            fmt::format("{} has too few queues for native XDP (a veth needs as many receive queues "
                        "as its peer sends on; some NICs need half of their channels): ethtool -L "
                        "{} rx N",
                        interface, interface));
      default:
        break;
    }
  }
  return Error::system(error, "attaching to " + interface);
}

/// Silences libbpf, which prints to standard error what our own error says in one line.
class QuietLibbpf {
 public:
  QuietLibbpf() : previous_(::libbpf_set_print(nullptr)) {}
  ~QuietLibbpf() { ::libbpf_set_print(previous_); }
  QuietLibbpf(const QuietLibbpf&) = delete;
  QuietLibbpf& operator=(const QuietLibbpf&) = delete;

 private:
  libbpf_print_fn_t previous_;
};

}  // namespace

Result<Program> Program::load() {
  const QuietLibbpf quiet;
  const auto size = static_cast<std::size_t>(tarpon_bpf_xdp_object_end - tarpon_bpf_xdp_object);
  const Object object(::bpf_object__open_mem(tarpon_bpf_xdp_object, size, nullptr));
  if (object == nullptr) return fail_system(errno, "opening the embedded XDP program");
  if (const int error = ::bpf_object__load(object.get()); error != 0) {
    return fail_system(-error,
                       "loading the XDP program (needs CAP_BPF and CAP_NET_ADMIN; run as root)");
  }
  PrivateDescriptor fd = duplicate(
      ::bpf_program__fd(::bpf_object__find_program_by_name(object.get(), kProgramName.data())));
  const auto map = [&object](const MapPlan& plan) {
    return duplicate(::bpf_object__find_map_fd_by_name(object.get(), plan.name.data()));
  };
  bpf_prog_info info{};
  if (!object_info(fd.get(), info)) return fail_system(errno, "the XDP program's id");
  auto maps = ProgramMaps::open({.ports = map(kPorts),
                                 .sockets = map(kSockets),
                                 .slots = map(kSlots),
                                 .windows = map(kWindows),
                                 .counts = map(kCounts),
                                 .late = map(kLate)});
  if (!maps) return fail(maps.error());
  return Program(info.id, std::move(fd), std::move(*maps));
}

Result<Program> Program::find(unsigned interface) {
  auto attached = attached_to(interface);
  if (!attached) return fail(attached.error());
  if (!*attached) {
    return fail(Error::Code::unavailable,
                fmt::format("{} has no XDP program", interface_text(interface)));
  }
  if (!(*attached)->ours) {
    return fail(Error::Code::unavailable,
                fmt::format("{} has the XDP program {} (id {}) of somebody else",
                            interface_text(interface), (*attached)->name, (*attached)->id));
  }
  const std::uint32_t id = (*attached)->our_program;
  PrivateDescriptor fd = FileDescriptor(::bpf_prog_get_fd_by_id(id));
  std::array<std::uint32_t, 16> ids{};
  bpf_prog_info info{};
  info.nr_map_ids = ids.size();
  info.map_ids = reinterpret_cast<std::uintptr_t>(ids.data());
  if (!fd || !object_info(fd.get(), info)) {
    return fail_system(errno, fmt::format("XDP program {}", id));
  }
  ProgramMaps::Descriptors found;
  for (std::uint32_t i = 0; i < std::min<std::size_t>(info.nr_map_ids, ids.size()); ++i) {
    FileDescriptor one(::bpf_map_get_fd_by_id(ids[i]));
    bpf_map_info map{};
    if (!one || !object_info(one.get(), map)) continue;
    if (fits(map, kPorts))
      found.ports = std::move(one);
    else if (fits(map, kSockets))
      found.sockets = std::move(one);
    else if (fits(map, kSlots))
      found.slots = std::move(one);
    else if (fits(map, kWindows))
      found.windows = std::move(one);
    else if (fits(map, kCounts))
      found.counts = std::move(one);
    else if (fits(map, kLate))
      found.late = std::move(one);
  }
  if (!found.complete()) {
    return fail(
        Error::Code::unavailable,
        fmt::format("the XDP program on {0} is of another version of Tarpon: tarpon xdp unload {0}",
                    interface_text(interface)));
  }
  auto maps = ProgramMaps::open(std::move(found));
  if (!maps) return fail(maps.error());
  Program program(id, std::move(fd), std::move(*maps));
  program.link_ = find_link(id, interface);
  return program;
}

Result<Program> Program::use(unsigned interface, AttachMode mode) {
  for (int i = 0;; ++i) {
    if (i > 0) std::this_thread::sleep_for(kPause);
    auto attached = attached_to(interface);
    if (!attached) return fail(attached.error());
    if (*attached) {
      auto found = find(interface);
      // A link that no process holds any more cannot be joined: its program is about to go.
      const bool stays = found ? found->link_ || (*attached)->dispatcher : !(*attached)->ours;
      if (stays || i == kTries) return found;
      continue;
    }
    auto program = load();
    if (!program) return program;
    bpf_link_create_opts options{};
    options.sz = sizeof options;
    options.flags = mode == AttachMode::generic ? XDP_FLAGS_SKB_MODE : XDP_FLAGS_DRV_MODE;
    program->link_ = FileDescriptor(
        ::bpf_link_create(program->fd(), static_cast<int>(interface), BPF_XDP, &options));
    if (program->link_) {
      program->attached_here_ = true;
      return program;
    }
    const int error = errno;
    if ((error == EBUSY || error == EEXIST) && i < kTries) continue;
    return fail(attach_error(error, interface_text(interface), mode));
  }
}

Result<void> Program::pin(const std::string& directory) const {
  if (!link_) {
    return fail(Error::Code::unavailable, "the XDP program is attached without a link to pin");
  }
  if (auto there = make_pin_directory(directory); !there) return there;
  const ProgramMaps::Descriptors& maps = maps_.descriptors();
  const std::pair<std::string_view, int> files[] = {{kLinkPin, link_.get()},
                                                    {kPorts.name, maps.ports.get()},
                                                    {kSockets.name, maps.sockets.get()},
                                                    {kSlots.name, maps.slots.get()},
                                                    {kWindows.name, maps.windows.get()},
                                                    {kCounts.name, maps.counts.get()},
                                                    {kLate.name, maps.late.get()}};
  std::vector<std::string> made;  // removed on failure; other files are not ours
  for (const auto& [name, fd] : files) {
    made.push_back(fmt::format("{}/{}", directory, name));
    if (::bpf_obj_pin(fd, made.back().c_str()) == 0) continue;
    const Error error = Error::system(errno, "pinning " + made.back());
    made.pop_back();
    for (const std::string& path : made) ::unlink(path.c_str());
    ::rmdir(directory.c_str());
    return fail(error);
  }
  return {};
}

bool Program::attached() const {
  bpf_link_info info{};
  return !link_ || (object_info(link_.get(), info) && info.xdp.ifindex != 0);
}

Result<void> Program::detach() {
  if (!link_) {
    return fail(Error::Code::unavailable, "the XDP program is attached without a link to detach");
  }
  if (::bpf_link_detach(link_.get()) != 0) return fail_system(errno, "detaching the XDP program");
  return {};
}

}  // namespace tarpon::xdp
