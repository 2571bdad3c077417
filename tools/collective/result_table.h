// The table of a collective: nccl-tests' columns, and some of our own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/collective/measurement.h"
#include "xdp/base/result.h"

namespace tarpon {

/// Columns that --columns may name beside "out" and "in", which are nccl-tests' four columns of
/// each place. They show the calls of both places together.
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
/// One row. `out` may be missing (file form), and so may `in` (a halted run); the columns of that
/// place then show "-", or "N/A" if the collective has no calls in place. `checked`: whether #wrong
/// was counted.
std::string table_row(const TableShape& shape, const std::optional<Measurement>& out,
                      const std::optional<Measurement>& in, std::uint32_t world, bool checked);
/// One line that says how many calls p50 or p99 takes, if a column stays empty with `calls` calls.
std::string columns_line(const TableShape& shape, std::uint64_t calls);

/// How the number of flows was chosen.
enum class FlowsBy {
  option,
  trial,
  no_trial,  // too few large calls were made for one
};

/// The calls among `calls` of `size` bytes in `messages` messages that count in a trial of flows:
/// those with messages of 1 MiB or more.
std::uint64_t large_calls(std::uint64_t size, std::uint32_t messages, std::uint64_t calls);
/// `asked`: the value of --flows, or 0 for auto. `large`: large_calls() of the run.
FlowsBy choice_of_flows(std::uint32_t asked, std::uint64_t large);
/// The number of flows of large messages, one for all ranks if it is the same, else by rank.
std::string flows_line(const std::vector<std::uint32_t>& flows, FlowsBy by);
/// nccl-tests' closing lines. `wrong`: nullopt if the results were not checked.
std::string table_footer(std::optional<std::uint64_t> wrong, double mean_busbw);

}  // namespace tarpon
