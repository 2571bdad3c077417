// The packets of one seed as CSV, for a spreadsheet or a plot.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "tools/simulation/simulation.h"
#include "xdp/base/result.h"

namespace tarpon {

/// Columns time_ns,from,to,type,tag,operation,stage,slot,fate; one line when a packet's fate is
/// known, and one for each fault of the receiving port. Corrupted headers are written as they are.
class EventFile {
 public:
  /// Errors: io, with the path.
  static Result<EventFile> create(const std::string& path);

  void write(Time now, Rank from, Rank to, std::span<const std::byte> packet,
             std::string_view fate);

  /// Errors: io, when anything could not be written.
  Result<void> close();

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  EventFile(std::FILE* file, std::string path) : file_(file), path_(std::move(path)) {}

  std::unique_ptr<std::FILE, Closer> file_;
  std::string path_;
};

}  // namespace tarpon
