#include "xdp/interface.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>

#include "xdp/base/file_descriptor.h"

namespace tarpon::xdp {

Result<unsigned> interface_index(const std::string& name) {
  const unsigned index = ::if_nametoindex(name.c_str());
  if (index == 0) {
    return fail(Error::Code::invalid_argument, "no interface is called \"" + name + "\" here");
  }
  return index;
}

std::uint32_t receive_queues(const std::string& name) {
  const FileDescriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ethtool_channels channels{};
  channels.cmd = ETHTOOL_GCHANNELS;
  ifreq request{};
  name.copy(request.ifr_name, sizeof request.ifr_name - 1);
  request.ifr_data = reinterpret_cast<char*>(&channels);
  if (!socket || ::ioctl(socket.get(), SIOCETHTOOL, &request) != 0) return 1;
  return std::max(1u, channels.combined_count + channels.rx_count);
}

}  // namespace tarpon::xdp
