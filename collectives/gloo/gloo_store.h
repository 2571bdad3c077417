// The store of a program, as Gloo has it, for the ranks' agreement.
#pragma once

#include <gloo/rendezvous/prefix_store.h>
#include <gloo/rendezvous/store.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "collectives/gloo/admission.h"
#include "collectives/gloo/original.h"

namespace tarpon::gloo_shim {

/// The functions of a rendezvous::Store since the Gloo of PyTorch 2, as far as they are called
/// here: the two wait() stand in the other order than in these headers. It has a name that other
/// sources could use, and a destructor that is not defined here: the compiler must not conclude
/// that no class implements it.
class NewStore {
 public:
  virtual ~NewStore();
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) = 0;
};

/// What lies behind a PrefixStore. A dynamic_cast would need a symbol of Gloo when this library is
/// loaded.
struct BehindPrefix : ::gloo::rendezvous::PrefixStore {
  static ::gloo::rendezvous::Store& of(::gloo::rendezvous::Store& store) {
    return static_cast<BehindPrefix&>(store).store_;
  }
};

/// Whether the keys lie in a store of PyTorch.
inline bool is_of_pytorch(::gloo::rendezvous::Store& store) {
  constexpr std::string_view kPrefixStore = "N4gloo10rendezvous11PrefixStoreE";
  ::gloo::rendezvous::Store* inner = &store;
  while (typeid(*inner).name() == kPrefixStore) inner = &BehindPrefix::of(*inner);
  return std::strstr(typeid(*inner).name(), "c10d") != nullptr;
}

/// One thread. Errors: what the program's store throws.
class GlooStore : public Store {
 public:
  /// `store` outlives this object. `caller`: an address in the code that calls Gloo.
  GlooStore(::gloo::rendezvous::Store& store, const void* caller)
      : store_(store),
        is_new_(find_original(kStoreInterface, caller) != nullptr),
        may_give_up_(is_new_ || !is_of_pytorch(store)) {}

  bool may_give_up() const override { return may_give_up_; }

  void write_gloo_key(int rank) override {
    char host[256] = {};
    ::gethostname(host, sizeof host - 1);
    set(gloo_key(rank), host);  // what Gloo writes there
  }

  void set(const std::string& key, const std::string& value) override {
    store_.set(key, std::vector<char>(value.begin(), value.end()));
  }

  /// Stores tell a key that is not there in time by an exception of their own. One that comes well
  /// before its time says that the store is broken.
  std::optional<std::string> get(const std::string& key, std::chrono::milliseconds wait) override {
    const auto start = std::chrono::steady_clock::now();
    try {
      wait_for({key}, wait);
    } catch (const std::exception&) {
      const bool early = std::chrono::steady_clock::now() - start < wait / 2;
      if (early && wait >= kBelievable) throw;
      return std::nullopt;
    }
    const std::vector<char> value = store_.get(key);
    return std::string(value.begin(), value.end());
  }

 private:
  // There since the Gloo of PyTorch 2, whose stores can give up a wait.
  static constexpr char kStoreInterface[] = "_ZTIN4gloo6IStoreE";
  static constexpr std::chrono::milliseconds kBelievable{100};

  void wait_for(const std::vector<std::string>& keys, std::chrono::milliseconds time) {
    if (is_new_) {
      reinterpret_cast<NewStore&>(store_).wait(keys, time);
    } else {
      store_.wait(keys, time);
    }
  }

  ::gloo::rendezvous::Store& store_;
  const bool is_new_;
  const bool may_give_up_;
};

}  // namespace tarpon::gloo_shim
