// What a result was measured on, for reports.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tarpon {

struct HostInfo {
  std::string hostname;
  std::string kernel;               // release: "6.1.0-28-amd64"
  std::string cpu_model;            // empty when the kernel does not say
  int cpus = 0;                     // that this process may run on
  std::optional<double> cpu_quota;  // as cpu_quota()
};

/// Reads /proc and asks the kernel; never fails, unknown texts are empty. An interface's driver:
/// collectives/environment/interfaces.h.
HostInfo read_host_info();

/// The program of this process and its arguments, with blanks between them.
std::string command_line();

/// The features of the processor that the kernel lists: "avx2", ... Empty if it lists none.
std::vector<std::string> cpu_flags();

}  // namespace tarpon
