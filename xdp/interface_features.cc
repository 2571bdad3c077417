#include "xdp/interface_features.h"

#include <fmt/format.h>
#include <linux/genetlink.h>
#include <netlink/attr.h>
#include <netlink/errno.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <netlink/route/link.h>

#include <array>
#include <string_view>

#include "xdp/attached.h"
#include "xdp/netlink_handles.h"

namespace tarpon::xdp {
namespace {

// include/uapi/linux/netdev.h of Linux 6.18.
constexpr int kFamilyVersion = 1;
constexpr std::uint8_t kDeviceGet = 1;                              // NETDEV_CMD_DEV_GET
constexpr int kIndex = 1, kXdpFeatures = 3, kZeroCopySegments = 4;  // NETDEV_A_DEV_*
constexpr std::uint64_t kBasic = 1, kRedirect = 2, kZeroCopy = 8, kReceiveSg = 32;

/// Begins a generic netlink request; the caller appends attributes.
NetlinkMessage request(int family, std::uint8_t command, std::uint8_t version) {
  NetlinkMessage message(::nlmsg_alloc_simple(family, NLM_F_REQUEST));
  genlmsghdr header{.cmd = command, .version = version, .reserved = 0};
  if (message == nullptr ||
      ::nlmsg_append(message.get(), &header, sizeof header, NLMSG_ALIGNTO) != 0) {
    return nullptr;
  }
  return message;
}

/// Sends `message` and calls `read(attributes, bytes)` on the answer. Returns a libnl error code.
template <typename Read>
int exchange(nl_sock* socket, nl_msg* message, Read read) {
  ::nl_socket_modify_cb(
      socket, NL_CB_VALID, NL_CB_CUSTOM,
      [](nl_msg* answer, void* context) -> int {
        nlmsghdr* const header = ::nlmsg_hdr(answer);
        (*static_cast<Read*>(context))(::nlmsg_attrdata(header, GENL_HDRLEN),
                                       ::nlmsg_attrlen(header, GENL_HDRLEN));
        return NL_OK;
      },
      &read);
  if (const int error = ::nl_send_auto(socket, message); error < 0) return error;
  return ::nl_recvmsgs_default(socket);
}

/// The number of the family "netdev"; negative: a libnl error code.
int family_number(nl_sock* socket) {
  const NetlinkMessage message = request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 1);
  if (message == nullptr) return -NLE_NOMEM;
  ::nla_put_string(message.get(), CTRL_ATTR_FAMILY_NAME, "netdev");
  int number = -NLE_OBJ_NOTFOUND;
  const int error = exchange(socket, message.get(), [&number](nlattr* attributes, int bytes) {
    if (nlattr* const id = ::nla_find(attributes, bytes, CTRL_ATTR_FAMILY_ID)) {
      number = ::nla_get_u16(id);
    }
  });
  return error < 0 ? error : number;
}

}  // namespace

Result<InterfaceFeatures> interface_features(unsigned interface) {
  const NetlinkSocket socket(::nl_socket_alloc());
  if (socket == nullptr) return fail(Error::Code::io, "netlink: out of memory");
  if (const int error = ::nl_connect(socket.get(), NETLINK_GENERIC); error != 0) {
    return fail(Error::Code::io, fmt::format("generic netlink: {}", ::nl_geterror(error)));
  }
  // No acknowledgement follows an answer that is an error.
  ::nl_socket_disable_auto_ack(socket.get());
  const int family = family_number(socket.get());
  if (family < 0) {
    return fail(Error::Code::unavailable,
                "this kernel does not report the XDP features of interfaces (it needs Linux 6.3)");
  }
  const NetlinkMessage message = request(family, kDeviceGet, kFamilyVersion);
  if (message == nullptr) return fail(Error::Code::io, "netlink: out of memory");
  ::nla_put_u32(message.get(), kIndex, interface);
  InterfaceFeatures features;
  const int error = exchange(socket.get(), message.get(), [&features](nlattr* at, int bytes) {
    if (nlattr* const bits = ::nla_find(at, bytes, kXdpFeatures)) {
      features.raw = ::nla_get_u64(bits);
    }
    if (nlattr* const most = ::nla_find(at, bytes, kZeroCopySegments)) {
      features.zero_copy_segments = ::nla_get_u32(most);
    }
  });
  if (error < 0) {
    return fail(
        error == -NLE_NODEV ? Error::Code::unavailable : Error::Code::io,
        fmt::format("XDP features of {}: {}", interface_text(interface), ::nl_geterror(error)));
  }
  features.native_xdp = (features.raw & (kBasic | kRedirect)) == (kBasic | kRedirect);
  features.zero_copy = (features.raw & kZeroCopy) != 0;
  features.multi_buffer = (features.raw & kReceiveSg) != 0;
  return features;
}

std::optional<unsigned> veth_peer(unsigned interface) {
  const NetlinkSocket socket(::nl_socket_alloc());
  rtnl_link* found = nullptr;
  if (socket == nullptr || ::nl_connect(socket.get(), NETLINK_ROUTE) != 0 ||
      ::rtnl_link_get_kernel(socket.get(), static_cast<int>(interface), nullptr, &found) != 0) {
    return std::nullopt;
  }
  const NetlinkLink link(found);
  std::int32_t other_namespace = 0;
  const char* const type = ::rtnl_link_get_type(found);
  const int peer = ::rtnl_link_get_link(found);
  if (type == nullptr || std::string_view(type) != "veth" || peer <= 0 ||
      ::rtnl_link_get_link_netnsid(found, &other_namespace) == 0) {
    return std::nullopt;
  }
  return static_cast<unsigned>(peer);
}

}  // namespace tarpon::xdp
