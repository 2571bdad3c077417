// Flags of nccl-tests that mean nothing to this tool.
#pragma once

#include "tools/cli/option_table.h"

namespace tarpon {

/// Adds the flags of nccl-tests that `table` lacks, hidden from the help text. Each takes only the
/// value that asks for nothing, and refuses other values by name.
void add_nccl_flags(cli::OptionTable& table);

}  // namespace tarpon
