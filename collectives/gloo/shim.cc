// libtarpon_gloo.so: the functions of Gloo that are carried by Tarpon, under Gloo's own names.
//
// Loaded before Gloo, by LD_PRELOAD or as the first library that a program links. It depends on
// libtarpon alone: Gloo's own functions are found at run time, so that a preloaded shim drags Gloo
// into no process.
#include <gloo/allreduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/device.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string_view>

#include "collectives/environment/environment.h"
#include "collectives/gloo/carrier.h"
#include "collectives/gloo/gloo_store.h"
#include "collectives/gloo/original.h"

namespace tarpon::gloo_shim {

namespace {

using namespace std::chrono_literals;

constexpr char kAllreduce[] = "_ZN4gloo9allreduceERKNS_16AllreduceOptionsE";
constexpr char kConnect[] =
    "_ZN4gloo10rendezvous7Context15connectFullMeshERNS0_5StoreERSt10shared_ptrINS_9transport6"
    "DeviceEE";
constexpr char kDestroy[] = "_ZN4gloo10rendezvous7ContextD1Ev";
constexpr char kDelete[] = "_ZN4gloo10rendezvous7ContextD0Ev";
constexpr char kTimeout[] = "_ZNK4gloo7Context10getTimeoutEv";
// There since 2017, gone in September 2024 with the virtual functions of gloo::Context: where it is
// missing, the members of a context lie elsewhere than this shim's headers say.
constexpr char kContextTable[] = "_ZTVN4gloo7ContextE";

constexpr char kTooNew[] = "this Gloo is newer than the shim knows";

constexpr double kCloseSeconds = 2;

/// "eth0" of "tcp, pci=, iface=eth0, speed=-1, addr=[10.0.0.1]"; empty where the text has none.
std::string interface_of(const std::string& device) {
  constexpr std::string_view kBefore = "iface=";
  const std::size_t begin = device.find(kBefore);
  if (begin == std::string::npos) return "";
  const std::size_t name = begin + kBefore.size();
  return device.substr(name, device.find(',', name) - name);
}

bool names_interface(const Environment& environment) {
  return environment("TARPON_INTERFACE") || environment("TARPON_SOCKET_IFNAME");
}

/// The contexts of this process that Tarpon carries, by address, until their destructors run.
class Contexts {
 public:
  Contexts() {
    auto read = read_settings(process_environment());
    if (auto* const wrong = std::get_if<std::string>(&read)) {
      wrong_setting_ = *wrong;
    } else {
      settings_ = std::get<Settings>(read);
    }
  }

  /// Errors: InvalidOperationException where Tarpon is required and cannot carry the context.
  void connect(::gloo::rendezvous::Context& context, ::gloo::rendezvous::Store& program_store,
               const ::gloo::transport::Device& device, std::chrono::milliseconds timeout,
               const void* caller) {
    begin_process();
    Carrier::Place place{context.rank, context.size, timeout, ""};
    if (!names_interface(process_environment())) place.interface = interface_of(device.str());
    GlooStore store(program_store, caller);
    std::string why;
    const auto refusal = wrong_setting_ ? wrong_setting_ : Carrier::obstacle(place);
    std::shared_ptr<Carrier> carrier;
    try {
      carrier = Carrier::meet(store, place, settings_, refusal, why);
    } catch (const std::exception&) {
      // Rank 0, whose process may hold the store, has ended because of it.
      if (refusal) require(*refusal);
      throw;
    }
    tell(context, carrier.get(), why);
    if (!carrier) return require(why);
    const std::lock_guard lock(mutex_);
    contexts_[&context] = std::move(carrier);
  }

  bool required() const { return required_; }

  /// Throws where the user requires Tarpon.
  void require(const std::string& why) const {
    if (!required_) return;
    throw ::gloo::InvalidOperationException(
        "this job needs Tarpon (a secret, or TARPON_REQUIRE=1), which cannot carry it: " + why);
  }

  /// Null: Gloo carries it.
  std::shared_ptr<Carrier> find(const ::gloo::Context& context) {
    const std::lock_guard lock(mutex_);
    const auto found = contexts_.find(&context);
    if (found == contexts_.end()) return nullptr;
    const bool same =
        found->second->rank() == context.rank && found->second->ranks() == context.size;
    return same ? found->second : nullptr;
  }

  /// The context is gone, or begins anew.
  void forget(const ::gloo::Context* context) {
    std::shared_ptr<Carrier> carrier;
    {
      const std::lock_guard lock(mutex_);
      const auto found = contexts_.find(context);
      if (found == contexts_.end()) return;
      carrier = std::move(found->second);
      contexts_.erase(found);
    }
    carrier->close(kCloseSeconds);
  }

  Tally& tally() { return tally_; }

  /// At exit.
  void say_goodbye() {
    if (::getpid() != process_) return;  // a forked child without contexts of its own
    const std::lock_guard lock(mutex_);
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(kCloseSeconds);
    for (auto& [context, carrier] : contexts_) {
      const std::chrono::duration<double> left = end - std::chrono::steady_clock::now();
      carrier->close(std::max(left.count(), 0.0));
    }
    if (!settings_.told || first_rank_ < 0) return;
    const double bounded = static_cast<double>(tally_.bounded_bytes.load());
    const double lost = bounded > 0 ? tally_.lost_bytes.load() / bounded : 0;
    std::fprintf(stderr,
                 "tarpon: rank %d carried %llu allreduces, %llu bytes, datapath %s, mode %s, lost "
                 "%.4g%%\n",
                 first_rank_, static_cast<unsigned long long>(tally_.calls.load()),
                 static_cast<unsigned long long>(tally_.bytes.load()), datapath_.c_str(),
                 mode_name(settings_), lost * 100);
    if (settings_.bounded && tally_.calls.load() > 0 && tally_.bounded_bytes.load() == 0) {
      std::fprintf(
          stderr,
          "tarpon: rank %d: all calls were exact; bounded are sums of float32, float16 and "
          "bfloat16 above TARPON_BOUNDED_MIN (%llu bytes)\n",
          first_rank_, static_cast<unsigned long long>(settings_.bounded_min));
    }
  }

 private:
  /// A forked child that connects begins anew: it has no part in the jobs of its parent.
  void begin_process() {
    const std::lock_guard lock(mutex_);
    if (process_ == ::getpid()) return;
    process_ = ::getpid();
    told_ = false;
    first_rank_ = -1;
    tally_.reset();
  }

  /// For the first context of this process, rank 0 prints that Tarpon carries it, or why Gloo does.
  void tell(const ::gloo::rendezvous::Context& context, const Carrier* carrier,
            const std::string& why) {
    const std::lock_guard lock(mutex_);
    const bool first = !told_;
    told_ = true;
    if (carrier != nullptr && first_rank_ < 0) {
      first_rank_ = context.rank;
      datapath_ = carrier->datapath();
    }
    if (!first || context.rank != 0) return;
    if (carrier == nullptr) {
      if (required_) return;  // require() says why
      std::fprintf(stderr, "tarpon: AllReduce stays with Gloo: %s\n", why.c_str());
      return;
    }
    const std::string integrity = carrier->integrity();
    const bool secret = integrity == "keyed" || integrity == "sealed";
    std::fprintf(
        stderr,
        "tarpon: carries AllReduce of %d ranks by %s on %s, %s%s; Gloo carries the rest%s\n",
        context.size, carrier->datapath(), carrier->interface(), mode_name(settings_),
        secret ? (", packets " + integrity).c_str() : "", secret ? ", without protection" : "");
    if (*carrier->exposed() != '\0') {
      std::fprintf(stderr, "tarpon: warning: %s\n", carrier->exposed());
    }
    if (!settings_.bounded) return;
    std::fprintf(
        stderr,
        "tarpon: TARPON_MODE=bounded: ranks may get different sums, and nothing compares their "
        "models: use tarpon_torch.bounded_hook(), or average the parameters now and then\n");
  }

  std::atomic<pid_t> process_ = ::getpid();                       // that connected last
  const bool required_ = requires_tarpon(process_environment());  // also with a wrong setting
  Settings settings_;
  std::optional<std::string> wrong_setting_;
  std::mutex mutex_;
  std::map<const ::gloo::Context*, std::shared_ptr<Carrier>> contexts_;
  Tally tally_;
  bool told_ = false;
  int first_rank_ = -1;
  std::string datapath_;
};

/// Never destroyed: threads of the program may run until its very end.
Contexts& contexts() {
  static Contexts* const instance = [] {
    auto* const made = new Contexts;
    std::atexit([] { contexts().say_goodbye(); });
    return made;
  }();
  return *instance;
}

/// Whether the members of gloo::Context lie where this shim's headers say. Else it says so, once.
bool is_known_layout(const void* caller) {
  if (find_original(kContextTable, caller) != nullptr) return true;
  static std::once_flag said;
  std::call_once(said,
                 [] { std::fprintf(stderr, "tarpon: AllReduce stays with Gloo: %s\n", kTooNew); });
  return false;
}

GlooCall call_of(const ::gloo::detail::AllreduceOptionsImpl& options) {
  GlooCall call;
  for (const auto& buffer : options.in) call.inputs.push_back(buffer->ptr);
  for (const auto& buffer : options.out) call.outputs.push_back(buffer->ptr);
  call.elements = options.elements;
  call.element_size = options.elementSize;
  call.combine = &options.reduce;
  call.tag = options.tag;
  call.timeout = options.timeout;
  return call;
}

/// Whether Tarpon has carried the call.
bool carry(const ::gloo::detail::AllreduceOptionsImpl& options, const void* caller) {
  const std::shared_ptr<Carrier> carrier = contexts().find(*options.context);
  if (!carrier) {
    if (!contexts().required()) return false;
    if (!is_known_layout(caller)) contexts().require(kTooNew);
    if (options.context->size > 1) {
      contexts().require("its context was not connected by rendezvous::Context::connectFullMesh()");
    }
    return false;
  }
  if (options.out.empty() ||
      !Carrier::carries(options.elements, options.elementSize, options.tag)) {
    return false;
  }
  GlooCall call;
  try {
    call = call_of(options);
  } catch (const std::exception&) {
    carrier->refuse(options.tag);
    throw;
  }
  try {
    carrier->run(call, contexts().tally());
  } catch (const CallFailed& failure) {
    throw ::gloo::IoException(std::string("tarpon: ") + failure.what());
  }
  return true;
}

template <typename Function>
Function& gloo_function(const char* symbol, const void* caller) {
  auto* const found = original<Function>(symbol, caller);
  if (found == nullptr) {
    throw ::gloo::InvalidOperationException(
        std::string("tarpon: Gloo's own ") + symbol +
        " is not found: link or load the shim before a libgloo.so");
  }
  return *found;
}

struct Destructors {
  void (&destroy)(::gloo::rendezvous::Context*);
  void (&destroy_and_free)(::gloo::rendezvous::Context*);
};

/// Gloo's own. Found by the first caller: a context that is destroyed later may be so from
/// anywhere.
const Destructors& destructors(const void* caller) {
  static const Destructors found{
      gloo_function<void(::gloo::rendezvous::Context*)>(kDestroy, caller),
      gloo_function<void(::gloo::rendezvous::Context*)>(kDelete, caller)};
  return found;
}

}  // namespace
}  // namespace tarpon::gloo_shim

namespace gloo {

__attribute__((visibility("default"))) void allreduce(const AllreduceOptions& options) {
  using namespace tarpon::gloo_shim;
  const void* const caller = __builtin_return_address(0);
  if (carry(options.impl_, caller)) return;
  gloo_function<void(const AllreduceOptions&)>(kAllreduce, caller)(options);
}

namespace rendezvous {

__attribute__((visibility("default"))) void Context::connectFullMesh(
    Store& store, std::shared_ptr<transport::Device>& device) {
  using namespace tarpon::gloo_shim;
  const void* const caller = __builtin_return_address(0);
  auto& own =
      gloo_function<void(Context*, Store&, std::shared_ptr<transport::Device>&)>(kConnect, caller);
  destructors(caller);
  contexts().forget(this);
  // A strange context is not read: the other ranks take its silence for a refusal.
  if (!is_known_layout(caller)) {
    contexts().require(kTooNew);
  } else if (size > 1) {
    auto& timeout =
        gloo_function<std::chrono::milliseconds(const ::gloo::Context*)>(kTimeout, caller);
    contexts().connect(*this, store, *device, timeout(this), caller);
  }
  own(this, store, device);
}

}  // namespace rendezvous
}  // namespace gloo

// NOLINTBEGIN(bugprone-reserved-identifier): names of the C++ ABI
// The destructors of gloo::rendezvous::Context: the one that a shared_ptr of make_shared() calls,
// and that of a delete. Both stand in the table of virtual functions.
extern "C" {

__attribute__((visibility("default"))) void _ZN4gloo10rendezvous7ContextD1Ev(
    gloo::rendezvous::Context* context) {
  using namespace tarpon::gloo_shim;
  contexts().forget(context);
  destructors(__builtin_return_address(0)).destroy(context);
}

__attribute__((visibility("default"))) void _ZN4gloo10rendezvous7ContextD0Ev(
    gloo::rendezvous::Context* context) {
  using namespace tarpon::gloo_shim;
  contexts().forget(context);
  destructors(__builtin_return_address(0)).destroy_and_free(context);
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier)
