#include "tools/cli/program/bash_completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <vector>

namespace tarpon::cli {
namespace {

// NAME stands for the program.
constexpr std::string_view kHelpers =
    R"BASH(# Completion of NAME for bash, made by `NAME completion bash`.
_NAME_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur"); }
# The part behind the last comma.
_NAME_list() {
  local before=
  [[ $cur == *,* ]] && before=${cur%,*},
  mapfile -t COMPREPLY < <(compgen -P "$before" -W "$1" -- "${cur##*,}")
}
_NAME_paths() {
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen "$1" -- "$cur")
}
_NAME_interfaces() { _NAME_words "$(cd /sys/class/net 2>/dev/null && echo *)"; }

_NAME() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command= i
  # bash cuts --mode=exact at the sign.
  if [[ $cur == = ]]; then
    cur=
  elif [[ $prev == = ]] && ((COMP_CWORD > 2)); then
    prev=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "$command ${COMP_WORDS[i]}" in
)BASH";

/// The words of all command names.
std::string command_words(const Catalogue& catalogue) {
  std::set<std::string> words;
  for (const Entry& entry : catalogue.entries()) {
    words.insert(entry.name.substr(entry.name.rfind(' ') + 1));
  }
  return fmt::format("{}", fmt::join(words, " "));
}

/// The shell words that complete the value; "" if nothing can.
std::string action(const Catalogue& catalogue, const Value& value) {
  const std::string& program = catalogue.about().name;
  if (!value.choices.empty()) {
    const char* const how = value.times == Times::list ? "list" : "words";
    return fmt::format("_{}_{} \"{}\"", program, how, fmt::join(value.choices, " "));
  }
  switch (value.complete) {
    case Complete::nothing:
      return "";
    case Complete::file:
      return fmt::format("_{}_paths -f", program);
    case Complete::directory:
      return fmt::format("_{}_paths -d", program);
    case Complete::interface:
      return fmt::format("_{}_interfaces", program);
    case Complete::program:
      return fmt::format("_{}_paths -c", program);
    case Complete::command:
      return fmt::format("_{}_words \"{}\"", program, command_words(catalogue));
  }
  return "";
}

std::string path_cases(const Catalogue& catalogue) {
  std::vector<std::string> paths;
  for (const Entry& entry : catalogue.entries()) {
    // A first word has a blank before it, because the command is empty then.
    const bool first = entry.name.find(' ') == std::string::npos;
    paths.push_back(fmt::format("\"{}{}\"", first ? " " : "", entry.name));
  }
  return fmt::format("      {}) command=${{command:+$command }}${{COMP_WORDS[i]}} ;;\n",
                     fmt::join(paths, " | "));
}

std::string value_cases(const Catalogue& catalogue, const Entry& entry) {
  std::string text;
  for (const OptionTable::Group& group : entry.table.groups()) {
    for (const Option& option : group.rows) {
      if (option.is_flag() || option.is_positional() || group.title.empty()) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : names_of(option)) {
        patterns.push_back(fmt::format("\"{} {}\"", entry.name, name));
      }
      const std::string how = action(catalogue, option.value);
      text += fmt::format("    {})\n      {}return ;;\n", fmt::join(patterns, " | "),
                          how.empty() ? "" : how + "; ");
    }
  }
  return text;
}

/// Names of options and subcommands of one command.
std::vector<std::string> words_of(const Catalogue& catalogue, const Entry& entry) {
  std::vector<std::string> words;
  for (const Entry* inner : catalogue.below(entry.name)) {
    words.push_back(inner->name.substr(entry.name.size() + 1));
  }
  for (const OptionTable::Group& group : entry.table.groups()) {
    if (group.title.empty()) continue;
    for (const Option& option : group.rows) {
      if (!option.is_positional()) words.push_back(names_of(option).back());
    }
  }
  words.emplace_back("--help");
  return words;
}

std::string positional_action(const Catalogue& catalogue, const OptionTable& table) {
  std::string how;
  table.each([&](const Option& option) {
    if (option.is_positional() && how.empty()) how = action(catalogue, option.value);
  });
  return how;
}

std::string command_case(const Catalogue& catalogue, const Entry& entry) {
  const std::string& program = catalogue.about().name;
  const std::string how = positional_action(catalogue, entry.table);
  const std::string words =
      fmt::format("_{}_words \"{}\"", program, fmt::join(words_of(catalogue, entry), " "));
  if (how.empty()) return fmt::format("    \"{}\") {} ;;\n", entry.name, words);
  return fmt::format("    \"{}\")\n      if [[ $cur == -* ]]; then {}; else {}; fi ;;\n",
                     entry.name, words, how);
}

void replace_all(std::string& text, std::string_view from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

}  // namespace

std::string bash_completion(const Catalogue& catalogue) {
  const std::string& program = catalogue.about().name;
  std::string text(kHelpers);
  replace_all(text, "NAME", program);
  text += path_cases(catalogue) + "      *) break ;;\n    esac\n  done\n";
  text += "  case \"$command $prev\" in\n";
  for (const Entry& entry : catalogue.entries()) text += value_cases(catalogue, entry);
  text += "  esac\n  case $command in\n";
  std::vector<std::string> first;
  for (const Entry* entry : catalogue.below("")) first.push_back(entry->name);
  text += fmt::format("    \"\") _{}_words \"{} --help --version\" ;;\n", program,
                      fmt::join(first, " "));
  for (const Entry& entry : catalogue.entries()) text += command_case(catalogue, entry);
  return text + fmt::format("  esac\n}}\ncomplete -F _{0} {0}\n", program);
}

}  // namespace tarpon::cli
