// What ranks tell rank 0, and rank 0 tells all, in the steps that form a grid. Bytes of another
// rank are checked here: no decode() returns a value that another place has to check again.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/grid/grid_layout.h"

namespace tarpon::grid {

/// An error, or the text of a step.
struct Told {
  std::string text = {};
  std::optional<Error> error = {};
};

std::string encode(const Told& told);
/// Inverts encode(); bytes of an error that are not printable become '?'. Returns an error for
/// bytes that no encode() makes.
Told decode_told(std::string_view bytes);

/// Where a rank runs: the text of its first step.
struct RankPlace {
  std::string key;   // equal for ranks of one host
  std::string name;  // of the host, for people
};

std::string encode(const RankPlace& place);
/// Inverts encode() where the key has no line break and the name is printable. Takes any text.
RankPlace decode_place(std::string_view text);

/// What rank 0 makes of the places: the text that it tells all.
struct GridPlan {
  GridLayout layout;
  std::vector<std::string> host_names;  // by host
};

std::string encode(const GridPlan& plan);
/// Inverts encode() where all names are printable. Errors: mismatch, of a text that is no plan for
/// `world_size` ranks.
Result<GridPlan> decode_plan(std::string_view text, std::size_t world_size);

/// The addresses at which the communicators of a grid meet.
struct GridAddresses {
  std::vector<std::string> hosts;  // by host
  std::vector<std::string> rails;  // by place
};

std::string encode(const GridAddresses& addresses);
/// Inverts encode(). Errors: mismatch, of a text with another number of addresses.
Result<GridAddresses> decode_addresses(std::string_view text, const GridLayout& layout);

/// The lines of `text`. A line break ends a line; the last line may lack its own.
std::vector<std::string> lines(std::string_view text);

}  // namespace tarpon::grid
