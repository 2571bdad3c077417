#include "tools/cli/program/parser.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "tools/cli/program/suggestion.h"

namespace tarpon::cli {
namespace {

/// The names, each without its first `skip` letters: "load, status, unload or clean".
std::string printable_names(const std::vector<const Entry*>& entries, std::size_t skip) {
  std::string text;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) text += i + 1 == entries.size() ? " or " : ", ";
    text += entries[i]->name.substr(skip);
  }
  return text;
}

/// Reads one word of an option. Throws CLI11's errors, which end the parsing.
void read_word(const Option& option, const std::string& word) {
  const auto good = option.value.read(word);
  if (good) return;
  const std::string& message = good.error().message;
  throw CLI::ValidationError(option.value.errors_name_it ? message : option.names + ": " + message);
}

/// Reads the words of one option, in order.
bool take(const Option& option, const std::vector<std::string>& words) {
  const auto read = [&option](const std::string& word) { read_word(option, word); };
  switch (option.value.times) {
    case Times::once:
      if (words.size() > 1) {
        throw CLI::ValidationError(
            fmt::format("{}: given {} times: give it once", option.names, words.size()));
      }
      read(words.empty() ? "" : words.front());
      break;
    case Times::last:
      read(words.back());
      break;
    case Times::each:
    case Times::rest:
      for (const std::string& word : words) read(word);
      break;
    case Times::list:
      for (const std::string& word : words) {
        for (const std::string& part : CLI::detail::split(word, ',')) read(part);
      }
      break;
  }
  return true;
}

CLI::Option* declare(CLI::App& app, const Option& option) {
  if (option.is_flag()) {
    return app.add_flag_function(
        option.names, [&option](std::int64_t count) { read_word(option, count > 0 ? "1" : "0"); });
  }
  CLI::Option* const made = app.add_option(
      option.names, [&option](const CLI::results_t& words) { return take(option, words); });
  // Surplus words come to take(), which knows what is wrong with them.
  made->expected(1, -1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  const Times times = option.value.times;
  made->allow_extra_args(times == Times::list || times == Times::rest ||
                         (times == Times::each && option.is_positional()));
  if (option.value.bare) made->expected(0, 1);
  if (times == Times::rest) app.positionals_at_end();
  return made;
}

/// CLI11's option for each row.
using Declared = std::vector<std::pair<const Option*, CLI::Option*>>;

Declared declare_all(CLI::App& app, const OptionTable& table) {
  Declared all;
  table.each([&](const Option& option) { all.emplace_back(&option, declare(app, option)); });
  for (const auto& [option, made] : all) {
    for (const std::string& name : option->excludes) made->excludes(app.get_option(name));
  }
  return all;
}

/// "not expected: --mod bounded: did you mean --mode?"
std::string explain_surplus(const OptionTable& table, const std::vector<std::string>& surplus) {
  std::vector<std::string> known{"--help"};
  for (const OptionTable::Group& group : table.groups()) {
    if (group.title.empty()) continue;
    for (const Option& option : group.rows) {
      for (std::string& name : names_of(option)) {
        if (name.starts_with("--")) known.push_back(std::move(name));
      }
    }
  }
  const std::string& first = surplus.front();
  const std::string hint =
      first.starts_with("--") ? did_you_mean(first.substr(0, first.find('=')), known) : "";
  return fmt::format("not expected: {}{}", fmt::join(surplus, " "), hint);
}

/// CLI11's message, replaced where ours says more.
std::string explain(const CLI::ParseError& error, const Declared& declared) {
  std::string text = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) == nullptr) return text;
  for (const auto& [option, made] : declared) {
    if (text.starts_with(made->get_name() + ":")) {
      return fmt::format("{} needs a value: {}", made->get_name(), option->value.notation);
    }
  }
  return text;
}

ParsedOptions parse_with(CLI::App& app, const OptionTable& table, const Declared& declared,
                         const std::vector<std::string>& words) {
  ParsedOptions parsed;
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // CLI11 reads them reversed
  } catch (const CLI::CallForHelp&) {
    parsed.help = true;
  } catch (const CLI::ExtrasError&) {
    parsed.surplus = app.remaining(true);
    parsed.mistake = explain_surplus(table, parsed.surplus);
  } catch (const CLI::ParseError& error) {
    parsed.mistake = explain(error, declared);
  }
  std::replace(parsed.mistake.begin(), parsed.mistake.end(), '\n', ' ');
  for (const auto& [option, made] : declared) {
    if (made->count() == 0) continue;
    for (std::string& name : names_of(*option)) parsed.names.insert(std::move(name));
  }
  return parsed;
}

/// Explains a subcommand that comes after options of its family; else the mistake as it is.
std::string explain_order(const Catalogue& catalogue, const Entry& entry,
                          const ParsedOptions& parsed) {
  for (const Entry* inner : catalogue.below(entry.name)) {
    const std::string word = inner->name.substr(entry.name.size() + 1);
    if (std::find(parsed.surplus.begin(), parsed.surplus.end(), word) == parsed.surplus.end()) {
      continue;
    }
    return fmt::format("{} before {} belongs to {}: write the options of {} after it",
                       parsed.names.empty() ? "an option" : *parsed.names.begin(), word, entry.name,
                       inner->name);
  }
  return parsed.mistake;
}

/// "allreduce, check or doctor"
std::string known_commands(const Catalogue& catalogue, const std::string& family) {
  return printable_names(catalogue.below(family), family.empty() ? 0 : family.size() + 1);
}

/// The mistake of no command, an unknown one, or a family without its subcommand.
Mistake no_command(const Catalogue& catalogue, const std::string& family,
                   const std::vector<std::string>& words) {
  const std::string known = known_commands(catalogue, family);
  if (words.empty()) {
    return {family.empty() ? "a command is missing: use " + known
                           : fmt::format("{} needs a subcommand: {}", family, known)};
  }
  if (words[0].starts_with("-")) {
    return {fmt::format("not expected: {}: a command comes first: {}", words[0], known)};
  }
  return {unknown_command(catalogue, family, words[0])};
}

bool asks_for_help(const std::string& word) {
  return word == "-h" || word == "--help";
}

}  // namespace

std::string unknown_command(const Catalogue& catalogue, const std::string& family,
                            const std::string& word) {
  const std::string path = family.empty() ? "" : family + " ";
  std::vector<std::string> names;
  for (const Entry* entry : catalogue.below(family)) {
    names.push_back(entry->name.substr(path.size()));
  }
  const std::string hint = did_you_mean(word, names);
  return fmt::format("\"{}{}\" is not a command{}", path, word,
                     hint.empty() ? ": use " + known_commands(catalogue, family) : hint);
}

ParsedOptions parse_options(const OptionTable& table, const std::vector<std::string>& words) {
  CLI::App app;
  const Declared declared = declare_all(app, table);
  ParsedOptions parsed = parse_with(app, table, declared, words);
  for (const auto& [option, made] : declared) {
    const bool missing = option->required && made->count() == 0;
    if (missing && parsed.missing.empty()) parsed.missing = option->names;
  }
  return parsed;
}

Parsed parse(const Catalogue& catalogue, const std::vector<std::string>& words) {
  const auto [entry, used] = catalogue.match(words);
  const std::vector<std::string> rest(words.begin() + static_cast<std::ptrdiff_t>(used),
                                      words.end());
  const bool help = !rest.empty() && asks_for_help(rest[0]);
  if (entry == nullptr || !entry->run) {
    if (help) return ShowHelp{entry};
    if (entry == nullptr && !rest.empty() && rest[0] == "--version") return ShowVersion{};
    return no_command(catalogue, entry == nullptr ? "" : entry->name, rest);
  }
  ParsedOptions parsed = parse_options(entry->table, rest);
  if (parsed.help) return ShowHelp{entry};
  if (!parsed.surplus.empty()) return Mistake{explain_order(catalogue, *entry, parsed)};
  if (!parsed.mistake.empty()) return Mistake{std::move(parsed.mistake)};
  if (!parsed.missing.empty()) {
    return Mistake{fmt::format("{} is missing: write {}", parsed.missing,
                               synopsis(catalogue.about(), *entry))};
  }
  return Call{entry, {&catalogue, std::move(parsed.names)}};
}

}  // namespace tarpon::cli
