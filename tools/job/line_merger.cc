#include "tools/job/line_merger.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tools/cli/voice.h"
#include "tools/job/rank_names.h"

namespace tarpon {
namespace {

constexpr std::size_t kMaxLine = 64 << 10;
constexpr std::size_t kMaxHeld = 256;
constexpr Duration kLinePatience = 1s;
constexpr std::string_view kTool = "tarpon: ";

}  // namespace

void LineMerger::add(Rank rank, std::string_view bytes, Time now) {
  std::string& partial = ranks_.at(rank).partial;
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const bool whole = end != std::string_view::npos;
    partial.append(bytes.substr(0, end));
    bytes.remove_prefix(whole ? end + 1 : bytes.size());
    if (whole || partial.size() > kMaxLine) line(rank, std::exchange(partial, {}), now);
  }
  release(now);
}

void LineMerger::finish(Rank rank, Time now) {
  Speaker& speaker = ranks_.at(rank);
  if (!speaker.partial.empty()) line(rank, std::exchange(speaker.partial, {}), now);
  speaker.finished = true;
  release(now);
}

void LineMerger::line(Rank rank, std::string text, Time now) {
  const auto same = std::find_if(lines_.begin(), lines_.end(), [&](const Line& held) {
    return !held.is_said_by(rank) && held.text == text;
  });
  if (same != lines_.end()) {
    same->said.insert(std::upper_bound(same->said.begin(), same->said.end(), rank), rank);
    return;
  }
  if (lines_.size() == kMaxHeld) {
    pass_on(lines_.front());
    lines_.pop_front();
  }
  lines_.push_back({std::move(text), {rank}, now});
}

bool LineMerger::complete(const Line& line) const {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].finished && !line.is_said_by(static_cast<Rank>(rank))) return false;
  }
  return true;
}

bool LineMerger::Line::is_said_by(Rank rank) const {
  return std::binary_search(said.begin(), said.end(), rank);
}

Time LineMerger::due() const {
  return holding_ || lines_.empty() ? kNever : lines_.front().since + kLinePatience;
}

void LineMerger::release(Time now) {
  while (!lines_.empty() && (complete(lines_.front()) || now >= due())) {
    pass_on(lines_.front());
    lines_.pop_front();
  }
}

void LineMerger::pass_on(const Line& line) const {
  const bool is_error = line.text.starts_with(kTool);
  if (ranks_.size() == 1) return output_(line.text, is_error);
  const std::string_view text = std::string_view(line.text).substr(is_error ? kTool.size() : 0);
  if (first_named_rank(text)) return output_(text, is_error);
  output_(fmt::format("{}: {}", rank_names(line.said), text), is_error);
}

}  // namespace tarpon
