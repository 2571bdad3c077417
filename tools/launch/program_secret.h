// The job's secret for a program that this process becomes, and for the ranks that it starts.
#pragma once

#include "collectives/environment/environment.h"
#include "collectives/job_secret.h"
#include "xdp/base/result.h"

namespace tarpon {

/// Whether a variable says where the job's secret is.
bool names_secret(const Environment& environment);

/// Keeps `secret` in a memfd, which the program inherits, and sets TARPON_SECRET_FILE to its path
/// below /proc. Launchers close descriptors of the processes that they start; by the path these
/// read the secret as long as the program lives, on this host, as the same user. A process that the
/// program starts without closing descriptors has the secret, also as another user. Errors:
/// unavailable.
Result<void> give_program(const JobSecret& secret);

/// give_program() with a new secret, where TARPON_INTEGRITY asks for keyed or sealed packets, not
/// names_secret(), and no launcher has started this process as one rank of several.
/// Errors: those of read_settings() and give_program().
Result<void> give_program_secret(const Environment& environment);

}  // namespace tarpon
