// Messages of ranks that form a grid of hosts.
// Input: the number of ranks less one (1 byte), then the message.
#include "collectives/grid/grid_messages.h"

#include <algorithm>

#include "tests/fuzz/fuzz.h"

using namespace tarpon;
using namespace tarpon::grid;
using fuzz::require;

namespace {

bool is_printable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

void require_consistent(const GridLayout& layout, std::size_t world_size) {
  require(layout.world_size() == world_size, "every rank has a place");
  require(layout.hosts() <= GridLayout::kMost && layout.places() <= GridLayout::kMost,
          "masks have room for all");
  for (std::uint32_t place = 0; place < layout.places(); ++place) {
    const std::vector<Rank> rail = layout.rail(place);
    for (std::uint32_t host = 0; host < layout.hosts(); ++host) {
      require(layout.host(host)[place] == rail[host], "rails and hosts cross");
      require(layout.host_of(rail[host]) == host, "a rank is on its host");
      require(layout.place_of(rail[host]) == place, "a rank is at its place");
    }
  }
}

void try_plan(std::string_view text, std::size_t world_size) {
  const auto plan = decode_plan(text, world_size);
  if (!plan) {
    require(plan.error().message.find('\n') == std::string::npos, "a refusal is one line");
    return;
  }
  require_consistent(plan->layout, world_size);
  require(plan->host_names.size() == plan->layout.hosts(), "every host has a name");
  require(std::all_of(plan->host_names.begin(), plan->host_names.end(), is_printable),
          "names are printable");
  const std::string encoded = encode(*plan);
  const auto again = decode_plan(encoded, world_size);
  require(again && encode(*again) == encoded, "decode inverts encode");
}

void try_addresses(std::string_view text, std::size_t world_size) {
  const std::size_t hosts = 2 - world_size % 2;
  std::vector<std::string> keys;
  for (std::size_t rank = 0; rank < world_size; ++rank)
    keys.push_back(std::to_string(rank % hosts));
  const auto layout = GridLayout::make(keys, keys);
  if (!layout) return;
  const auto addresses = decode_addresses(text, *layout);
  if (!addresses) return;
  require(addresses->hosts.size() == layout->hosts(), "every host has an address");
  require(addresses->rails.size() == layout->places(), "every rail has an address");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t world_size = data[0] + std::size_t{1};
  const std::string_view bytes = fuzz::text_of(data + 1, size - 1);
  try_plan(bytes, world_size);
  try_addresses(bytes, world_size);
  const Told told = decode_told(bytes);
  require(!told.error || told.error->code <= Error::Code::io, "the code is a known one");
  require(!told.error || told.text.empty(), "an error has no text");
  require(!told.error || is_printable(told.error->message), "an error is printable");
  const RankPlace place = decode_place(bytes);
  require(place.key.find('\n') == std::string::npos, "a key is one line");
  require(is_printable(place.name), "a name is printable");
  return 0;
}
