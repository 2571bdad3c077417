#include "tools/cli/option.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace tarpon::cli {
namespace {

template <typename T>
Result<T> parse_within(std::string_view text, T min, T max) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool good = error == std::errc() && end == text.data() + text.size();
  if (good && min <= value && value <= max) return value;
  const bool limited = min != std::numeric_limits<T>::min() || max != std::numeric_limits<T>::max();
  return fail(Error::Code::invalid_argument,
              fmt::format("\"{}\" is not a whole number{}", text,
                          limited || min == 0 ? fmt::format(" from {} to {}", min, max) : ""));
}

Result<bool> parse_switch(const std::string& text) {
  const std::string word = lower(text);
  for (const char* one : {"1", "true", "on", "yes"}) {
    if (word == one) return true;
  }
  for (const char* one : {"0", "false", "off", "no"}) {
    if (word == one) return false;
  }
  return fail(Error::Code::invalid_argument, fmt::format("\"{}\" is not 0 or 1", text));
}

Result<std::string> as_it_is(const std::string& text) {
  return text;
}

Result<std::string> not_empty(const std::string& path) {
  if (!path.empty()) return path;
  return fail(Error::Code::invalid_argument, "\"\" is not a path");
}

std::string same(const std::string& text) {
  return text;
}

}  // namespace

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  return text;
}

tl::unexpected<Error> not_one_of(const std::string& word, const std::vector<std::string>& choices) {
  return fail(Error::Code::invalid_argument,
              fmt::format("\"{}\" is not one of {}", word, fmt::join(choices, ", ")));
}

std::vector<std::string> names_of(const Option& option) {
  std::vector<std::string> names;
  std::string_view rest = option.names;
  for (;;) {
    const std::size_t comma = rest.find(',');
    names.emplace_back(rest.substr(0, comma));
    if (comma == std::string_view::npos) return names;
    rest.remove_prefix(comma + 1);
  }
}

Value flag(bool& target) {
  Value value;
  value.read = [&target](const std::string& word) -> Result<void> {
    target = word == "1";
    return {};
  };
  return value;
}

Value switched(bool& target) {
  Value value =
      parsed(target, "0|1", parse_switch, [](bool on) { return std::string(on ? "1" : "0"); });
  value.choices = {"0", "1"};
  return value;
}

Result<std::int64_t> parse_whole(std::string_view text, std::int64_t min, std::int64_t max) {
  return parse_within(text, min, max);
}

Result<std::uint64_t> parse_whole(std::string_view text, std::uint64_t min, std::uint64_t max) {
  return parse_within(text, min, max);
}

Value number(double& target, double min, double max) {
  const auto parse = [min, max](const std::string& word) -> Result<double> {
    double value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    const bool whole_word = error == std::errc() && end == word.data() + word.size();
    if (whole_word && min <= value && value <= max) return value;
    return fail(Error::Code::invalid_argument,
                fmt::format("\"{}\" is not a number from {} to {}", word, min, max));
  };
  return parsed(target, "X", parse, [](double value) { return fmt::format("{}", value); });
}

Value size(std::uint64_t& target) {
  return parsed(target, "SIZE", parse_bytes, format_bytes);
}

Value duration(Duration& target) {
  return parsed(target, "DURATION", parse_limit, format_duration);
}

Value duration(std::optional<Duration>& target) {
  return parsed(target, "DURATION", parse_limit, format_duration);
}

Value rate(std::uint64_t& target) {
  return parsed(target, "RATE", parse_rate,
                [](std::uint64_t bits) { return bits == 0 ? std::string() : format_rate(bits); });
}

Value share(double& target) {
  return parsed(target, "SHARE", parse_probability,
                [](double value) { return value == 0 ? std::string() : share_text(value); });
}

Value share(std::optional<double>& target) {
  return parsed(target, "SHARE", parse_probability, share_text);
}

std::string share_text(double share) {
  return fmt::format("{:g}%", share * 100);
}

Value text(std::string& target, std::string notation) {
  return parsed(target, std::move(notation), as_it_is, same);
}

Value text(std::optional<std::string>& target, std::string notation) {
  return parsed(target, std::move(notation), as_it_is, same);
}

Value file(std::string& target) {
  return completed(parsed(target, "FILE", not_empty, same), Complete::file);
}

Value directory(std::string& target) {
  return completed(parsed(target, "DIR", not_empty, same), Complete::directory);
}

Value interface_name(std::string& target) {
  return completed(text(target, "INTERFACE"), Complete::interface);
}

Value interface_name(std::optional<std::string>& target) {
  return completed(text(target, "INTERFACE"), Complete::interface);
}

Value words(std::vector<std::string>& target, std::string notation, Times times,
            std::vector<std::string> choices) {
  Value value;
  value.notation = std::move(notation);
  value.initial = fmt::format("{}", fmt::join(target, ","));
  value.choices = choices;
  value.times = times;
  value.read = [&target, choices = std::move(choices),
                started = false](const std::string& word) mutable -> Result<void> {
    if (!choices.empty() && std::find(choices.begin(), choices.end(), word) == choices.end()) {
      return not_one_of(word, choices);
    }
    if (!std::exchange(started, true)) target.clear();
    target.push_back(word);
    return {};
  };
  return value;
}

Value with_choices(std::vector<std::string> choices, std::function<void(std::size_t)> take) {
  Value value;
  value.notation = fmt::format("{}", fmt::join(choices, "|"));
  value.choices = choices;
  value.read = [choices = std::move(choices),
                take = std::move(take)](const std::string& word) -> Result<void> {
    const auto found = std::find(choices.begin(), choices.end(), lower(word));
    if (found == choices.end()) return not_one_of(word, choices);
    take(static_cast<std::size_t>(found - choices.begin()));
    return {};
  };
  return value;
}

Value noted(Value value, std::string notation) {
  value.notation = std::move(notation);
  return value;
}

Value given(Value value, Times times) {
  value.times = times;
  return value;
}

Value completed(Value value, Complete complete) {
  value.complete = complete;
  return value;
}

Value otherwise(Value value, std::string initial) {
  value.initial = std::move(initial);
  return value;
}

}  // namespace tarpon::cli
