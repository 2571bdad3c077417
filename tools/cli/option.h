// One row of a command's option table: names, the value that the option takes, help, scope.
//
// A value is bound to the variable that holds it. The text of that variable when the row is made is
// the default that help, manual pages and completion show. So a default stands once, in the struct
// of the command's options. The variable must outlive the row.
//
// Pure data and functions. The functions of one row are called from one thread at a time.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/cli/units.h"
#include "xdp/base/result.h"

namespace tarpon::cli {

/// Which ranks of a job must be given the option alike. A `job` option must be part of the text
/// that the ranks compare when they meet; tests/tools/collective/cli_scope_test.cc checks that.
enum class Scope { rank, job };

/// How often an option may be given, and how many words it takes.
enum class Times {
  once,
  last,  // the last one counts: for wrappers that append to a command line
  each,  // one word each time, all of them count; of a positional: all words between options
  list,  // all words up to the next option, and parts of words between commas
  rest,  // a positional: every word that is left, also what looks like an option
};

/// What a shell offers in place of the value; values with names are offered always.
enum class Complete { nothing, file, directory, interface, program, command };

struct Value {
  std::string notation;              // "SIZE", "exact|bounded"; empty: a flag, which takes nothing
  std::string initial;               // the default; empty: none
  std::vector<std::string> choices;  // values with names
  /// Takes one word into the variable. The error says what is wrong with the word; the caller puts
  /// the option's names before it. A flag gets "1" or "0".
  std::function<Result<void>(const std::string&)> read;
  Times times = Times::once;
  Complete complete = Complete::nothing;
  bool bare = false;            // the word may be left out: `read` gets ""
  bool errors_name_it = false;  // the errors of `read` name the option themselves
};

struct Option {
  std::string names;  // "-b,--minbytes"; of a positional "FILE"
  Value value;
  std::string help;  // without the default, which is added
  Scope scope = Scope::rank;
  bool required = false;
  std::vector<std::string> excludes = {};  // names of options of the same table

  bool is_flag() const { return value.notation.empty(); }
  bool is_positional() const { return !names.starts_with('-'); }
};

/// {"-b", "--minbytes"}
std::vector<std::string> names_of(const Option& option);

template <typename T>
struct OptionalTarget {
  using type = T;
};
template <typename T>
struct OptionalTarget<std::optional<T>> {
  using type = T;
};

/// `show(target)`; nothing where an optional target is empty.
template <typename Target, typename Show>
std::string text_of(const Target& target, Show show) {
  if constexpr (std::is_same_v<Target, typename OptionalTarget<Target>::type>) {
    return show(target);
  } else {
    return target ? show(*target) : std::string();
  }
}

/// A word that goes through `parse`, which returns a Result. `show`: the default's text, from the
/// value. An optional target has no default.
template <typename Target, typename Parse, typename Show>
Value parsed(Target& target, std::string notation, Parse parse, Show show) {
  Value value;
  value.notation = std::move(notation);
  value.initial = text_of(target, show);
  value.read = [&target, parse](const std::string& word) -> Result<void> {
    auto result = parse(word);
    if (!result) return fail(result.error());
    target = std::move(*result);
    return {};
  };
  return value;
}

/// The same without a default.
template <typename Target, typename Parse>
Value parsed(Target& target, std::string notation, Parse parse) {
  return parsed(target, std::move(notation), parse,
                [](const typename OptionalTarget<Target>::type&) { return std::string(); });
}

/// Given or not.
Value flag(bool& target);

/// 0 or 1, on or off: an option that takes a word.
Value switched(bool& target);

/// Decimal, whole, from `min` to `max`. Errors name the limits.
Result<std::int64_t> parse_whole(std::string_view text, std::int64_t min, std::int64_t max);
Result<std::uint64_t> parse_whole(std::string_view text, std::uint64_t min, std::uint64_t max);

/// "N", within what the variable holds, or narrower limits.
template <typename Target, typename T = typename OptionalTarget<Target>::type>
Value whole(Target& target, T min = std::numeric_limits<T>::min(),
            T max = std::numeric_limits<T>::max()) {
  using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
  const auto parse = [min, max](const std::string& word) -> Result<T> {
    const auto result = parse_whole(word, Wide{min}, Wide{max});
    if (!result) return fail(result.error());
    return static_cast<T>(*result);
  };
  return parsed(target, "N", parse, [](T number) { return std::to_string(number); });
}

/// "X", from `min` to `max`.
Value number(double& target, double min, double max);

/// "SIZE": bytes, as 25M.
Value size(std::uint64_t& target);

/// "DURATION" above 0, as 500ms.
Value duration(Duration& target);
Value duration(std::optional<Duration>& target);

/// "RATE" in bits per second, as 2gbit; 0 has no text.
Value rate(std::uint64_t& target);

/// "SHARE", as 1%.
Value share(double& target);
Value share(std::optional<double>& target);

/// "1%", "0.25%"
std::string share_text(double share);

/// Any text. An empty one is no default.
Value text(std::string& target, std::string notation);
Value text(std::optional<std::string>& target, std::string notation);

/// "FILE": its path, not empty.
Value file(std::string& target);

/// "DIR": its path, not empty.
Value directory(std::string& target);

/// "INTERFACE": a name, offered by shells from those of this host.
Value interface_name(std::string& target);
Value interface_name(std::optional<std::string>& target);

/// Words that are added to the variable, of Times::each, list or rest. The first one replaces the
/// default. `choices`: the words that are allowed; none: all.
Value words(std::vector<std::string>& target, std::string notation, Times times,
            std::vector<std::string> choices = {});

/// ASCII letters in lower case.
std::string lower(std::string text);

/// "\"TEXT\" is not one of A, B": an error of `read`.
tl::unexpected<Error> not_one_of(const std::string& word, const std::vector<std::string>& choices);

template <typename T>
using Choices = std::vector<std::pair<std::string, T>>;

/// Sets `value.choices`, its notation where it has none, and a `read` for those words in lower or
/// upper case: `take(index)` for the word that was chosen.
Value with_choices(std::vector<std::string> choices, std::function<void(std::size_t)> take);

/// One of a few values with names, in lower or upper case. The notation lists them.
template <typename Target, typename T>
Value choice(Target& target, const Choices<T>& choices) {
  std::vector<std::string> names;
  std::vector<T> values;
  for (const auto& [name, value] : choices) {
    names.push_back(name);
    values.push_back(value);
  }
  Value value =
      with_choices(names, [&target, values](std::size_t chosen) { target = values[chosen]; });
  value.initial = text_of(target, [&](const T& now) {
    for (const auto& [name, one] : choices) {
      if (one == now) return name;
    }
    return std::string();
  });
  return value;
}

/// The same value with another notation, number of times, shell completion, or with the text of a
/// default that its variable does not hold.
Value noted(Value value, std::string notation);
Value given(Value value, Times times);
Value completed(Value value, Complete complete);
Value otherwise(Value value, std::string initial);

}  // namespace tarpon::cli
