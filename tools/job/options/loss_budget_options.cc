#include "tools/job/options/loss_budget_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "tools/cli/units.h"

namespace tarpon {
namespace {

auto refuse(std::string text) {
  return fail(Error::Code::invalid_argument, std::move(text));
}

Result<LossBudget> parse_phase(const std::string& text) {
  const auto wrong = [&text](const std::string& why) {
    return refuse(
        fmt::format("--loss-budget \"{}\" {}: write STEP:SKIP:HALT, as 100:1%:20%", text, why));
  };
  const std::size_t first = text.find(':');
  const std::size_t second = first == std::string::npos ? first : text.find(':', first + 1);
  if (second == std::string::npos) return wrong("has no three parts");
  LossBudget budget;
  const char* const end = text.data() + first;
  const auto [stop, error] = std::from_chars(text.data(), end, budget.from_step);
  if (error != std::errc() || stop != end) return wrong("begins with no step");
  const auto skip = parse_probability(std::string_view(text).substr(first + 1, second - first - 1));
  if (!skip) return wrong("skips by no share (" + skip.error().message + ")");
  const auto halt = parse_probability(std::string_view(text).substr(second + 1));
  if (!halt) return wrong("halts by no share (" + halt.error().message + ")");
  budget.skip_above = *skip;
  budget.halt_above = *halt;
  return budget;
}

}  // namespace

Result<std::vector<LossBudget>> LossBudgetOptions::settle() const {
  std::vector<LossBudget> budgets;
  if (skip_above || halt_above) {
    LossBudget base;
    base.halt_above = halt_above.value_or(std::max(base.halt_above, skip_above.value_or(0)));
    base.skip_above = skip_above.value_or(std::min(base.skip_above, base.halt_above));
    budgets.push_back(base);
  }
  for (const std::string& text : phases) {
    const auto budget = parse_phase(text);
    if (!budget) return fail(budget.error());
    budgets.push_back(*budget);
  }
  std::stable_sort(budgets.begin(), budgets.end(), [](const LossBudget& a, const LossBudget& b) {
    return a.from_step < b.from_step;
  });
  for (std::size_t i = 0; i < budgets.size(); ++i) {
    const LossBudget& one = budgets[i];
    if (one.skip_above > one.halt_above) {
      return refuse(fmt::format(
          "the loss budget from step {} halts above {}%, but skips only above {}%: skip first",
          one.from_step, one.halt_above * 100, one.skip_above * 100));
    }
    if (i > 0 && budgets[i - 1].from_step == one.from_step) {
      return refuse(fmt::format("two loss budgets from step {}: leave one out", one.from_step));
    }
  }
  return budgets;
}

void add_loss_budget_options(cli::OptionTable& table, LossBudgetOptions& options) {
  using cli::Scope;
  const LossBudget usual;
  const std::string other = " where another budget is given";
  table.add(
      "Loss budgets (bounded mode; every call is a step, from 0)",
      {{"--skip-above",
        otherwise(cli::share(options.skip_above), cli::share_text(usual.skip_above) + other),
        "skip steps of which the network lost more than this at the worst rank, as 1%", Scope::job},
       {"--halt-above",
        otherwise(cli::share(options.halt_above), cli::share_text(usual.halt_above) + other),
        "end the run, with exit code 3, at the third step in a row of more than this", Scope::job},
       {"--loss-budget", cli::words(options.phases, "STEP:SKIP:HALT", cli::Times::each),
        "both from this step on, as 100:1%:20%; may be repeated", Scope::job}});
}

}  // namespace tarpon
