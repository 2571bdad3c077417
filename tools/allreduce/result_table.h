// The table of `tarpon allreduce`: nccl-tests' columns, and some of our own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/allreduce/measurement.h"
#include "xdp/result.h"

namespace tarpon {

/// Columns that --columns may name beside "out" and "in", which are nccl-tests' four columns of
/// each place. They show the calls in place.
enum class OwnColumn { p50, p99, max, lost, late };

struct TableShape {
  bool out = true;
  bool in = true;
  std::vector<OwnColumn> own;
};

/// "out", "in" and the column by which calls are judged: "lost" of bounded, "max" of exact ones.
TableShape default_shape(Mode mode);

/// Reads a list such as "in,p99,lost". Refuses unknown names, and tables above 120 columns.
Result<TableShape> parse_columns(const std::string& text);

/// nccl-tests' header lines; the last one has the units.
std::string table_header(const TableShape& shape);
/// One row. `out` may be missing (file form), and so may `in` (a halted run); their columns then
/// show "-". `checked`: whether #wrong was counted.
std::string table_row(const TableShape& shape, const std::optional<Measurement>& out,
                      const std::optional<Measurement>& in, std::uint32_t world, bool checked);
/// The number of flows of large messages, one for all ranks if it is the same, else by rank.
/// `by_trial`: a trial chose it, not the user.
std::string flows_line(const std::vector<std::uint32_t>& flows, bool by_trial);
/// nccl-tests' closing lines. `wrong`: nullopt if the results were not checked.
std::string table_footer(std::optional<std::uint64_t> wrong, double mean_busbw);

}  // namespace tarpon
