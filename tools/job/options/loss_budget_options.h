// --skip-above, --halt-above, --loss-budget: what becomes of steps that lost something.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "collectives/membership/agreement.h"
#include "tools/cli/option_table.h"
#include "xdp/base/result.h"

namespace tarpon {

struct LossBudgetOptions {
  std::optional<double> skip_above, halt_above;  // shares, from step 0 on
  std::vector<std::string> phases;               // STEP:SKIP:HALT

  /// Ascending by step; empty when nothing was given. Errors: invalid_argument.
  Result<std::vector<LossBudget>> settle() const;
};

void add_loss_budget_options(cli::OptionTable& table, LossBudgetOptions& options);

}  // namespace tarpon
