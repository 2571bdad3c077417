// Flags of nccl-tests that mean nothing to this tool.
#pragma once

#include "tools/cli/option_table.h"

namespace tarpon {

/// Accepts those that are no options of `table`, hidden from the help text, with the values that
/// ask for nothing. Refuses other values by name.
void add_nccl_flags(cli::OptionTable& table);

}  // namespace tarpon
