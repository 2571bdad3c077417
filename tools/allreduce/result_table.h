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

/// What --columns may name beside "out" and "in", nccl-tests' four columns of either place. They
/// are of the calls in place.
enum class OwnColumn { p50, p99, max, lost, late };

struct TableShape {
  bool out = true;
  bool in = true;
  std::vector<OwnColumn> own;
};

/// "out", "in" and what bounded (lost) or exact (max) calls are judged by.
TableShape default_shape(Mode mode);

/// From "in,p99,lost". Refuses unknown names, and tables above 120 columns.
Result<TableShape> parse_columns(const std::string& text);

/// nccl-tests' header lines; the last one has the units.
std::string table_header(const TableShape& shape);
/// One row: `out` may lack (file form), and `in` (a halted run), then their columns show "-".
/// `checked`: whether #wrong was counted.
std::string table_row(const TableShape& shape, const std::optional<Measurement>& out,
                      const std::optional<Measurement>& in, std::uint32_t world, bool checked);
/// Over how many flows large messages go, alike or by rank; `by_trial`: chosen, not asked for.
std::string flows_line(const std::vector<std::uint32_t>& flows, bool by_trial);
/// nccl-tests' closing lines. `wrong`: nothing where the results were not checked.
std::string table_footer(std::optional<std::uint64_t> wrong, double mean_busbw);

}  // namespace tarpon
