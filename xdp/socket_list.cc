#include "xdp/socket_list.h"

#include <linux/sock_diag.h>
#include <linux/xdp_diag.h>
#include <netlink/attr.h>
#include <netlink/errno.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>

#include "xdp/kernel.h"

namespace tarpon::xdp {
namespace {

struct Release {
  void operator()(nl_sock* socket) const { ::nl_socket_free(socket); }
};

struct Context {
  unsigned interface;
  std::vector<BoundSocket> found;
};

template <typename Value>
std::optional<Value> value_of(const nlattr* attribute) {
  Value value{};
  if (attribute == nullptr || ::nla_len(attribute) < static_cast<int>(sizeof value)) {
    return std::nullopt;
  }
  std::memcpy(&value, ::nla_data(attribute), sizeof value);
  return value;
}

int take_socket(nl_msg* message, void* argument) {
  auto* const context = static_cast<Context*>(argument);
  std::array<nlattr*, XDP_DIAG_MAX + 1> attributes{};
  if (::nlmsg_parse(::nlmsg_hdr(message), sizeof(xdp_diag_msg), attributes.data(), XDP_DIAG_MAX,
                    nullptr) != 0) {
    return NL_SKIP;
  }
  const auto info = value_of<xdp_diag_info>(attributes[XDP_DIAG_INFO]);
  if (!info || info->ifindex != context->interface) return NL_OK;
  const auto* const header = static_cast<const xdp_diag_msg*>(::nlmsg_data(::nlmsg_hdr(message)));
  BoundSocket socket{.queue = info->queue_id, .inode = header->xdiag_ino};
  if (const auto umem = value_of<xdp_diag_umem>(attributes[XDP_DIAG_UMEM])) {
    socket.zero_copy = (umem->flags & XDP_DU_F_ZEROCOPY) != 0;
    socket.umem_bytes = umem->size;
  }
  if (const auto counted = value_of<xdp_diag_stats>(attributes[XDP_DIAG_STATS])) {
    socket.rx_dropped = counted->n_rx_dropped;
    socket.rx_ring_full = counted->n_rx_full;
    socket.rx_fill_ring_empty = counted->n_fill_ring_empty;
  }
  context->found.push_back(socket);
  return NL_OK;
}

}  // namespace

Result<std::vector<BoundSocket>> sockets_of(unsigned interface) {
  const std::unique_ptr<nl_sock, Release> socket(::nl_socket_alloc());
  if (socket == nullptr) return fail(Error::Code::io, "netlink: out of memory");
  if (const int error = ::nl_connect(socket.get(), NETLINK_SOCK_DIAG); error != 0) {
    return fail(Error::Code::io, std::string("sock_diag: ") + ::nl_geterror(error));
  }
  Context context{interface, {}};
  ::nl_socket_modify_cb(socket.get(), NL_CB_VALID, NL_CB_CUSTOM, take_socket, &context);
  xdp_diag_req request{};
  request.sdiag_family = AF_XDP;
  request.xdiag_show = XDP_SHOW_INFO | XDP_SHOW_UMEM | XDP_SHOW_STATS;
  int error =
      ::nl_send_simple(socket.get(), SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, &request, sizeof request);
  if (error >= 0) error = ::nl_recvmsgs_default(socket.get());
  if (error == -NLE_OBJ_NOTFOUND || error == -NLE_INVAL) {
    return fail(Error::Code::unavailable,
                "this kernel does not list AF_XDP sockets (CONFIG_XDP_SOCKETS_DIAG)");
  }
  if (error < 0) {
    return fail(error == -NLE_PERM ? Error::Code::permission : Error::Code::io,
                std::string("list of AF_XDP sockets: ") + ::nl_geterror(error));
  }
  return context.found;
}

}  // namespace tarpon::xdp
