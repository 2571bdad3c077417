// `tarpon doctor`: one table of what each data path needs on an interface, and has.
#pragma once

#include <string>

#include "tools/cli/option_table.h"

namespace tarpon {

struct DoctorOptions {
  std::string interface;  // empty: as a job would choose, else all but loopback
  bool json = false;
};

void add_doctor_options(cli::OptionTable& table, DoctorOptions& options);

/// Changes nothing. Returns 0 when `auto` takes the best rung that each interface's driver has:
/// AF_XDP with zero-copy, else io_uring; 1 otherwise.
int run_doctor(const DoctorOptions& options);

}  // namespace tarpon
