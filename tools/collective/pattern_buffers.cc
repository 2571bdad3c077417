#include "tools/collective/pattern_buffers.h"

#include <algorithm>

#include "tools/collective/pattern.h"
#include "tools/reference/reference.h"

namespace tarpon {
namespace {

constexpr std::byte kStale{0xff};  // no value of a pattern has such bytes

/// A reduction, in pieces with the same contributors.
std::vector<ExpectedPiece> by_contributors(const ExpectedPiece& whole, const Report& report,
                                           std::uint32_t ranks) {
  std::vector<ExpectedPiece> pieces;
  for (const ContributorRun& run : runs_of(report, whole.count, ranks)) {
    pieces.push_back({.first = whole.first + run.first,
                      .count = run.count,
                      .from = std::nullopt,
                      .first_in_input = whole.first_in_input + run.first,
                      .contributors = run.contributors});
  }
  return pieces;
}

/// Of a bounded all_gather: the pieces that came.
std::vector<ExpectedPiece> pieces_here(const std::vector<ExpectedPiece>& pieces,
                                       const Report& report) {
  if (report.runs.empty()) return pieces;
  std::vector<ExpectedPiece> here;
  for (const ExpectedPiece& piece : pieces) {
    for (const ContributorRun& run : report.runs) {
      const std::uint64_t first = std::max(piece.first, run.first);
      const std::uint64_t end = std::min(piece.first + piece.count, run.first + run.count);
      if (run.contributors == 0 || first >= end) continue;
      ExpectedPiece& part = here.emplace_back(piece);
      part.first = first;
      part.count = end - first;
      part.first_in_input += first - piece.first;
    }
  }
  return here;
}

/// Of a bounded all_gather: the missing elements that are not as they were before the call.
std::uint64_t count_changed(std::span<const std::byte> output, std::size_t width,
                            const Report& report) {
  std::uint64_t changed = 0;
  for (const ContributorRun& run : report.runs) {
    for (std::uint64_t i = run.first; run.contributors == 0 && i < run.first + run.count; ++i) {
      const std::span<const std::byte> element = output.subspan(i * width, width);
      const auto stale = std::count(element.begin(), element.end(), kStale);
      changed += static_cast<std::size_t>(stale) == width ? 0 : 1;
    }
  }
  return changed;
}

}  // namespace

PatternBuffers::PatternBuffers(const MeasuredCollective& row, Rank rank, std::uint32_t ranks)
    : row_(row) {
  shape_.rank = rank;
  shape_.ranks = ranks;
}

void PatternBuffers::allocate(std::uint64_t bytes, const std::vector<SweepKind>& kinds,
                              bool bounded) {
  std::uint64_t input = 0, whole = 0;
  for (const SweepKind& kind : kinds) {
    const std::size_t element = element_bytes(kind.type);
    CallShape shape = shape_;
    shape.root = kind.root;
    shape.count = row_.count_in(bytes, element, shape.ranks);
    whole = std::max(whole, row_.whole_of(shape.count, shape.ranks) * element);
    if (const auto holds = held(row_, row_.input, shape)) {
      input = std::max(input, holds->count * element);
    }
  }
  input_.resize(input);
  output_.resize(whole);
  if (bounded) spare_.resize(whole);
}

void PatternBuffers::begin(const SweepKind& kind, std::uint64_t bytes, bool in_place) {
  kind_ = kind;
  in_place_ = in_place;
  shape_.root = kind.root;
  shape_.count = row_.count_in(bytes, element_bytes(kind.type), shape_.ranks);
  held_input_ = held(row_, row_.input, shape_);
  held_output_ = held(row_, row_.output, shape_);
  if (!in_place) fill_pattern(input_bytes(), kind_.type, kind_.function, shape_.rank);
}

std::uint64_t PatternBuffers::size() const {
  return row_.whole_of(shape_.count, shape_.ranks) * element_bytes(kind_.type);
}

std::span<std::byte> PatternBuffers::bytes_of(TensorBytes& apart,
                                              const std::optional<HeldElements>& holds) {
  if (!holds) return {};
  const std::size_t element = element_bytes(kind_.type);
  const std::size_t count = holds->count * element;
  return in_place_ ? std::span(output_).subspan(holds->first * element, count)
                   : std::span(apart).first(count);
}

const void* PatternBuffers::input() {
  return held_input_ ? input_bytes().data() : nullptr;
}

void* PatternBuffers::output() {
  return held_output_ ? output_bytes().data() : nullptr;
}

void PatternBuffers::refill() {
  // The input of an out-of-place call stays as it is.
  const std::span<std::byte> whole = std::span(output_).first(size());
  const std::span<std::byte> input = in_place_ ? input_bytes() : std::span<std::byte>();
  const std::size_t before = input.empty() ? 0 : held_input_->first * element_bytes(kind_.type);
  std::fill_n(whole.begin(), before, kStale);
  fill_pattern(input, kind_.type, kind_.function, shape_.rank);
  const std::span<std::byte> after = whole.subspan(before + input.size());
  std::fill(after.begin(), after.end(), kStale);
}

ResultCheck PatternBuffers::check(const Report& report, MissingFill missing) {
  ResultCheck result;
  const std::span<const std::byte> output = output_bytes();
  if (row_.collective != Collective::allreduce) {
    std::vector<ExpectedPiece> pieces = expected_output(row_, shape_);
    if (report.mode == Mode::bounded && row_.collective == Collective::all_gather) {
      pieces = pieces_here(pieces, report);
      result.wrong = count_changed(output, element_bytes(kind_.type), report);
    } else if (report.mode == Mode::bounded && !pieces.empty()) {
      pieces = by_contributors(pieces.front(), report, shape_.ranks);
    }
    result.wrong += count_wrong(output, kind_.type, kind_.function, shape_.ranks, pieces,
                                reduces(row_.collective) && report.algorithm == Algorithm::hosts,
                                report.rescale);
    return result;
  }
  // Of a job of more than 64 ranks a report says what this rank's slice lacks, and not the others.
  const bool known = report.host_of == nullptr || report.mode == Mode::exact;
  if (known)
    result.wrong =
        count_wrong(output, kind_.type, kind_.function, shape_.rank, shape_.ranks, missing, report);
  if (report.mode == Mode::bounded) {
    result.squared_error = pattern_error(output, kind_.type, kind_.function, shape_.ranks);
  }
  return result;
}

std::optional<Divergence> PatternBuffers::divergence(Communicator& communicator,
                                                     Duration deadline) {
  return measure_divergence(communicator, output_bytes(), kind_.type, deadline,
                            std::span(input_).first(size()), std::span(spare_).first(size()));
}

}  // namespace tarpon
