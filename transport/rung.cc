#include "transport/rung.h"

#include <fmt/format.h>
#include <net/if.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "transport/ports/uring/uring_port.h"
#include "xdp/attached.h"
#include "xdp/base/file_descriptor.h"
#include "xdp/interface_features.h"
#include "xdp/kernel.h"
#include "xdp/served_port.h"

namespace tarpon {
namespace {

std::string against_helper(const std::string& interface, std::optional<xdp::ServedMode>& served) {
  const auto mode = xdp::look_for_helper(interface);
  if (!mode) return mode.error().message;
  served = *mode;
  return mode->copies ? fmt::format("loaded on {} in skb mode, which copies", interface) : "";
}

/// Sets `served` if a helper serves this process.
std::string against_program(const std::string& interface, unsigned index,
                            std::optional<xdp::ServedMode>& served) {
  const auto attached = xdp::attached_to(index);
  if (!attached && attached.error().code == Error::Code::permission &&
      xdp::helper_is_there(interface)) {
    return against_helper(interface, served);
  }
  if (!attached) return attached.error().message;
  if (!*attached) return fmt::format("not loaded on {}", interface);
  if (!(*attached)->ours) {
    return fmt::format("{} has the XDP program {} (id {}) of somebody else", interface,
                       (*attached)->name, (*attached)->id);
  }
  if ((*attached)->mode != xdp::AttachMode::native) {
    return fmt::format("loaded on {} in {} mode, which copies", interface,
                       xdp::name((*attached)->mode));
  }
  return "";
}

std::string against_zero_copy(const std::string& interface, std::uint32_t mtu,
                              std::optional<xdp::ServedMode>& served) {
  const unsigned index = ::if_nametoindex(interface.c_str());
  if (index == 0) return fmt::format("{}: {}", interface, std::strerror(errno));
  if (std::string reason = against_program(interface, index, served); !reason.empty())
    return reason;
  const auto features = xdp::interface_features(index);
  if (!features) return features.error().message;
  if (!features->zero_copy) {
    return fmt::format("the driver of {} has no zero-copy and would copy", interface);
  }
  if (buffers_for_mtu(mtu) > features->zero_copy_segments) {
    return fmt::format("the driver of {} copies frames of several buffers (MTU {}, above {})",
                       interface, mtu, kSingleBufferMtu);
  }
  if (served) return "";
  const FileDescriptor socket(::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
  if (!socket) return fmt::format("AF_XDP socket (CAP_NET_RAW): {}", std::strerror(errno));
  return "";
}

}  // namespace

std::string_view name(Rung rung) {
  switch (rung) {
    case Rung::xdp:
      return "xdp";
    case Rung::uring:
      return "uring";
    case Rung::mmsg:
      return "mmsg";
  }
  return "?";
}

RungChoice choose_rung(const RungFacts& facts) {
  if (facts.against_zero_copy.empty()) {
    return {Rung::xdp, fmt::format("AF_XDP is loaded, with zero-copy{}",
                                   facts.served ? ", by tarpon xdp serve" : "")};
  }
  const std::string not_xdp = "; not AF_XDP: " + facts.against_zero_copy;
  if (facts.against_uring.empty()) return {Rung::uring, std::string(kUringUsable) + not_xdp};
  return {Rung::mmsg, facts.against_uring + not_xdp};
}

RungFacts read_rung_facts(const std::string& interface, std::uint32_t mtu) {
  RungFacts facts;
  facts.against_zero_copy = against_zero_copy(interface, mtu, facts.served);
  if (const auto uring = check_uring(); !uring) facts.against_uring = uring.error().message;
  return facts;
}

}  // namespace tarpon
