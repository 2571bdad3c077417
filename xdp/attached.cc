#include "xdp/attached.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fmt/format.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <net/if.h>

#include <array>
#include <cerrno>

#include "xdp/bpf_object_info.h"

namespace tarpon::xdp {
namespace {

constexpr std::string_view kDispatcherName = "xdp_dispatcher";
constexpr int kLookups = 10;  // a program may be detached between two queries

Result<std::string> program_name(std::uint32_t id) {
  const FileDescriptor program(::bpf_prog_get_fd_by_id(id));
  if (!program) return fail_system(errno, fmt::format("XDP program {} (needs CAP_SYS_ADMIN)", id));
  bpf_prog_info info{};
  if (!object_info(program.get(), info))
    return fail_system(errno, fmt::format("XDP program {}", id));
  return std::string(info.name);
}

/// Calls `look(fd, info)` for every link that we may see, until it returns true.
template <typename Look>
void each_link(const Look& look) {
  std::uint32_t id = 0;
  while (::bpf_link_get_next_id(id, &id) == 0) {
    FileDescriptor fd(::bpf_link_get_fd_by_id(id));
    bpf_link_info info{};
    if (fd && object_info(fd.get(), info) && look(fd, info)) return;
  }
}

/// Returns the programs that a dispatcher calls. They are linked to it as replacements of its
/// functions.
std::vector<Component> components_of(std::uint32_t dispatcher) {
  std::vector<Component> components;
  each_link([&](const FileDescriptor&, const bpf_link_info& info) {
    if (info.type == BPF_LINK_TYPE_TRACING && info.tracing.target_obj_id == dispatcher) {
      if (auto name = program_name(info.prog_id)) {
        components.push_back({info.prog_id, *name, *name == kProgramName});
      }
    }
    return false;
  });
  return components;
}

void set_place(const bpf_xdp_query_opts& query, Attached& attached) {
  switch (query.attach_mode) {
    case XDP_ATTACHED_SKB:
      attached.id = query.skb_prog_id;
      attached.mode = AttachMode::generic;
      break;
    case XDP_ATTACHED_HW:
      attached.id = query.hw_prog_id;
      attached.mode = AttachMode::offloaded;
      break;
    default:
      attached.id = query.drv_prog_id != 0 ? query.drv_prog_id : query.prog_id;
      break;
  }
}

Result<std::optional<Attached>> look_at(unsigned interface) {
  bpf_xdp_query_opts query{};
  query.sz = sizeof query;
  const int error = ::bpf_xdp_query(static_cast<int>(interface), 0, &query);
  if (error != 0) {
    return fail_system(-error, fmt::format("XDP programs of {}", interface_text(interface)));
  }
  if (query.attach_mode == XDP_ATTACHED_NONE) return std::nullopt;
  Attached attached;
  set_place(query, attached);
  auto name = program_name(attached.id);
  if (!name) return fail(name.error());
  attached.name = std::move(*name);
  attached.dispatcher = attached.name == kDispatcherName;
  if (attached.dispatcher) {
    attached.components = components_of(attached.id);
    for (const Component& each : attached.components) {
      if (each.ours) attached.our_program = each.id;
    }
  } else if (attached.name == kProgramName) {
    attached.our_program = attached.id;
  }
  attached.ours = attached.our_program != 0;
  return std::optional<Attached>(std::move(attached));
}

}  // namespace

const char* name(AttachMode mode) {
  switch (mode) {
    case AttachMode::native:
      return "native";
    case AttachMode::generic:
      return "skb";
    case AttachMode::offloaded:
      return "hw";
  }
  return "?";
}

std::string interface_text(unsigned interface) {
  std::array<char, IF_NAMESIZE> name{};
  if (::if_indextoname(interface, name.data()) == nullptr) {
    return fmt::format("interface {}", interface);
  }
  return name.data();
}

Result<std::optional<Attached>> attached_to(unsigned interface) {
  for (int i = 1;; ++i) {
    auto attached = look_at(interface);
    if (attached || attached.error().system_errno != ENOENT || i == kLookups) return attached;
  }
}

FileDescriptor find_link(std::uint32_t id, unsigned interface) {
  FileDescriptor result;
  each_link([&](FileDescriptor& fd, const bpf_link_info& info) {
    if (info.type != BPF_LINK_TYPE_XDP || info.prog_id != id || info.xdp.ifindex != interface) {
      return false;
    }
    result = std::move(fd);
    return true;
  });
  return result;
}

std::uint32_t link_id(const FileDescriptor& link) {
  bpf_link_info info{};
  return link && object_info(link.get(), info) ? info.id : 0;
}

}  // namespace tarpon::xdp
