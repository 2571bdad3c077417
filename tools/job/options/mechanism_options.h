// --profile, --inflow, --sending, --rescale, --codec, --without: which mechanisms of the bounded
// transport a job has.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "collectives/mechanisms.h"
#include "tools/cli/option_table.h"

namespace tarpon {

struct MechanismOptions {
  bool optireduce = false;  // --profile
  std::optional<InflowRule> inflow;
  std::optional<SendRule> sending;
  std::optional<Rescale> rescale;
  std::optional<CodecRule> codec;
  std::vector<std::string> without;

  /// The profile, and what deviates from it.
  Mechanisms settle() const;
};

void add_mechanism_options(cli::OptionTable& table, MechanismOptions& options);

}  // namespace tarpon
