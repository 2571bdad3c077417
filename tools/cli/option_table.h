// The options of one command, in groups, and the other texts of its help.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/cli/option.h"

namespace tarpon::cli {

/// An environment variable that a command reads.
struct Variable {
  std::string names;  // "RANK", or several with commas between them
  std::string help;
};

class OptionTable {
 public:
  struct Group {
    std::string title;
    std::vector<Option> rows;
  };

  /// Adds rows to a group; groups keep the order in which they were first named. Rows of a group
  /// without a title work but are not shown: for options that only exist to be accepted or refused.
  void add(const std::string& title, std::vector<Option> rows) {
    Group& group = group_named(title);
    for (Option& row : rows) group.rows.push_back(std::move(row));
  }

  /// A paragraph about the whole command.
  void note(std::string text) { notes_.push_back(std::move(text)); }

  /// Sets the exit codes, if they differ from those of all commands.
  void exit_codes(std::string text) { exit_codes_ = std::move(text); }

  void environment(std::vector<Variable> variables) { environment_ = std::move(variables); }

  const std::vector<Group>& groups() const { return groups_; }
  const std::vector<std::string>& notes() const { return notes_; }
  const std::string& exit_codes() const { return exit_codes_; }
  const std::vector<Variable>& environment() const { return environment_; }

  /// nullptr where no option has this name.
  const Option* find(std::string_view name) const {
    for (const Group& group : groups_) {
      for (const Option& row : group.rows) {
        for (const std::string& one : names_of(row)) {
          if (one == name) return &row;
        }
      }
    }
    return nullptr;
  }

  /// Calls `visit(option)` for each row, hidden ones included.
  template <typename Visit>
  void each(Visit visit) const {
    for (const Group& group : groups_) {
      for (const Option& row : group.rows) visit(row);
    }
  }

 private:
  Group& group_named(const std::string& title) {
    for (Group& group : groups_) {
      if (group.title == title) return group;
    }
    return groups_.emplace_back(Group{title, {}});
  }

  std::vector<Group> groups_;
  std::vector<std::string> notes_;
  std::string exit_codes_;
  std::vector<Variable> environment_;
};

}  // namespace tarpon::cli
