#include "tools/cli/program/man_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/cli/program/help_text.h"

namespace tarpon::cli {
namespace {

std::string dashed(std::string name) {
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

/// Text that troff shows unchanged. A dash that users type must stay a dash when it is copied.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  const bool control = !out.empty() && (out[0] == '.' || out[0] == '\'');
  return control ? "\\&" + out : out;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  });
  return text;
}

std::string head(const About& about, const std::string& title, const std::string& summary) {
  // Without a date: the same source gives the same page.
  return fmt::format(".TH {} 1 \"\" \"{} {}\" \"User Commands\"\n.SH NAME\n{} \\- {}\n",
                     upper(escaped(title)), about.name, about.version, escaped(title),
                     escaped(summary));
}

std::string section(const char* title, const std::string& text) {
  return text.empty() ? "" : fmt::format(".SH {}\n{}", title, text);
}

std::string line(const std::string& text) {
  return escaped(text) + "\n";
}

std::string tagged(const std::string& term, const std::string& text) {
  const std::size_t first = std::min(term.find_first_not_of(' '), term.size());
  return fmt::format(".TP\n.B {}\n{}\n", escaped(term.substr(first)), escaped(text));
}

std::string commands(const Catalogue& catalogue, std::string_view family) {
  std::string text;
  for (const Entry* entry : catalogue.below(family)) {
    text += tagged(catalogue.about().name + " " + entry->name, entry->summary);
  }
  return text;
}

std::string options(const OptionTable& table) {
  std::string text;
  for (const OptionTable::Group& group : table.groups()) {
    if (group.title.empty()) continue;
    text += fmt::format(".SS {}\n", escaped(group.title));
    for (const Option& option : group.rows) {
      text += tagged(option_term(option), option_text(option));
    }
  }
  return text;
}

std::string environment(const std::vector<Variable>& variables) {
  std::string text;
  for (const Variable& variable : variables) text += tagged(variable.names, variable.help);
  return text;
}

std::string see_also(const Catalogue& catalogue, const Entry* entry) {
  std::string text;
  const auto add = [&](const std::string& page) {
    text += fmt::format("{}.BR {} (1)", text.empty() ? "" : ",\n", escaped(page));
  };
  const std::string& name = catalogue.about().name;
  if (entry != nullptr) add(name);
  for (const Entry* other : catalogue.below(entry == nullptr ? "" : entry->name)) {
    add(dashed(name + " " + other->name));
  }
  return text + "\n";
}

}  // namespace

std::string program_page(const Catalogue& catalogue) {
  const About& about = catalogue.about();
  return head(about, about.name, about.summary) +
         section("SYNOPSIS", line(about.name + " COMMAND [OPTION...]") + ".br\n" +
                                 line(about.name + " --version")) +
         section("COMMANDS", commands(catalogue, "")) +
         section("EXIT STATUS", line(about.exit_codes)) +
         section("ENVIRONMENT", environment(about.environment)) +
         section("SEE ALSO", see_also(catalogue, nullptr));
}

std::string command_page(const Catalogue& catalogue, const Entry& entry) {
  std::string notes;
  for (const std::string& note : notes_of(entry)) notes += ".PP\n" + line(note);
  const About& about = catalogue.about();
  return head(about, dashed(about.name + " " + entry.name), entry.summary) +
         section("SYNOPSIS", line(synopsis(about, entry))) + section("DESCRIPTION", notes) +
         section("COMMANDS", commands(catalogue, entry.name)) +
         section("OPTIONS", options(entry.table)) +
         section("EXIT STATUS", line(exit_codes_of(catalogue, entry))) +
         section("ENVIRONMENT", environment(entry.table.environment())) +
         section("SEE ALSO", see_also(catalogue, &entry));
}

std::string page_file(const Catalogue& catalogue, const Entry& entry) {
  return dashed(catalogue.about().name + " " + entry.name) + ".1";
}

}  // namespace tarpon::cli
