// All ranks of a context come to the same decision, whatever one of them says, or does not say.
#include "collectives/gloo/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace tarpon::gloo_shim {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::HasSubstr;

struct StoreKind {
  bool may_give_up;
  bool new_key;  // Gloo writes
};
constexpr StoreKind kPyTorch1{false, false};
constexpr StoreKind kPyTorch2{true, true};
constexpr StoreKind kGloo{true, false};

class MemoryStore : public Store {
 public:
  explicit MemoryStore(StoreKind kind) : may_give_up_(kind.may_give_up), new_key_(kind.new_key) {}

  /// What Gloo does when `rank` begins to connect.
  void begin_with_gloo(int rank) { set(new_key_ ? new_gloo_key(rank) : gloo_key(rank), "host"); }

  bool may_give_up() const override { return may_give_up_; }
  void write_gloo_key(int rank) override { set(gloo_key(rank), "host"); }
  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::optional<std::string> get(const std::string& key, std::chrono::milliseconds wait) override {
    std::unique_lock lock(mutex_);
    // Where a wait must not give up, only one for a key that is never set may.
    EXPECT_TRUE(may_give_up_ || wait >= 300ms) << key;
    const bool there = changed_.wait_for(lock, wait, [&] { return values_.contains(key); });
    return there ? std::optional(values_[key]) : std::nullopt;
  }

 private:
  const bool may_give_up_;
  const bool new_key_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

struct Rank {
  std::optional<std::string> refusal = std::nullopt;
  std::string terms = "1";
  std::string connect_failure = "";
  std::string listen_failure = "";
  bool has_shim = true;
  std::chrono::milliseconds begins_after{0};
};

/// What each rank decides; "carried", or why not. Afterwards each begins with Gloo.
std::vector<std::string> decide(const std::vector<Rank>& ranks, StoreKind kind) {
  MemoryStore store(kind);
  std::vector<std::string> decisions(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      const Rank& rank = ranks[i];
      std::this_thread::sleep_for(rank.begins_after);
      if (rank.has_shim) {
        const Joining joining{[&](std::string& address) {
                                address = "tcp://there";
                                return rank.listen_failure;
                              },
                              [&](const std::string& address) {
                                EXPECT_EQ(address, "tcp://there");
                                return rank.connect_failure;
                              }};
        const auto refused =
            agree(store, {static_cast<int>(i), static_cast<int>(ranks.size()), rank.terms, 5s},
                  rank.refusal, joining);
        decisions[i] = refused ? refused->why : "carried";
      }
      store.begin_with_gloo(static_cast<int>(i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::erase(decisions, "");
  return decisions;
}

/// The same with each kind of store.
std::vector<std::string> decide(const std::vector<Rank>& ranks) {
  std::vector<std::string> decisions;
  for (const StoreKind kind : {kPyTorch1, kPyTorch2, kGloo}) {
    std::ranges::move(decide(ranks, kind), std::back_inserter(decisions));
  }
  return decisions;
}

TEST(GlooAgreement, all_ranks_ready__carried) {
  EXPECT_THAT(decide({{}, {}, {}}), Each("carried"));
}

TEST(GlooAgreement, a_rank_that_begins_late__is_waited_for) {
  EXPECT_THAT(decide({{}, {}, {.begins_after = 700ms}}), Each("carried"));
  EXPECT_THAT(decide({{.begins_after = 700ms}, {}, {}}), Each("carried"));
}

TEST(GlooAgreement, one_refusal__stops_all_with_its_reason) {
  for (const std::size_t who : {0u, 1u, 2u}) {
    std::vector<Rank> ranks(3);
    ranks[who].refusal = "no interface eth7";
    EXPECT_THAT(decide(ranks), Each("rank " + std::to_string(who) + ": no interface eth7"));
  }
}

TEST(GlooAgreement, other_terms__stop_all) {
  EXPECT_THAT(decide({{}, {}, {.terms = "2"}}),
              Each(HasSubstr("rank 2: has another version of Tarpon, or other settings: \"ready "
                             "2\", not \"ready 1\"")));
}

TEST(GlooAgreement, a_rank_without_the_shim__stops_all) {
  for (const std::size_t who : {0u, 1u, 2u}) {
    std::vector<Rank> ranks(3);
    ranks[who].has_shim = false;
    EXPECT_THAT(decide(ranks), Each("rank " + std::to_string(who) + ": runs without Tarpon"));
  }
}

TEST(GlooAgreement, failures_of_joining__stop_all) {
  std::vector<Rank> ranks(3);
  ranks[0].listen_failure = "no port is free";
  EXPECT_THAT(decide(ranks), Each("rank 0: no port is free"));
  ranks[0].listen_failure = "";
  ranks[2].connect_failure = "cannot reach rank 0";
  EXPECT_THAT(decide(ranks), Each("rank 2: cannot reach rank 0"));
}

TEST(GlooAgreement, ranks_that_never_begin__are_waited_for_as_long_as_the_timeout) {
  MemoryStore store(kGloo);
  const Joining joining{[](std::string&) { return ""; }, [](const std::string&) { return ""; }};
  const auto refused = agree(store, {0, 2, "1", 300ms}, std::nullopt, joining);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->why, "rank 1: did not begin in time");
}

}  // namespace
}  // namespace tarpon::gloo_shim
