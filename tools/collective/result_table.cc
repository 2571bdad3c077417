#include "tools/collective/result_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <span>

#include "tools/cli/quantile.h"
#include "tools/cli/wrapped_text.h"
#include "tools/job/rank_names.h"

namespace tarpon {
namespace {

/// Heading and width of a column. place_line() adds the line with the place.
struct Column {
  std::string_view name;
  std::string_view unit;
  std::size_t width;
};

constexpr std::array kCall{Column{"size", "(B)", 10}, Column{"count", "(elements)", 10},
                           Column{"type", "", 8}, Column{"redop", "", 5}, Column{"root", "", 4}};
constexpr std::array kPlace{Column{"time", "(us)", 9}, Column{"algbw", "(GB/s)", 7},
                            Column{"busbw", "(GB/s)", 7}, Column{"#wrong", "", 6}};
/// In the order of OwnColumn.
constexpr std::array kOwn{Column{"p50", "(us)", 8}, Column{"p99", "(us)", 8},
                          Column{"max", "(us)", 8}, Column{"lost", "(%)", 7},
                          Column{"late", "ranks", 8}};

constexpr std::uint64_t kTrialCalls = 9;  // of a trial of flows, with large messages

const Column& row_of(OwnColumn own) {
  return kOwn[static_cast<std::size_t>(own)];
}

std::size_t width_of(std::span<const Column> columns) {
  std::size_t width = 0;
  for (const Column& column : columns) width += column.width + 1;
  return width;
}

std::size_t width_of(const std::vector<OwnColumn>& own) {
  std::size_t width = 0;
  for (const OwnColumn one : own) width += row_of(one).width + 1;
  return width;
}

/// Includes the two characters at the start of a line.
std::size_t width_of(const TableShape& shape) {
  return 1 + width_of(kCall) + ((shape.out ? 1 : 0) + (shape.in ? 1 : 0)) * width_of(kPlace) +
         width_of(shape.own);
}

std::string cell(const Column& column, std::string_view text) {
  return fmt::format(" {:>{}}", text, column.width);
}

/// Uses fewer decimals if the column is too narrow for `decimals`.
std::string figure(const Column& column, double value, int decimals) {
  std::string text;
  for (; decimals >= 0; --decimals) {
    text = fmt::format("{:.{}f}", value, decimals);
    if (text.size() <= column.width) return cell(column, text);
  }
  return cell(column, fmt::format("{:.0e}", value));
}

std::string figure(const Column& column, std::optional<double> value, int decimals) {
  return value ? figure(column, *value, decimals) : cell(column, "-");
}

/// `missing`: what stands in each cell if there is no measurement.
std::string place_cells(const std::optional<Measurement>& m, std::uint32_t world, bool checked,
                        std::string_view missing) {
  std::string text;
  if (!m || m->time_us.empty()) {
    for (const Column& column : kPlace) text += cell(column, missing);
    return text;
  }
  const double mean = m->mean_us();
  return figure(kPlace[0], mean, 2) + figure(kPlace[1], m->algbw(mean), 3) +
         figure(kPlace[2], m->busbw(mean, world), 3) +
         (checked ? figure(kPlace[3], static_cast<double>(m->wrong), 0) : cell(kPlace[3], "N/A"));
}

std::string late_text(const std::vector<Rank>& late, std::size_t width) {
  if (late.empty()) return "-";
  std::string text = fmt::format("{}", fmt::join(late, ","));
  return text.size() <= width ? text : rank_count(late.size());
}

/// What the own columns show of both places together.
struct BothPlaces {
  std::vector<double> time_us;
  double lost_fraction = 0;
  std::vector<Rank> late;  // sorted
};

BothPlaces both_places(const std::optional<Measurement>& out,
                       const std::optional<Measurement>& in) {
  BothPlaces both;
  std::set<Rank> late;
  for (const auto* one : {&out, &in}) {
    if (!*one) continue;
    both.time_us.insert(both.time_us.end(), (*one)->time_us.begin(), (*one)->time_us.end());
    both.lost_fraction = std::max(both.lost_fraction, (*one)->lost_fraction);
    late.insert((*one)->late.begin(), (*one)->late.end());
  }
  both.late.assign(late.begin(), late.end());
  return both;
}

double quantile_of(OwnColumn own) {
  return own == OwnColumn::p50 ? 0.5 : own == OwnColumn::p99 ? 0.99 : 1;
}

std::string own_cell(OwnColumn own, const BothPlaces& both) {
  const Column& column = row_of(own);
  if (both.time_us.empty()) return cell(column, "-");
  switch (own) {
    case OwnColumn::p50:
    case OwnColumn::p99:
    case OwnColumn::max:
      return figure(column, quantile(both.time_us, quantile_of(own)), 2);
    case OwnColumn::lost:
      return figure(column, both.lost_fraction * 100, 4);
    case OwnColumn::late:
      return cell(column, late_text(both.late, column.width));
  }
  return "";
}

/// One header line: `part` of each column.
std::string head_line(const TableShape& shape, std::string_view Column::*part) {
  std::string text = "#";
  const auto add = [&](std::span<const Column> columns) {
    for (const Column& column : columns) text += cell(column, column.*part);
  };
  add(kCall);
  if (shape.out) add(kPlace);
  if (shape.in) add(kPlace);
  for (const OwnColumn one : shape.own) text += cell(row_of(one), row_of(one).*part);
  return text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
}

std::string place_line(const TableShape& shape) {
  std::string text = "#" + std::string(width_of(kCall), ' ');
  const std::size_t own = width_of(shape.own);
  const auto title = [&](std::string_view name, std::size_t width) {
    if (width > 0) text += fmt::format(" {:^{}}", name, width - 1);
  };
  if (shape.out) title("out-of-place", width_of(kPlace));
  if (shape.in) title("in-place", width_of(kPlace));
  title("both", own);
  return text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
}

}  // namespace

TableShape default_shape(Mode mode) {
  TableShape shape;
  shape.own = {mode == Mode::bounded ? OwnColumn::lost : OwnColumn::max};
  return shape;
}

Result<TableShape> parse_columns(const std::string& text) {
  TableShape shape;
  shape.out = shape.in = false;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    begin = end + 1;
    const auto found = std::find_if(kOwn.begin(), kOwn.end(),
                                    [&](const Column& column) { return column.name == word; });
    if (word == "out") {
      shape.out = true;
    } else if (word == "in") {
      shape.in = true;
    } else if (found != kOwn.end()) {
      shape.own.push_back(static_cast<OwnColumn>(found - kOwn.begin()));
    } else {
      return fail(Error::Code::invalid_argument,
                  fmt::format("\"{}\" is not one of out, in, p50, p99, max, lost, late", word));
    }
  }
  if (const std::size_t width = width_of(shape); width > kTextWidth) {
    return fail(
        Error::Code::invalid_argument,
        fmt::format("the table would have {} columns of {}: leave \"in\", \"out\" or others out; "
                    "--json has everything",
                    width, kTextWidth));
  }
  return shape;
}

std::string table_header(const TableShape& shape) {
  return "#\n" + place_line(shape) + head_line(shape, &Column::name) +
         head_line(shape, &Column::unit);
}

std::string table_row(const TableShape& shape, const std::optional<Measurement>& out,
                      const std::optional<Measurement>& in, std::uint32_t world, bool checked) {
  const Measurement& known = in ? *in : *out;
  std::string text = " " + cell(kCall[0], fmt::format("{}", known.size)) +
                     cell(kCall[1], fmt::format("{}", known.count)) +
                     cell(kCall[2], name(known.type)) + cell(kCall[3], known.function_name()) +
                     cell(kCall[4], fmt::format("{}", known.root_number()));
  const bool has_in_place = tarpon::row_of(known.collective).has_in_place();
  if (shape.out) text += place_cells(out, world, checked, "-");
  if (shape.in) text += place_cells(in, world, checked, has_in_place ? "-" : "N/A");
  const BothPlaces both = both_places(out, in);
  for (const OwnColumn one : shape.own) text += own_cell(one, both);
  return text + "\n";
}

std::string columns_line(const TableShape& shape, std::uint64_t calls) {
  constexpr std::uint64_t kForP99 = 100;
  const bool asked =
      std::find(shape.own.begin(), shape.own.end(), OwnColumn::p99) != shape.own.end();
  if (!asked || calls >= kForP99) return "";
  return fmt::format("# p99                  : needs {} calls of a size, not {}: raise -n\n",
                     kForP99, calls);
}

std::uint64_t large_calls(std::uint64_t size, std::uint32_t messages, std::uint64_t calls) {
  constexpr std::uint64_t kLargeMessage = 1 << 20;
  return size / messages >= kLargeMessage ? calls : 0;
}

FlowsBy choice_of_flows(std::uint32_t asked, std::uint64_t large) {
  return asked != 0 ? FlowsBy::option : large >= kTrialCalls ? FlowsBy::trial : FlowsBy::no_trial;
}

std::string flows_line(const std::vector<std::uint32_t>& flows, FlowsBy by) {
  const bool alike = std::all_of(flows.begin(), flows.end(),
                                 [&](std::uint32_t one) { return one == flows.front(); });
  const std::string many = alike && !flows.empty()
                               ? fmt::format("{}", flows.front())
                               : fmt::format("{}, of ranks 0 to {}", fmt::join(flows, " "),
                                             flows.empty() ? 0 : flows.size() - 1);
  const std::string why = by == FlowsBy::option ? ""
                          : by == FlowsBy::trial
                              ? ", by trial; messages below 1 MiB take 1"
                              : fmt::format(
                                    ", without a trial: that takes {} calls with messages "
                                    "of 1 MiB or more",
                                    kTrialCalls);
  return fmt::format("# Flows to each rank   : {}{}\n", many, why);
}

std::string table_footer(std::optional<std::uint64_t> wrong, double mean_busbw) {
  return fmt::format(
      "# Out of bounds values : {}\n"
      "# Avg bus bandwidth    : {:.6g}\n"
      "#\n",
      wrong ? fmt::format("{} {}", *wrong, *wrong == 0 ? "OK" : "FAILED") : "not checked",
      mean_busbw);
}

}  // namespace tarpon
