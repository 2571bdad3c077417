// All commands of a program with their tables filled: help, completion, manual pages and the parser
// read this.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/cli/command.h"

namespace tarpon::cli {

/// The texts about the program as a whole.
struct About {
  std::string name;     // "tarpon"
  std::string version;  // "0.2.0"
  std::string build;    // what --version shows behind it
  std::string summary;
  std::string exit_codes;  // for commands without their own
  std::vector<Variable> environment;
};

struct Entry {
  std::string name;
  std::string summary;
  OptionTable table;
  Run run;  // empty: a family, which needs a subcommand
};

class Catalogue {
 public:
  /// Declares the options of every command.
  Catalogue(About about, const std::vector<Command>& commands);

  const About& about() const { return about_; }
  const std::vector<Entry>& entries() const { return entries_; }

  /// nullptr where there is none.
  const Entry* find(std::string_view name) const;

  /// The entries one word below `name`; below "": the commands of one word.
  std::vector<const Entry*> below(std::string_view name) const;

  /// The longest command that `words` begin with, and its number of words. nullptr and 0 if the
  /// first word is no command.
  std::pair<const Entry*, std::size_t> match(const std::vector<std::string>& words) const;

 private:
  About about_;
  std::vector<Entry> entries_;
};

/// "tarpon xdp load [OPTION...] INTERFACE"; for a family "tarpon xdp COMMAND".
std::string synopsis(const About& about, const Entry& entry);

}  // namespace tarpon::cli
