// Where ranks meet: the text of --rendezvous, and the file through which rank 0 tells its port.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "xdp/base/result.h"

namespace tarpon::rendezvous {

/// A parsed "tcp://HOST:PORT" or "file://PATH".
struct Address {
  std::string text;        // as given
  std::string host;        // tcp
  std::uint16_t port = 0;  // tcp
  std::string path;        // file; empty for tcp

  bool is_file() const { return !path.empty(); }
};

/// Errors: invalid_argument, with an example of a valid address.
Result<Address> parse_address(const std::string& text);

/// Why `host` cannot be the host of an address, in words for a message: it is an IPv6 address, or
/// has a character that no host has. Nothing if it can be.
std::optional<std::string> wrong_host(std::string_view host);

/// What rank 0 leaves in the file. The nonce tells this start of the job from an earlier one whose
/// file was left behind and whose port has a new owner.
struct AddressFile {
  sockaddr_in address{};
  std::uint64_t nonce = 0;
};

/// Replaces the file at `path` as a whole, readable by this user alone. Errors: io, permission.
Result<void> write_address_file(const std::string& path, const AddressFile& content);

/// Nothing when `path` is not a regular file of this user, or holds something else.
std::optional<AddressFile> read_address_file(const std::string& path);

/// Removes the file if it still holds `nonce`: a later start may have replaced it.
void remove_address_file(const std::string& path, std::uint64_t nonce);

}  // namespace tarpon::rendezvous
