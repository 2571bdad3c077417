#include "tools/cli/program/catalogue.h"

#include <algorithm>

namespace tarpon::cli {
namespace {

std::string positional_text(const Option& option) {
  const bool many = option.value.times == Times::rest || option.value.times == Times::each;
  const std::string name = option.names + (many ? "..." : "");
  return option.required ? name : "[" + name + "]";
}

}  // namespace

Catalogue::Catalogue(About about, const std::vector<Command>& commands) : about_(std::move(about)) {
  entries_.reserve(commands.size());
  for (const Command& command : commands) {
    Entry& entry = entries_.emplace_back(Entry{command.name, command.summary, {}, nullptr});
    if (command.declare) entry.run = command.declare(entry.table);
  }
}

const Entry* Catalogue::find(std::string_view name) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [name](const Entry& entry) { return entry.name == name; });
  return found == entries_.end() ? nullptr : &*found;
}

std::vector<const Entry*> Catalogue::below(std::string_view name) const {
  const std::string prefix = name.empty() ? "" : std::string(name) + " ";
  std::vector<const Entry*> found;
  for (const Entry& entry : entries_) {
    const bool inside = entry.name.starts_with(prefix) && entry.name.size() > prefix.size();
    if (inside && entry.name.find(' ', prefix.size()) == std::string::npos) {
      found.push_back(&entry);
    }
  }
  return found;
}

std::pair<const Entry*, std::size_t> Catalogue::match(const std::vector<std::string>& words) const {
  const Entry* best = nullptr;
  std::size_t used = 0;
  std::string name;
  for (std::size_t i = 0; i < words.size(); ++i) {
    name += (i > 0 ? " " : "") + words[i];
    const Entry* const entry = find(name);
    if (entry == nullptr) break;
    best = entry;
    used = i + 1;
  }
  return {best, used};
}

std::string synopsis(const About& about, const Entry& entry) {
  std::string line = about.name + " " + entry.name;
  if (!entry.run) return line + " COMMAND";
  bool options = false;
  std::string positionals;
  for (const OptionTable::Group& group : entry.table.groups()) {
    for (const Option& option : group.rows) {
      if (option.is_positional()) {
        positionals += " " + positional_text(option);
      } else {
        options = true;
      }
    }
  }
  return line + (options ? " [OPTION...]" : "") + positionals;
}

}  // namespace tarpon::cli
