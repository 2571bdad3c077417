// Help for terminals: at most 100 columns. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "tools/cli/program/catalogue.h"

namespace tarpon::cli {

inline constexpr std::size_t kHelpWidth = 100;

/// The commands of the program, a line each.
std::string program_help(const Catalogue& catalogue);

/// Synopsis, subcommands, options by group, notes, exit codes, environment.
std::string command_help(const Catalogue& catalogue, const Entry& entry);

/// "-b, --minbytes SIZE"; of a positional "FILE".
std::string option_term(const Option& option);

/// The help with its default, and * if all ranks must be given the same value: "largest size
/// (default 32M) *".
std::string option_text(const Option& option);

/// The notes below the options: what * means, and the notes of the table.
std::vector<std::string> notes_of(const Entry& entry);

/// The exit codes that hold for `entry`.
const std::string& exit_codes_of(const Catalogue& catalogue, const Entry& entry);

}  // namespace tarpon::cli
