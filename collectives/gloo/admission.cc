#include "collectives/gloo/admission.h"

#include <algorithm>
#include <stdexcept>

namespace tarpon::gloo_shim {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// How long one look at a rank's key may wait before Gloo's keys are looked at.
constexpr auto kLook = 200ms;
// For a key of Gloo that may be there: a few round trips to the store.
constexpr auto kGlance = 50ms;
// For a key that is there, or never will be.
constexpr auto kNow = 2s;

const std::string kReady = "ready ";
const std::string kRefused = "refused ";
const std::string kGo = "go ";
const std::string kStop = "stop ";
const std::string kOk = "ok";
const std::string kFailed = "failed ";
const std::string kVerdict = "tarpon/verdict";
const std::string kCarried = "tarpon/carried";

std::string rank_key(int rank) {
  return "tarpon/rank/" + std::to_string(rank);
}

std::string joined_key(int rank) {
  return "tarpon/joined/" + std::to_string(rank);
}

std::string named(int rank, const std::string& why) {
  return "rank " + std::to_string(rank) + ": " + why;
}

std::string without(const std::string& text, const std::string& prefix) {
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

struct Missing {
  std::string why;
};

std::chrono::milliseconds left(Clock::time_point deadline) {
  const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  return std::max(rest, 1ms);
}

bool has_begun_with_gloo(Store& store, int rank) {
  return store.get(Store::gloo_key(rank), kGlance) || store.get(Store::new_gloo_key(rank), kGlance);
}

/// The first word of `rank`, which it writes before it begins with Gloo.
std::variant<std::string, Missing> first_word(Store& store, int rank, Clock::time_point deadline) {
  const std::string key = rank_key(rank);
  if (!store.may_give_up()) {
    if (!store.get(Store::gloo_key(rank), left(deadline))) return Missing{"did not begin in time"};
    if (auto word = store.get(key, kNow)) return *std::move(word);
    return Missing{"runs without Tarpon"};
  }
  do {
    if (auto word = store.get(key, kLook)) return *std::move(word);
    if (!has_begun_with_gloo(store, rank)) continue;
    // It may have written both since the first look.
    if (auto word = store.get(key, kLook)) return *std::move(word);
    return Missing{"runs without Tarpon"};
  } while (Clock::now() < deadline);
  return Missing{"did not begin in time"};
}

/// What rank 0 makes of the ranks' first words: empty, or why not.
std::string first_refusal(Store& store, const AgreementOptions& options,
                          Clock::time_point deadline) {
  for (int rank = 0; rank < options.ranks; ++rank) {
    const auto found = first_word(store, rank, deadline);
    if (const auto* const missing = std::get_if<Missing>(&found)) return named(rank, missing->why);
    const std::string& word = std::get<std::string>(found);
    if (word.starts_with(kRefused)) return named(rank, without(word, kRefused));
    if (word != kReady + options.terms) {
      std::string why = "has another version of Tarpon, or other settings: \"";
      why.append(word).append("\", not \"").append(kReady).append(options.terms).append("\"");
      return named(rank, why);
    }
  }
  return "";
}

/// Of rank 0: whether all are ready, and where they meet.
std::string verdict_of(Store& store, const AgreementOptions& options, const Joining& joining) {
  std::string why = first_refusal(store, options, Clock::now() + options.timeout);
  if (!why.empty()) return kStop + why;
  std::string address;
  why = joining.listen(address);
  return why.empty() ? kGo + address : kStop + named(0, why);
}

/// Of rank 0: whether all have connected.
std::string outcome_of(Store& store, const AgreementOptions& options) {
  const auto deadline = Clock::now() + options.timeout;
  for (int rank = 0; rank < options.ranks; ++rank) {
    const auto word = store.get(joined_key(rank), left(deadline));
    if (!word) return kStop + named(rank, "did not say whether it has connected");
    if (*word != kOk) return kStop + named(rank, without(*word, kFailed));
  }
  return kGo;
}

/// What rank 0 has decided under `key`; rank 0 decides it by `decide`.
template <typename Decide>
std::string decision(Store& store, const AgreementOptions& options, const std::string& key,
                     Decide decide) {
  if (options.rank == 0) {
    std::string decided = decide();
    store.set(key, decided);
    return decided;
  }
  // Rank 0 itself waits for the others as long as the timeout.
  if (auto decided = store.get(key, 2 * options.timeout)) return *std::move(decided);
  throw std::runtime_error("tarpon: rank 0 has not decided whether AllReduce goes by Tarpon: no " +
                           key + " in the store");
}

}  // namespace

std::optional<Refused> agree(Store& store, const AgreementOptions& options,
                             const std::optional<std::string>& refusal, const Joining& joining) {
  store.set(rank_key(options.rank), refusal ? kRefused + *refusal : kReady + options.terms);
  if (!store.may_give_up()) store.write_gloo_key(options.rank);
  if (options.rank != 0) {
    const auto found = first_word(store, 0, Clock::now() + options.timeout);
    if (const auto* const missing = std::get_if<Missing>(&found)) {
      return Refused{named(0, missing->why)};
    }
  }
  const std::string verdict =
      decision(store, options, kVerdict, [&] { return verdict_of(store, options, joining); });
  if (!verdict.starts_with(kGo)) return Refused{without(verdict, kStop)};

  const std::string failure = joining.connect(without(verdict, kGo));
  store.set(joined_key(options.rank), failure.empty() ? kOk : kFailed + failure);
  const std::string outcome =
      decision(store, options, kCarried, [&] { return outcome_of(store, options); });
  if (!outcome.starts_with(kGo)) return Refused{without(outcome, kStop)};
  return std::nullopt;
}

}  // namespace tarpon::gloo_shim
