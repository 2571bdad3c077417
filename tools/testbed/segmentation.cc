#include "tools/testbed/segmentation.h"

#include <fmt/format.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include "xdp/base/file_descriptor.h"

namespace tarpon {
namespace {

constexpr std::size_t kBlockBits = 32;

/// A command of the ethtool interface: a structure with an array of words behind it.
template <typename Head>
class Request {
 public:
  Request(std::uint32_t command, std::size_t bytes_behind)
      : words_((sizeof(Head) + bytes_behind + 7) / 8) {
    head()->cmd = command;
  }
  Head* head() { return reinterpret_cast<Head*>(words_.data()); }
  template <typename Item>
  Item* behind() {
    return reinterpret_cast<Item*>(reinterpret_cast<char*>(words_.data()) + sizeof(Head));
  }

  Result<void> send(const std::string& interface) {
    const FileDescriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    interface.copy(request.ifr_name, IFNAMSIZ - 1);
    request.ifr_data = reinterpret_cast<char*>(words_.data());
    if (!socket || ::ioctl(socket.get(), SIOCETHTOOL, &request) < 0) {
      return fail_system(errno, fmt::format("cannot set the offloads of {}", interface));
    }
    return {};
  }

 private:
  std::vector<std::uint64_t> words_;
};

/// The names of the kernel's offloads, by their numbers.
Result<std::vector<std::string>> offload_names(const std::string& interface) {
  Request<ethtool_sset_info> size(ETHTOOL_GSSET_INFO, sizeof(std::uint32_t));
  size.head()->sset_mask = 1ull << ETH_SS_FEATURES;
  if (auto done = size.send(interface); !done) return fail(done.error());
  const std::size_t count = *size.behind<std::uint32_t>();
  Request<ethtool_gstrings> strings(ETHTOOL_GSTRINGS, count * ETH_GSTRING_LEN);
  strings.head()->string_set = ETH_SS_FEATURES;
  strings.head()->len = static_cast<std::uint32_t>(count);
  if (auto done = strings.send(interface); !done) return fail(done.error());
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) {
    const char* name = strings.behind<char>() + i * ETH_GSTRING_LEN;
    names.emplace_back(name, ::strnlen(name, ETH_GSTRING_LEN));
  }
  return names;
}

bool cuts_trains(std::string_view offload) {
  return (offload.starts_with("tx-tcp") || offload.starts_with("tx-udp-seg")) &&
         offload.ends_with("segmentation");
}

}  // namespace

Result<void> cut_before_driver(const std::string& interface) {
  const auto names = offload_names(interface);
  if (!names) return fail(names.error());
  const std::size_t blocks = (names->size() + kBlockBits - 1) / kBlockBits;
  Request<ethtool_sfeatures> change(ETHTOOL_SFEATURES, blocks * sizeof(ethtool_set_features_block));
  change.head()->size = static_cast<std::uint32_t>(blocks);
  for (std::size_t i = 0; i < names->size(); ++i) {
    if (!cuts_trains((*names)[i])) continue;
    // Valid and not requested: the kernel switches it off.
    change.behind<ethtool_set_features_block>()[i / kBlockBits].valid |= 1u << i % kBlockBits;
  }
  return change.send(interface);
}

}  // namespace tarpon
