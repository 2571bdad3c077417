// Logs of calls that the ranks of a benchmark send to rank 0.
#include "tests/fuzz/fuzz.h"
#include "tools/collective/measurement.h"

using namespace tarpon;
using fuzz::require;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto log = iteration_log_from(std::string(fuzz::text_of(data, size)));
  if (!log) return 0;
  for (const std::string* text : {&log->error, &log->outcome_text, &log->halted}) {
    require(text->find('\n') == std::string::npos, "a text is one line");
  }
  for (const Mode mode : {Mode::exact, Mode::bounded}) {
    Measurement measurement;
    measurement.mode = measurement.asked_mode = mode;
    merge({*log, IterationLog(), *log}, measurement);
    require(measurement.time_us.size() == log->time_us.size(), "every iteration has a time");
    const std::string json =
        to_json(measurement, 3).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    require(!json.empty(), "a report has text");
    notes(measurement);
  }
  return 0;
}
