#include "tools/line_merger.h"

#include <utility>

namespace tarpon {
namespace {

constexpr std::size_t kMaxLine = 64 << 10;
constexpr std::size_t kMaxRemembered = 4096;  // distinct lines; later new ones all appear

}  // namespace

void LineMerger::add(std::uint32_t rank, std::string_view bytes) {
  Speaker& speaker = ranks_.at(rank);
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const bool whole = end != std::string_view::npos;
    speaker.partial.append(bytes.substr(0, end));
    bytes.remove_prefix(whole ? end + 1 : bytes.size());
    if (whole || speaker.partial.size() > kMaxLine)
      line(speaker, std::exchange(speaker.partial, {}));
  }
}

void LineMerger::finish(std::uint32_t rank) {
  Speaker& speaker = ranks_.at(rank);
  if (!speaker.partial.empty()) line(speaker, std::exchange(speaker.partial, {}));
}

void LineMerger::line(Speaker& speaker, const std::string& text) {
  if (shown_.size() >= kMaxRemembered && !shown_.contains(text)) return output_(text);
  std::uint64_t& shown = shown_[text];
  if (++speaker.said[text] <= shown) return;
  ++shown;
  output_(text);
}

}  // namespace tarpon
