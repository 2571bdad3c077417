// The judgement of `tarpon doctor`: which rungs an interface can use, what each needs, and the
// exact command that changes it. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/doctor/doctor_facts.h"
#include "transport/rung.h"

namespace tarpon {

enum class Answer { yes, no, unknown };

/// One row of the table.
struct DoctorRow {
  std::string id;     // for JSON: "af_xdp_zero_copy", "memlock", ...
  std::string title;  // for readers
  Answer answer = Answer::yes;
  std::string why;
  std::string command;  // that would change a no; empty where there is none
};

struct Diagnosis {
  std::vector<DoctorRow> rungs;         // fastest first
  std::vector<DoctorRow> requirements;  // in the order in which they are met
  RungChoice choice;                    // what `auto` takes
  /// Why `auto` does not take the best rung of this interface's driver (AF_XDP where it has
  /// zero-copy, else io_uring), a clause; empty where it does, so that no command could improve it.
  std::string shortfall;
};

Diagnosis diagnose(const DoctorFacts& facts);

/// "yes", "no", "?"
std::string_view text_of(Answer answer);

}  // namespace tarpon
