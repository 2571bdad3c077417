#include "transport/ports/udp_flows.h"

#include <fmt/core.h>

#include <utility>

namespace tarpon {

Result<std::vector<UdpSocket>> open_flows(
    const std::string& address, std::uint32_t flows,
    const std::function<Result<UdpSocket>(const UdpSocketOptions&)>& open) {
  std::vector<UdpSocket> sockets;
  for (std::uint32_t flow = 1; flow < flows; ++flow) {
    auto socket = open({.address = address, .receive_buffer = 0, .send_only = true});
    if (!socket) {
      Error error = socket.error();
      error.message = fmt::format("flow {} of {}: {}", flow + 1, flows, error.message);
      return fail(std::move(error));
    }
    sockets.push_back(std::move(*socket));
  }
  return sockets;
}

}  // namespace tarpon
