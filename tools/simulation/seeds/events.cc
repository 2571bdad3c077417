#include "tools/simulation/seeds/events.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "xdp/base/output_place.h"

namespace tarpon {
namespace {

std::string type_name(std::uint8_t type) {
  constexpr std::array<std::string_view, TARPON_TYPE_END> kNames = {
      "",          "ready", "data",  "credit",      "repair",   "closed",
      "heartbeat", "abort", "probe", "probe_reply", "agreement"};
  if (type == 0 || type >= kNames.size()) return std::to_string(type);
  return std::string(kNames[type]);
}

}  // namespace

Result<EventFile> EventFile::create(const std::string& path) {
  const auto file = open_stream(path, "w");
  if (!file) return fail(file.error().code, "--events: " + file.error().message);
  EventFile events(*file, path);
  fmt::print(*file, "time_ns,from,to,type,tag,operation,stage,slot,fate\n");
  return events;
}

void EventFile::write(Time now, Rank from, Rank to, std::span<const std::byte> packet,
                      std::string_view fate) {
  tarpon_header header{};
  std::memcpy(&header, packet.data(), std::min(packet.size(), sizeof header));
  fmt::print(file_.get(), "{},{},{},{},{},{},{},{},{}\n", now.time_since_epoch().count(), from, to,
             type_name(header.type), header.tag, header.operation, tarpon_stage(&header),
             header.slot, fate);
}

Result<void> EventFile::close() {
  std::FILE* file = file_.release();
  const bool failed = std::ferror(file) != 0;
  if (std::fclose(file) != 0 || failed) return fail_system(errno, "--events: " + path_);
  return {};
}

}  // namespace tarpon
