#include "collectives/grid/grid_messages.h"

#include <fmt/format.h>

#include <algorithm>

#include "xdp/base/printable.h"

namespace tarpon::grid {
namespace {

// A text begins with '='; an error with its code as a letter.
constexpr char kText = '=';
constexpr char kFirstCode = 'A';
constexpr char kLastCode = kFirstCode + static_cast<char>(Error::Code::io);

tl::unexpected<Error> wrong(const char* what, std::size_t world_size) {
  return fail(Error::Code::mismatch,
              fmt::format("rank 0 told {} that {} ranks cannot have: install "
                          "the same Tarpon on all hosts",
                          what, world_size));
}

std::string joined(const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) joined += text + "\n";
  return joined;
}

}  // namespace

std::string encode(const Told& told) {
  if (!told.error) return kText + told.text;
  return static_cast<char>(kFirstCode + static_cast<char>(told.error->code)) + told.error->message;
}

Told decode_told(std::string_view bytes) {
  const char kind = bytes.empty() ? '\0' : bytes[0];
  if (kind == kText) return {.text = std::string(bytes.substr(1))};
  if (kind < kFirstCode || kind > kLastCode) {
    return {.error = Error::make(Error::Code::unavailable, "a message without a text or an error")};
  }
  const auto code = static_cast<Error::Code>(kind - kFirstCode);
  return {.error = Error::make(code, printable(bytes.substr(1), kLongestMessage))};
}

std::string encode(const RankPlace& place) {
  return place.key + "\n" + place.name;
}

RankPlace decode_place(std::string_view text) {
  const std::size_t end = std::min(text.size(), text.find('\n'));
  const std::vector<std::string> rest = lines(text.substr(std::min(text.size(), end + 1)));
  return {std::string(text.substr(0, end)), rest.empty() ? "" : printable(rest[0])};
}

std::string encode(const GridPlan& plan) {
  return plan.layout.encode() + "\n" + joined(plan.host_names);
}

Result<GridPlan> decode_plan(std::string_view text, std::size_t world_size) {
  constexpr const char* kWhat = "a grid";
  if (world_size == 0 || text.size() <= world_size || text[world_size] != '\n') {
    return wrong(kWhat, world_size);
  }
  auto layout = GridLayout::decode(std::string(text.substr(0, world_size)));
  if (!layout) return wrong(kWhat, world_size);
  auto names = lines(text.substr(world_size + 1));
  if (names.size() != layout->hosts()) return wrong(kWhat, world_size);
  for (std::string& name : names) name = printable(name);
  return GridPlan{*std::move(layout), std::move(names)};
}

std::string encode(const GridAddresses& addresses) {
  return joined(addresses.hosts) + joined(addresses.rails);
}

Result<GridAddresses> decode_addresses(std::string_view text, const GridLayout& layout) {
  auto hosts = lines(text);
  if (hosts.size() != layout.hosts() + layout.places()) {
    return wrong("addresses", layout.world_size());
  }
  const auto first_rail = hosts.begin() + layout.hosts();
  std::vector<std::string> rails(first_rail, hosts.end());
  hosts.erase(first_rail, hosts.end());
  return GridAddresses{std::move(hosts), std::move(rails)};
}

std::vector<std::string> lines(std::string_view text) {
  std::vector<std::string> result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.size(), text.find('\n', at));
    result.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return result;
}

}  // namespace tarpon::grid
