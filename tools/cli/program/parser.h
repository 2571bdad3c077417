// Parses the words of a command line into a command whose options are set. CLI11 splits the words;
// only parser.cc knows it.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "tools/cli/program/catalogue.h"

namespace tarpon::cli {

struct ShowHelp {
  const Entry* entry = nullptr;  // nullptr: of the program
};
struct ShowVersion {};

/// One line without the program's name.
struct Mistake {
  std::string text;
};

struct Call {
  const Entry* entry = nullptr;
  Invocation invocation;
};

using Parsed = std::variant<Call, ShowHelp, ShowVersion, Mistake>;

/// Sets the variables of the command that `words`, without the program's name, contain. Call once
/// for each table, because lists keep their words.
Parsed parse(const Catalogue& catalogue, const std::vector<std::string>& words);

/// One line about a word that is no command of `family` ("": of the program): "\"alreduce\" is not
/// a command: did you mean allreduce?".
std::string unknown_command(const Catalogue& catalogue, const std::string& family,
                            const std::string& word);

/// The result of parsing with one table.
struct ParsedOptions {
  std::set<std::string> names;         // of the options that were given, all names of each
  bool help = false;                   // -h or --help
  std::string mistake;                 // one line; empty: none
  std::string missing;                 // the first required option that was not given
  std::vector<std::string> surplus{};  // words that belong to no option
};

/// Sets the variables of `table`.
ParsedOptions parse_options(const OptionTable& table, const std::vector<std::string>& words);

}  // namespace tarpon::cli
