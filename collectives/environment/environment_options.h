// Finds the options of a communicator in environment variables and the network of this host.
//
// CommunicatorOptions::from_environment() is the short way. The functions here are for programs
// that take some options from elsewhere, as the tarpon tool does from its flags.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "collectives/environment/environment.h"
#include "collectives/environment/interfaces.h"
#include "collectives/environment/launcher.h"
#include "collectives/job_secret.h"
#include "collectives/options.h"
#include "xdp/base/result.h"

namespace tarpon {

/// Settings that variables give, apart from the place in the job and the interface.
struct EnvironmentSettings {
  std::optional<Datapath> datapath;            // TARPON_DATAPATH=auto|xdp|uring|mmsg
  std::optional<CodecRule> codec;              // TARPON_CODEC=auto|on|off
  std::optional<double> loss_target;           // TARPON_LOSS_TARGET=0.1%, above 0% and below 100%
  std::optional<bool> rotation;                // TARPON_ORDER=rotating|fixed
  std::optional<bool> multicast;               // TARPON_MULTICAST=on|off
  std::optional<bool> hosts;                   // TARPON_HOSTS=on|off
  std::optional<std::uint32_t> lanes;          // TARPON_LANES=auto|1..4; auto: 0
  std::optional<bool> learn_shares;            // TARPON_SHARES=even|auto; auto: shares are learnt
  std::optional<std::string> flight;           // TARPON_FLIGHT: directory of dumps
  std::optional<Duration> rendezvous_timeout;  // TARPON_RENDEZVOUS_TIMEOUT=2m, above 0
  std::optional<PortRange> ports;              // TARPON_PORTS=29600-29699
  std::optional<tarpon_integrity> integrity;   // TARPON_INTEGRITY=keyed|sealed
};

/// Errors (invalid_argument) name the variable, its value and what is allowed.
Result<EnvironmentSettings> read_settings(const Environment& environment);

/// Reads the secret of the job, if a variable says where it is: TARPON_SECRET_FILE, a file, or
/// TARPON_SECRET_FD, an inherited descriptor. Null: neither is set. Errors: those
/// of JobSecret; invalid_argument: both are set.
Result<std::shared_ptr<const JobSecret>> read_secret(const Environment& environment);

struct FoundOptions {
  CommunicatorOptions options;
  std::string interface_reason;  // why this interface: "routes to 10.0.0.1"
};

/// Returns the options of the rank at `place`: rendezvous and interface by find_rendezvous() and
/// choose_interface(), the settings of the environment, and defaults. `wish`: what the caller knows
/// of the interface; `host`, `source` and `all_local` follow from the place. If the interface
/// follows from a name of rank 0's host that is not known yet, blocks until it is, for at most the
/// timeout of the rendezvous. Errors: those of find_rendezvous(), choose_interface() and
/// read_settings().
Result<FoundOptions> find_options(const JobPlace& place, InterfaceRequest wish,
                                  const Environment& environment);

/// The same for the place that flags and environment give. Errors: also those of find_job_place(),
/// and invalid_argument where no variable says which rank this is.
Result<CommunicatorOptions> find_options(const LaunchFlags& flags, InterfaceRequest wish,
                                         const Environment& environment);

}  // namespace tarpon
