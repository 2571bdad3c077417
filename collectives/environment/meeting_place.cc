#include "collectives/environment/meeting_place.h"

#include <arpa/inet.h>

#include <utility>

#include "collectives/environment/environment_options.h"
#include "collectives/rendezvous/sockets.h"

namespace tarpon {
namespace {

/// Whether `host` is a name for this host alone: Debian gives a host's own name 127.0.1.1.
bool is_private_name(const std::string& host) {
  in_addr literal{};
  if (host == "localhost" || ::inet_pton(AF_INET, host.c_str(), &literal) == 1) return false;
  const auto source = source_address_towards(host);
  return source && is_loopback_address(*source);
}

}  // namespace

Result<MeetingPlace> open_meeting_place(const InterfaceRequest& wish,
                                        const Environment& environment) {
  auto chosen = choose_interface(wish, environment);
  if (wish.host && is_private_name(*wish.host)) {
    InterfaceRequest hostless = wish;
    hostless.host.reset();
    if (auto device = choose_interface(std::move(hostless), environment)) chosen = device;
  }
  if (!chosen) return fail(chosen.error());
  const auto place = rendezvous::resolve(chosen->interface.address, 0);
  if (!place) return fail(place.error());
  const auto settings = read_settings(environment);
  if (!settings) return fail(settings.error());
  auto socket = rendezvous::listen_in(*place, settings->ports.value_or(PortRange()));
  if (!socket) return fail(socket.error());
  std::string address = "tcp://" + rendezvous::host_port_text(rendezvous::local_name(*socket));
  return MeetingPlace{std::move(address), std::make_shared<FileDescriptor>(*std::move(socket))};
}

}  // namespace tarpon
