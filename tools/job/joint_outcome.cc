#include "tools/job/joint_outcome.h"

#include <fmt/format.h>

#include "collectives/report_text.h"
#include "transport/clock.h"
#include "xdp/base/printable.h"

namespace tarpon {
namespace {

// The first letter of an exchanged text.
constexpr char kText = 't';
constexpr char kError = 'e';

}  // namespace

Result<std::vector<std::string>> agree(ControlChannel& control, const Result<std::string>& mine) {
  const std::string said = mine ? kText + *mine : kError + mine.error().message;
  auto texts = control.all_gather(said, monotonic_now() + kControlBound);
  if (!texts) return texts;
  std::vector<std::string> errors(texts->size());
  for (std::size_t rank = 0; rank < texts->size(); ++rank) {
    std::string& text = (*texts)[rank];
    if (text.empty()) return fail(Error::Code::mismatch, fmt::format("rank {} sent nothing", rank));
    const bool failed = text.front() == kError;
    text.erase(0, 1);
    if (failed) errors[rank] = printable(text, kLongestMessage);
  }
  if (auto failed = errors_text(errors); !failed.empty()) {
    return fail(Error::Code::unavailable, std::move(failed));
  }
  return texts;
}

Result<void> agree(ControlChannel& control, const Result<void>& mine) {
  const Result<std::string> text = mine ? Result<std::string>("") : fail(mine.error());
  if (auto all = agree(control, text); !all) return fail(all.error());
  return {};
}

}  // namespace tarpon
