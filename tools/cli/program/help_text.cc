#include "tools/cli/program/help_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/cli/wrapped_text.h"

namespace tarpon::cli {
namespace {

constexpr std::size_t kTermWidth = 30;  // includes two blanks; longer terms get a line of their own

/// A term and its text beside it.
std::string row(const std::string& term, const std::string& text, std::size_t width = kTermWidth) {
  const std::string indent(width, ' ');
  const std::string head = "  " + term;
  if (head.size() + 2 > width) {
    return head + "\n" + wrapped(indent + text, indent, kHelpWidth) + "\n";
  }
  return wrapped(fmt::format("{:<{}}{}", head, width, text), indent, kHelpWidth) + "\n";
}

std::string commands_text(const Catalogue& catalogue, std::string_view family) {
  const auto entries = catalogue.below(family);
  if (entries.empty()) return "";
  std::size_t width = 0;
  for (const Entry* entry : entries) width = std::max(width, entry->name.size() + 4);
  std::string text = "\nCommands:\n";
  for (const Entry* entry : entries) text += row(entry->name, entry->summary, width);
  return text;
}

std::string options_text(const OptionTable& table) {
  std::string text;
  for (const OptionTable::Group& group : table.groups()) {
    if (group.title.empty()) continue;
    text += fmt::format("\n{}:\n", group.title);
    for (const Option& option : group.rows) text += row(option_term(option), option_text(option));
  }
  return text;
}

std::string environment_text(const std::vector<Variable>& variables) {
  if (variables.empty()) return "";
  std::string text = "\nEnvironment:\n";
  for (const Variable& variable : variables) {
    // Lists of names are wrapped as well.
    const std::string names = wrapped("  " + variable.names, "  ", kHelpWidth);
    const bool beside = names.size() + 2 <= kTermWidth;
    text += beside ? row(variable.names, variable.help)
                   : names + "\n" +
                         wrapped(std::string(kTermWidth, ' ') + variable.help,
                                 std::string(kTermWidth, ' '), kHelpWidth) +
                         "\n";
  }
  return text;
}

std::string paragraph(const std::string& text) {
  return "\n" + wrapped(text, "", kHelpWidth) + "\n";
}

}  // namespace

std::string option_term(const Option& option) {
  std::string names;
  for (const std::string& name : names_of(option)) names += (names.empty() ? "" : ", ") + name;
  if (option.is_positional()) return names;
  const bool only_long = names.starts_with("--");
  const std::string value = option.is_flag()    ? ""
                            : option.value.bare ? " [" + option.value.notation + "]"
                                                : " " + option.value.notation;
  return (only_long ? "    " : "") + names + value;
}

std::string option_text(const Option& option) {
  std::string text = option.help;
  if (!option.value.initial.empty()) text += " (default " + option.value.initial + ")";
  return text + (option.scope == Scope::job ? " *" : "");
}

std::vector<std::string> notes_of(const Entry& entry) {
  std::vector<std::string> notes;
  bool agreed = false;
  entry.table.each([&](const Option& option) { agreed = agreed || option.scope == Scope::job; });
  if (agreed) notes.emplace_back("* All ranks of a job must be given the same.");
  notes.insert(notes.end(), entry.table.notes().begin(), entry.table.notes().end());
  return notes;
}

const std::string& exit_codes_of(const Catalogue& catalogue, const Entry& entry) {
  const std::string& own = entry.table.exit_codes();
  return own.empty() ? catalogue.about().exit_codes : own;
}

std::string program_help(const Catalogue& catalogue) {
  const About& about = catalogue.about();
  std::string text = fmt::format("{} {}: {}\n\nUsage: {} COMMAND [OPTION...]\n", about.name,
                                 about.version, about.summary, about.name);
  text += commands_text(catalogue, "");
  text += "\nOptions:\n";
  text += row("-h, --help", "show this text; after a command, its options");
  text += row("    --version", "show version and commit");
  text += paragraph(about.exit_codes);
  text += environment_text(about.environment);
  return text;
}

std::string command_help(const Catalogue& catalogue, const Entry& entry) {
  const About& about = catalogue.about();
  std::string text = fmt::format("{} {}: {}\n\n", about.name, entry.name, entry.summary);
  text += wrapped("Usage: " + synopsis(about, entry), "         ", kHelpWidth) + "\n";
  text += commands_text(catalogue, entry.name);
  text += options_text(entry.table);
  for (const std::string& note : notes_of(entry)) text += paragraph(note);
  text += paragraph(exit_codes_of(catalogue, entry));
  text += environment_text(entry.table.environment());
  return text;
}

}  // namespace tarpon::cli
