#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "collectives/allreduce.h"
#include "tools/cli/wrapped_text.h"
#include "tools/flight/flight_report.h"
#include "tools/job/rank_names.h"

namespace tarpon {
namespace {

constexpr double kWidth = 960, kLeft = 70, kRight = 20, kTop = 70, kRow = 30, kBar = 11, kGap = 6,
                 kHeadLine = 16;

// Operations before the one in question that are drawn beside it.
constexpr std::size_t kBefore = 5;

// Colours that stay apart for colour-blind readers (Okabe & Ito).
constexpr std::string_view kScatter = "#56b4e9", kGather = "#0072b2", kFinish = "#999999",
                           kBad = "#d55e00";

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string text(double x, double y, std::string_view anchor, std::string_view words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     escaped(words));
}

/// One operation, on a scale of its own: one that hangs takes a thousand times as long as those
/// before it.
struct Panel {
  OperationKey key;
  std::vector<OperationAtRank> operation;
  Time first = kNever;
  Time last{};
  double left = 0, right = 0;

  double x(Time time) const {
    const auto span = static_cast<double>(std::max<Duration>(last - first, 1us).count());
    return left + (right - left) * static_cast<double>((time - first).count()) / span;
  }
};

Time end_at(const FlightRank& rank, const OperationAtRank& at) {
  return at.ended ? rank.at(*at.ended) : rank.dumped();
}

/// The operation of the verdict, or the newest, and some before it, by their beginnings.
std::vector<Panel> choose_panels(const FlightJob& job, const FlightVerdict& verdict) {
  std::vector<Panel> panels;
  for (const auto& [key, operation] : operations_of(job)) {
    Panel panel{.key = key, .operation = operation};
    panel.first = begin_of(job, operation);
    for (std::size_t rank = 0; rank < operation.size(); ++rank) {
      if (!operation[rank].opened) continue;
      panel.last = std::max(panel.last, end_at(job.ranks[rank], operation[rank]));
    }
    if (panel.first != kNever) panels.push_back(std::move(panel));
  }
  std::stable_sort(panels.begin(), panels.end(),
                   [](const Panel& a, const Panel& b) { return a.first < b.first; });
  const auto asked = std::find_if(panels.begin(), panels.end(), [&](const Panel& panel) {
    return panel.key == verdict.operation;
  });
  if (asked != panels.end()) panels.erase(asked + 1, panels.end());
  if (panels.size() > kBefore + 1) {
    panels.erase(panels.begin(), panels.end() - static_cast<std::ptrdiff_t>(kBefore + 1));
  }
  return panels;
}

/// Gives the last panel half of the width.
void lay_out(std::vector<Panel>& panels) {
  const double all = kWidth - kLeft - kRight;
  const double small = panels.size() > 1 ? all / 2 / static_cast<double>(panels.size() - 1) : 0;
  double left = kLeft;
  for (Panel& panel : panels) {
    panel.left = left;
    panel.right = &panel == &panels.back() ? kWidth - kRight : left + small - kGap;
    left += small;
  }
}

std::string bar(const Panel& panel, double y, Time from, Time to, std::string_view colour,
                std::string_view hint) {
  const double left = panel.x(from);
  const double width = std::max(1.0, panel.x(to) - left);
  return fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"><title>{}</title>"
      "</rect>\n",
      left, y, width, kBar, colour, escaped(hint));
}

/// `in_trouble`: the verdict found something, so that open operations do not just run.
std::string bars(const Panel& panel, const FlightRank& rank, const OperationAtRank& at, double y,
                 bool in_trouble) {
  if (!at.opened) return "";
  const std::string what = operation_text(panel.key);
  const Time end = end_at(rank, at);
  Time from = rank.at(*at.opened);
  std::string result;
  bool whole = true;
  for (std::size_t stage = 0; stage < 2 && whole; ++stage) {
    whole = at.closed[stage].has_value();
    const Time to = whole ? std::min(rank.at(*at.closed[stage]), end) : end;
    result += bar(panel, y, from, to, stage == 0 ? kScatter : kGather,
                  fmt::format("{}, stage {}{}", what, stage + 1, whole ? "" : ": not whole"));
    from = std::max(from, to);
  }
  if (whole) result += bar(panel, y, from, end, kFinish, what + ", finishing");
  const bool good =
      at.ended ? static_cast<Status>(at.ended->detail) == Status::complete : !in_trouble;
  if (!good) {
    const auto how = at.ended ? name(static_cast<Status>(at.ended->detail)) : "still open";
    result +=
        bar(panel, y + kBar, rank.at(*at.opened), end, kBad, fmt::format("{}: {}", what, how));
  }
  return result;
}

std::string panel_text(const FlightJob& job, const Panel& panel, double bottom, bool in_trouble) {
  std::string svg;
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    const double y = kTop + kRow * static_cast<double>(rank);
    if (job.ranks[rank].dump) {
      svg += bars(panel, job.ranks[rank], panel.operation[rank], y, in_trouble);
    }
  }
  const double span = std::chrono::duration<double, std::milli>(panel.last - panel.first).count();
  svg += text(panel.left, bottom + 16, "start", short_text(panel.key));
  return svg + text(panel.left, bottom + 32, "start", fmt::format("{:.3f} ms", span));
}

/// The verdict in as many lines as fit above the bars; `tarpon flight` prints all of it.
std::vector<std::string> head_lines(const std::string& verdict) {
  constexpr std::size_t kColumns = 110, kMost = 4;
  std::istringstream words(wrapped(verdict, "", kColumns));
  std::vector<std::string> lines;
  for (std::string line; std::getline(words, line);) {
    if (lines.size() == kMost) {
      lines.back() += " ...";
      break;
    }
    lines.push_back(line);
  }
  if (lines.empty()) lines.emplace_back();
  return lines;
}

std::string legend(bool in_trouble) {
  std::string result;
  double x = kLeft;
  for (const auto& [colour, words] :
       {std::pair(kScatter, "scatter"), std::pair(kGather, "gather"),
        std::pair(kFinish, "finishing"), std::pair(kBad, "not complete")}) {
    if (colour == kBad && !in_trouble) break;
    result += fmt::format("<rect x=\"{}\" y=\"44\" width=\"12\" height=\"12\" fill=\"{}\"/>\n", x,
                          colour);
    result += text(x + 17, 54, "start", words);
    x += 110;
  }
  return result;
}

}  // namespace

std::string flight_svg(const FlightJob& job, const FlightVerdict& verdict) {
  std::vector<Panel> panels = choose_panels(job, verdict);
  lay_out(panels);
  const bool in_trouble = verdict.operation.has_value();
  const double bottom = kTop + kRow * static_cast<double>(job.ranks.size());
  // Leave out how it ended by rank, which the bars show.
  const std::vector<std::string> head =
      head_lines(verdict.line.substr(0, verdict.line.find(" (by rank")));
  const double below = kHeadLine * static_cast<double>(head.size() - 1);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      kWidth, bottom + below + 40);
  svg += text(kLeft, 18, "start",
              fmt::format("job {:08x}, {}", job.job, rank_count(job.ranks.size())));
  for (std::size_t i = 0; i < head.size(); ++i) {
    svg += text(kLeft, 36 + kHeadLine * static_cast<double>(i), "start", head[i]);
  }
  svg += fmt::format("<g transform=\"translate(0,{})\">\n", below) + legend(in_trouble);
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    const double y = kTop + kRow * static_cast<double>(rank);
    const bool guilty = std::any_of(verdict.guilty.begin(), verdict.guilty.end(),
                                    [rank](const FlightBlame& one) { return one.rank == rank; });
    svg += text(kLeft - 8, y + 12, "end", fmt::format("{}rank {}", guilty ? "! " : "", rank));
    if (!job.ranks[rank].dump) svg += text(kLeft, y + 12, "start", "no recording");
  }
  for (const Panel& panel : panels) svg += panel_text(job, panel, bottom, in_trouble);
  return svg + "</g>\n</svg>\n";
}

}  // namespace tarpon
