// Whether the AllReduces of a context go by Tarpon, decided alike on all of its ranks.
//
// The ranks meet in the program's own store of keys and values, before Gloo connects them:
//   1. Every rank writes tarpon/rank/R: "ready TERMS", or "refused WHY".
//   2. Rank 0 reads all of them, and writes tarpon/verdict: "go ADDRESS", or "stop WHY".
//   3. After "go" the ranks connect at ADDRESS, and each writes tarpon/joined/R: "ok", or "failed
//      WHY". Rank 0 reads all of them, and writes tarpon/carried: "go", or "stop WHY".
// A rank without the shim writes Gloo's key and none of these: that is a refusal.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <variant>

namespace tarpon::gloo_shim {

/// The program's store. Keys are written once.
class Store {
 public:
  /// Of `rank`, which Gloo itself writes when it begins to connect: until 2023, and since then.
  static std::string gloo_key(int rank) { return "rank_" + std::to_string(rank); }
  static std::string new_gloo_key(int rank) { return std::to_string(rank); }

  virtual ~Store() = default;
  /// Whether get() may give up waiting for a key that is set later. The TCPStore of PyTorch 1.13
  /// answers such a wait when it is over, and confuses the next one. There a rank writes Gloo's key
  /// itself, after its first word, so that the others can wait for that key without a limit. The
  /// Gloo of that PyTorch writes the old key.
  virtual bool may_give_up() const = 0;
  /// Writes gloo_key(rank), where get() may not give up.
  virtual void write_gloo_key(int rank) = 0;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// The value of `key` as soon as it is there; nullopt after `wait`. Errors: what the store throws
  /// when it is broken.
  virtual std::optional<std::string> get(const std::string& key,
                                         std::chrono::milliseconds wait) = 0;
};

/// Why the context stays with Gloo: one line.
struct Refused {
  std::string why;
};

struct AgreementOptions {
  int rank = 0;
  int ranks = 1;
  std::string terms;                  // version and settings: alike on all ranks
  std::chrono::milliseconds timeout;  // for the slowest rank to begin
};

/// What a rank does when all are ready. Each returns an empty text, or why it failed.
struct Joining {
  /// Rank 0: listens, and sets the address for the others.
  std::function<std::string(std::string& address)> listen;
  /// Every rank: connects; rank 0 at its own listener.
  std::function<std::string(const std::string& address)> connect;
};

/// All ranks call it, with their own `refusal` where they cannot take part. Returns nullopt where
/// Tarpon carries the context, else the same answer on every rank; what connect() made is then not
/// to be used. Blocks for at most three times the timeout. Errors: std::runtime_error where the
/// other ranks cannot be told apart from dead ones; what the store throws.
std::optional<Refused> agree(Store& store, const AgreementOptions& options,
                             const std::optional<std::string>& refusal, const Joining& joining);

}  // namespace tarpon::gloo_shim
