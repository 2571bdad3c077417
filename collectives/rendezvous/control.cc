// Joining a job: rank 0 listens and holds the meeting, the others find it.
#include "collectives/rendezvous/control.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>

#include "bpf/wire.h"
#include "collectives/rendezvous/address.h"
#include "collectives/rendezvous/channel.h"
#include "collectives/rendezvous/hello.h"
#include "collectives/rendezvous/joiner.h"
#include "collectives/rendezvous/meeting.h"
#include "transport/clock.h"
#include "xdp/base/system_limits.h"

namespace tarpon {
namespace {

using namespace rendezvous;

// Half of what a hello may hold.
constexpr std::size_t kLongestAgreed = kLargestHello / 2;

/// Random and not 0, which stands for "none".
template <typename Unsigned>
Result<Unsigned> random_cookie() {
  Unsigned value = 0;
  while (value == 0) {
    const ssize_t got = getrandom(&value, sizeof value, 0);
    if (got < 0 && errno != EINTR) return fail_system(errno, "getrandom");
    if (got != static_cast<ssize_t>(sizeof value)) value = 0;
  }
  return value;
}

std::optional<Error> bad_options(const RendezvousOptions& options) {
  const auto bad = [](std::string message) {
    return Error::make(Error::Code::invalid_argument, std::move(message));
  };
  if (options.world_size == 0 || options.world_size > kUnknownRank) {
    return bad(fmt::format("world size {} is not in 1..{}", options.world_size, kUnknownRank));
  }
  if (options.world_size == 1 && options.rank != 0) {
    return bad(
        fmt::format("rank {} is out of range: the only rank of a job of one is 0", options.rank));
  }
  if (options.agreed.size() > kLongestAgreed) {
    return bad(fmt::format("agreed options of {} bytes exceed the limit of {}",
                           options.agreed.size(), kLongestAgreed));
  }
  return std::nullopt;
}

Hello hello_of(const RendezvousOptions& options) {
  return {TARPON_WIRE_VERSION, options.rank, options.world_size, 0, options.agreed};
}

std::string listen_host(const RendezvousOptions& options) {
  return options.listen_address.empty() ? "127.0.0.1" : options.listen_address;
}

/// The address at which rank 0 asks to listen; port 0 for a file.
Result<sockaddr_in> listen_address(const RendezvousOptions& options, const Address& address,
                                   Time deadline) {
  if (!address.is_file()) {
    return resolve_until(address.host, address.port, deadline, options.observer);
  }
  sockaddr_in wanted{};
  wanted.sin_family = AF_INET;
  if (inet_pton(AF_INET, listen_host(options).c_str(), &wanted.sin_addr) != 1 ||
      wanted.sin_addr.s_addr == htonl(INADDR_ANY)) {
    return fail(
        Error::Code::invalid_argument,
        fmt::format("listen address '{}' is not the IPv4 address of an interface, which the "
                    "other ranks need to find rank 0",
                    options.listen_address));
  }
  return wanted;
}

/// Removes the address file when the meeting is over, however it ended.
class PostedAddress {
 public:
  PostedAddress(std::string path, std::uint64_t nonce) : path_(std::move(path)), nonce_(nonce) {}
  PostedAddress(const PostedAddress&) = delete;
  PostedAddress& operator=(const PostedAddress&) = delete;
  ~PostedAddress() {
    if (!path_.empty()) remove_address_file(path_, nonce_);
  }

 private:
  std::string path_;  // empty for tcp://
  std::uint64_t nonce_;
};

/// A new key for the packets of a job, if it has a secret.
Result<std::optional<JobKey>> key_for(const RendezvousOptions& options) {
  if (options.secret == nullptr) return std::nullopt;
  JobKey key;
  if (getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size())) {
    return fail_system(errno, "getrandom");
  }
  return key;
}

Result<std::unique_ptr<ControlChannel>> host(const RendezvousOptions& options,
                                             const Address& address, Time deadline) {
  const auto job = random_cookie<std::uint32_t>();
  const auto public_id = random_cookie<std::uint32_t>();
  const auto nonce = random_cookie<std::uint64_t>();
  const auto wanted = listen_address(options, address, deadline);
  if (!job) return fail(job.error());
  if (!public_id) return fail(public_id.error());
  if (!nonce) return fail(nonce.error());
  if (!wanted) return fail(wanted.error());
  Result<FileDescriptor> listener = options.listener    ? std::move(*options.listener)
                                    : address.is_file() ? listen_in(*wanted, options.listen_ports)
                                                        : listen_at(*wanted);
  if (!listener) return fail(with_limit(std::move(listener).error()));
  const sockaddr_in bound = local_name(*listener);

  Meeting::Plan plan;
  plan.own = hello_of(options);
  plan.place = address.text;
  plan.port = ntohs(bound.sin_port);
  plan.timeout = options.timeout;
  plan.job = *job;
  plan.public_id = *public_id;
  plan.observer = options.observer;
  auto tls = TlsContext::make(options.secret.get());
  if (!tls) return fail(tls.error());
  plan.tls = *std::move(tls);
  const auto packet_key = key_for(options);
  if (!packet_key) return fail(packet_key.error());
  plan.packet_key = *packet_key;
  plan.loopback = (ntohl(bound.sin_addr.s_addr) >> 24) == 127;
  if (address.is_file()) plan.own.nonce = *nonce;
  // A name that means a loopback address on rank 0 alone is a common reason for missing ranks.
  if (host_text(bound) != address.host) plan.place += fmt::format(" ({})", host_port_text(bound));
  const PostedAddress posted(address.path, *nonce);
  if (address.is_file()) {
    const auto written = write_address_file(address.path, {bound, *nonce});
    if (!written) return fail(written.error());
  }
  auto peers = Meeting(std::move(plan), *std::move(listener)).hold(deadline);
  if (!peers) return fail(std::move(peers).error());
  return make_host_channel({0, options.world_size, *job, *public_id, host_text(bound), *packet_key},
                           *std::move(peers));
}

Result<std::unique_ptr<ControlChannel>> member(const RendezvousOptions& options,
                                               const Address& address, Time deadline) {
  auto tls = TlsContext::make(options.secret.get());
  if (!tls) return fail(tls.error());
  Result<Joined> joined = join_rank_0(address, hello_of(options), deadline, options.timeout,
                                      options.observer, *std::move(tls));
  if (!joined) return fail(std::move(joined).error());
  const std::string own = host_text(local_name(joined->connection.socket()));
  return make_member_channel(
      {options.rank, options.world_size, joined->job, joined->public_id, own, joined->packet_key},
      std::move(joined->connection));
}

}  // namespace

Result<std::unique_ptr<ControlChannel>> ControlChannel::join(const RendezvousOptions& options) {
  if (auto error = bad_options(options)) return fail(*std::move(error));
  if (options.world_size == 1) {
    const auto job = random_cookie<std::uint32_t>();
    const auto public_id = random_cookie<std::uint32_t>();
    if (!job) return fail(job.error());
    if (!public_id) return fail(public_id.error());
    const auto packet_key = key_for(options);
    if (!packet_key) return fail(packet_key.error());
    return make_host_channel({0, 1, *job, *public_id, listen_host(options), *packet_key},
                             std::vector<Connection>(1));
  }
  const Result<Address> address = parse_address(options.address);
  if (!address) return fail(address.error());
  const Time deadline = after(monotonic_now(), options.timeout);
  return options.rank == 0 ? host(options, *address, deadline)
                           : member(options, *address, deadline);
}

}  // namespace tarpon
