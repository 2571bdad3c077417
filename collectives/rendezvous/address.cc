// Parsing of rendezvous addresses, and the address file.
#include "collectives/rendezvous/address.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "collectives/rendezvous/sockets.h"

namespace tarpon::rendezvous {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kFile = "file://";

// "tarpon-rendezvous 1 255.255.255.255 65535 ffffffffffffffff\n" is 60 bytes.
constexpr std::size_t kLongestFile = 128;

tl::unexpected<Error> bad_address(const std::string& text) {
  return fail(
      Error::Code::invalid_argument,
      fmt::format("rendezvous address '{}' is neither tcp://HOST:PORT with a port from 1 to "
                  "65535 nor file://PATH: give for example tcp://10.0.0.1:29500",
                  text));
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

Result<Address> parse_address(const std::string& text) {
  Address address;
  address.text = text;
  const std::string_view view = text;
  if (view.starts_with(kFile)) {
    address.path = view.substr(kFile.size());
    if (address.path.empty()) return bad_address(text);
    return address;
  }
  const std::size_t colon = view.rfind(':');
  if (!view.starts_with(kTcp) || colon <= kTcp.size()) return bad_address(text);
  address.host = view.substr(kTcp.size(), colon - kTcp.size());
  const std::string_view port = view.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size() || address.port == 0) {
    return bad_address(text);
  }
  if (const auto wrong = wrong_host(address.host)) {
    return fail(Error::Code::invalid_argument,
                fmt::format("rendezvous address '{}': {}", text, *wrong));
  }
  return address;
}

std::optional<std::string> wrong_host(std::string_view host) {
  if (host.find_first_of("/:") == std::string_view::npos) return std::nullopt;
  const bool bracketed = host.size() > 2 && host.starts_with('[') && host.ends_with(']');
  const std::string literal(bracketed ? host.substr(1, host.size() - 2) : host);
  in6_addr ignored{};
  if (inet_pton(AF_INET6, literal.c_str(), &ignored) == 1) {
    return fmt::format("{}: IPv6 is not supported yet, on any data path: give an IPv4 address",
                       host);
  }
  return fmt::format("{} is not a host: write HOST:PORT, tcp://HOST:PORT or file://PATH", host);
}

Result<void> write_address_file(const std::string& path, const AddressFile& content) {
  const std::string text =
      fmt::format("tarpon-rendezvous 1 {} {} {:016x}\n", host_text(content.address),
                  ntohs(content.address.sin_port), content.nonce);
  std::string draft = path + ".XXXXXX";
  const FileDescriptor file(mkostemp(draft.data(), O_CLOEXEC));
  if (!file) {
    return fail_system(errno, fmt::format("cannot create {} for the rendezvous", draft));
  }
  if (!write_all(file.get(), text) || rename(draft.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(draft.c_str());
    return fail_system(error, fmt::format("cannot write {} for the rendezvous", path));
  }
  return {};
}

std::optional<AddressFile> read_address_file(const std::string& path) {
  // Non-blocking: the path may name a FIFO.
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  // Another user who can write to the directory may have put a file there first.
  const bool ours = file && fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) &&
                    status.st_uid == geteuid();
  if (!ours) return std::nullopt;
  std::array<char, kLongestFile> text{};
  if (read(file.get(), text.data(), text.size() - 1) <= 0) return std::nullopt;
  char host[INET_ADDRSTRLEN] = "";
  unsigned port = 0;
  unsigned long long nonce = 0;
  static_assert(INET_ADDRSTRLEN == 16, "the width in the pattern below is one less");
  if (std::sscanf(text.data(), "tarpon-rendezvous 1 %15s %5u %16llx", host, &port, &nonce) != 3) {
    return std::nullopt;
  }
  AddressFile content;
  content.address.sin_family = AF_INET;
  content.nonce = nonce;
  if (port == 0 || port > UINT16_MAX || inet_pton(AF_INET, host, &content.address.sin_addr) != 1) {
    return std::nullopt;
  }
  content.address.sin_port = htons(static_cast<std::uint16_t>(port));
  return content;
}

void remove_address_file(const std::string& path, std::uint64_t nonce) {
  const std::optional<AddressFile> content = read_address_file(path);
  if (content && content->nonce == nonce) unlink(path.c_str());
}

}  // namespace tarpon::rendezvous
