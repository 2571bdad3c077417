// Carries the AllReduces of one context of Gloo on Tarpon.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "collectives/gloo/admission.h"
#include "collectives/gloo/callback.h"
#include "collectives/gloo/settings.h"
#include "collectives/tarpon.h"

namespace tarpon::gloo_shim {

/// A call ended without a result. The text names the ranks and the reason.
struct CallFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// One AllReduce, as Gloo's options have it.
struct GlooCall {
  std::vector<const void*> inputs;  // empty: the outputs are the inputs
  std::vector<void*> outputs;       // all get the result
  std::size_t elements = 0;
  std::size_t element_size = 0;
  const Combine* combine = nullptr;
  std::uint32_t tag = 0;
  std::chrono::milliseconds timeout{};  // of exact calls
};

/// Sums over carriers; atomic, since calls run on several threads.
struct Tally {
  std::atomic<std::uint64_t> calls{0};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint64_t> bounded_bytes{0};
  std::atomic<double> lost_bytes{0};  // of the bounded ones

  void reset() {
    calls = bytes = bounded_bytes = 0;
    lost_bytes = 0;
  }
};

/// The place of a rank in a job of the same ranks. Any thread may call; calls of one tag match in
/// their order.
class Carrier {
 public:
  struct Place {
    int rank = 0;
    int ranks = 1;
    std::chrono::milliseconds timeout;
    std::string interface;  // that Gloo uses; empty: the library finds one
  };

  /// The carrier of a new context, decided alike on all ranks; null, with `why`, where it stays
  /// with Gloo. `refusal`: why this rank cannot take part. Blocks as agree() does.
  static std::unique_ptr<Carrier> meet(Store& store, const Place& place, const Settings& settings,
                                       const std::optional<std::string>& refusal, std::string& why);
  ~Carrier();

  /// Why this rank finds no interface for `place`; nullopt: it does.
  static std::optional<std::string> obstacle(const Place& place);

  /// Whether Tarpon carries a call that has an output. The answer is the same on all ranks of the
  /// call.
  static bool carries(std::size_t elements, std::size_t element_size, std::uint32_t tag);

  /// Blocks until the call has ended. Errors: CallFailed, also where the callback of another rank
  /// has thrown; what the callback throws; std::bad_alloc.
  void run(const GlooCall& call, Tally& tally);

  /// Takes the number of a call that this rank cannot run. It ends as aborted on all ranks.
  void refuse(std::uint32_t tag);

  /// Says goodbye to the other ranks, and serves them for at most `seconds`. Does nothing in a
  /// forked child of the process that met them.
  void close(double seconds);

  int rank() const { return static_cast<int>(tarpon_rank(job_)); }
  int ranks() const { return static_cast<int>(tarpon_world_size(job_)); }
  const char* datapath() const { return tarpon_datapath_name(job_); }
  const char* interface() const { return tarpon_interface_name(job_); }
  const char* integrity() const { return tarpon_integrity_name(job_); }
  const char* exposed() const { return tarpon_exposed(job_); }

 private:
  Carrier(tarpon_communicator* job, const Settings& settings, std::chrono::milliseconds timeout)
      : job_(job), settings_(settings), timeout_(timeout) {}
  tarpon_arguments arguments_of(const GlooCall& call) const;
  class Custom;
  static const void* own_sum(const GlooCall& call, Custom& custom);
  void reduce(const GlooCall& call, const tarpon_arguments& arguments, const Custom& custom,
              Tally& tally);
  void share_failure(const tarpon_arguments& arguments, bool failed);

  tarpon_communicator* const job_;
  const Settings settings_;
  const std::chrono::milliseconds timeout_;  // of the context
};

}  // namespace tarpon::gloo_shim
