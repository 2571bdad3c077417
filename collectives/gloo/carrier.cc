#include "collectives/gloo/carrier.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>

#include "collectives/environment/environment.h"

namespace tarpon::gloo_shim {
namespace {

std::string terms_of(const Settings& settings) {
  return std::string(tarpon_version()) + " mode=" + mode_name(settings) +
         " min=" + std::to_string(settings.bounded_min) +
         " bound=" + std::to_string(settings.bound_us) +
         " deadline=" + std::to_string(settings.deadline_us);
}

constexpr std::chrono::milliseconds kLongestMeeting = std::chrono::hours(24);

// All ranks are ready when they connect.
constexpr std::int64_t kConnectUs = 30'000'000;

/// Programs say "no limit" by the largest duration.
std::int64_t to_us(std::chrono::milliseconds time) {
  constexpr std::chrono::milliseconds kMost = std::chrono::hours(24 * 365);
  return std::chrono::duration_cast<std::chrono::microseconds>(std::min(time, kMost)).count();
}

const char* or_null(const std::string& text) {
  return text.empty() ? nullptr : text.c_str();
}

/// A host that all ranks reach, where no interface is known: that of torchrun's store.
const char* master_host(const Carrier::Place& place) {
  return place.interface.empty() ? std::getenv("MASTER_ADDR") : nullptr;
}

/// Without the place where the ranks meet.
tarpon_options options_of(const Carrier::Place& place) {
  tarpon_options options{};
  options.size = sizeof options;
  options.rank = static_cast<std::uint32_t>(place.rank);
  options.world_size = static_cast<std::uint32_t>(place.ranks);
  options.interface = or_null(place.interface);
  return options;
}

/// What a rank has of a job that is not carried yet.
struct Meeting {
  tarpon_listener* listener = nullptr;
  tarpon_communicator* job = nullptr;

  Meeting() = default;
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  ~Meeting() {
    tarpon_listener_free(listener);
    tarpon_communicator_free(job);
  }
};

/// The type that has elements of this size, for callbacks of which only that is known.
std::optional<std::uint32_t> type_of_size(std::size_t size) {
  switch (size) {
    case 1:
      return TARPON_UINT8;
    case 2:
      return TARPON_UINT16;
    case 4:
      return TARPON_UINT32;
    case 8:
      return TARPON_UINT64;
    default:
      return std::nullopt;
  }
}

}  // namespace

/// Calls a callback of the program from Tarpon's thread: its operands are aligned, and what it
/// throws is kept.
class Carrier::Custom {
 public:
  Custom(const Combine& combine, std::size_t size) : combine_(combine), size_(size) {}

  static void run(void* out, const void* a, const void* b, std::size_t elements, void* context) {
    static_cast<Custom*>(context)->combine(out, a, b, elements);
  }

  bool failed() const { return error_ != nullptr; }

  /// Throws what the callback has thrown.
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  bool is_aligned(const void* pointer) const {
    return reinterpret_cast<std::uintptr_t>(pointer) % size_ == 0;
  }

  void combine(void* out, const void* a, const void* b, std::size_t elements) noexcept {
    if (error_) return;
    try {
      if (is_aligned(out) && is_aligned(a) && is_aligned(b)) return combine_(out, a, b, elements);
      const std::size_t bytes = elements * size_;
      scratch_.resize(2 * bytes + 2 * sizeof(std::max_align_t));
      auto* const first = scratch_.data();
      auto* const second = first + (bytes + sizeof(std::max_align_t) - 1) /
                                       sizeof(std::max_align_t) * sizeof(std::max_align_t);
      std::memcpy(first, a, bytes);
      std::memcpy(second, b, bytes);
      combine_(first, first, second, elements);
      std::memcpy(out, first, bytes);
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  const Combine& combine_;
  const std::size_t size_;
  std::vector<unsigned char> scratch_;
  std::exception_ptr error_;
};

namespace {

/// The text of an exception for a call that failed.
std::string failure_text(const GlooCall& call, const tarpon_report* report, bool bounded,
                         std::int64_t deadline_us) {
  if (report == nullptr) return tarpon_error_text();
  tarpon_summary summary{};
  summary.size = sizeof summary;
  tarpon_report_summary(report, &summary);
  std::string text = tarpon_report_text(report);
  const bool late =
      summary.status == TARPON_STATUS_PEER_LATE ||
      (summary.status == TARPON_STATUS_ABORTED &&
       (summary.abort_cause == TARPON_CAUSE_LATE || summary.abort_cause == TARPON_CAUSE_EXPIRED));
  if (!late) return text;
  const auto limit = bounded ? deadline_us / 1000 : call.timeout.count();
  return "Timed out after " + std::to_string(limit) + " ms: " + text;
}

/// Whether other ranks may have a result of an exact call that ended so here.
bool may_be_whole_elsewhere(const tarpon_report* report) {
  tarpon_summary summary{};
  summary.size = sizeof summary;
  if (report == nullptr || tarpon_report_summary(report, &summary) != TARPON_OK) return true;
  switch (summary.status) {
    case TARPON_STATUS_PEER_LATE:
    case TARPON_STATUS_PEER_DEAD:
    case TARPON_STATUS_EVICTED:
    case TARPON_STATUS_PEER_LEFT:
      return true;
    case TARPON_STATUS_ABORTED:
      return summary.abort_cause == TARPON_CAUSE_LATE;
    default:
      return false;
  }
}

void add(std::atomic<double>& sum, double value) {
  double before = sum.load(std::memory_order_relaxed);
  while (!sum.compare_exchange_weak(before, before + value, std::memory_order_relaxed)) continue;
}

}  // namespace

std::optional<std::string> Carrier::obstacle(const Place& place) {
  const Environment environment = process_environment();
  if (environment("TARPON_SECRET_FROM_STORE") == "1" && !environment("TARPON_SECRET_FILE") &&
      !environment("TARPON_SECRET_FD")) {
    return "TARPON_SECRET_FROM_STORE=1: only tarpon_torch takes a secret from the store: give a "
           "TARPON_SECRET_FILE";
  }
  Meeting meeting;
  if (tarpon_listen(master_host(place), or_null(place.interface), &meeting.listener) != TARPON_OK) {
    return tarpon_error_text();
  }
  // A wrong setting, a secret that cannot be read: the others hear of it before they wait.
  tarpon_options options = options_of(place);
  options.rendezvous = tarpon_listener_address(meeting.listener);  // in place of the one to come
  if (tarpon_check_environment(&options) != TARPON_OK) return tarpon_error_text();
  return std::nullopt;
}

std::unique_ptr<Carrier> Carrier::meet(Store& store, const Place& place, const Settings& settings,
                                       const std::optional<std::string>& refusal,
                                       std::string& why) {
  Meeting meeting;
  Joining joining;
  joining.listen = [&](std::string& address) -> std::string {
    if (tarpon_listen(master_host(place), or_null(place.interface), &meeting.listener) !=
        TARPON_OK) {
      return tarpon_error_text();
    }
    address = tarpon_listener_address(meeting.listener);
    return "";
  };
  joining.connect = [&](const std::string& address) -> std::string {
    tarpon_options options = options_of(place);
    if (!process_environment()("TARPON_RENDEZVOUS_TIMEOUT")) {
      options.rendezvous_timeout_us = std::clamp<std::int64_t>(to_us(place.timeout), 1, kConnectUs);
    }
    if (place.rank == 0) options.listener = meeting.listener;
    if (place.rank != 0) options.rendezvous = address.c_str();
    const int code = tarpon_connect_from_environment(&options, &meeting.job);
    return code == TARPON_OK ? "" : tarpon_error_text();
  };
  const AgreementOptions agreement{place.rank, place.ranks, terms_of(settings),
                                   std::min(place.timeout, kLongestMeeting)};
  if (const auto refused = agree(store, agreement, refusal, joining)) {
    why = refused->why;
    return nullptr;
  }
  return std::unique_ptr<Carrier>(
      new Carrier(std::exchange(meeting.job, nullptr), settings, place.timeout));
}

Carrier::~Carrier() {
  tarpon_communicator_free(job_);
}

bool Carrier::carries(std::size_t elements, std::size_t element_size, std::uint32_t tag) {
  return elements > 0 && tag < TARPON_RESERVED_TAGS && type_of_size(element_size);
}

tarpon_arguments Carrier::arguments_of(const GlooCall& call) const {
  tarpon_arguments arguments{};
  arguments.size = sizeof arguments;
  arguments.output = call.outputs[0];
  arguments.count = call.elements;
  arguments.tag = call.tag;
  // Gloo's kUnsetTimeout is negative.
  arguments.deadline_us = to_us(call.timeout.count() < 0 ? timeout_ : call.timeout);
  const auto known = classify_function(*call.combine, call.element_size);
  if (!known) {
    arguments.type = *type_of_size(call.element_size);
    arguments.function = TARPON_CUSTOM;
    arguments.custom_id = 1;
    arguments.custom_combine = &Custom::run;
    return arguments;
  }
  arguments.type = known->type;
  arguments.function = known->function;
  const bool loses = known->function == TARPON_SUM &&
                     (known->type == TARPON_FLOAT32 || known->type == TARPON_FLOAT16 ||
                      known->type == TARPON_BFLOAT16);
  if (settings_.bounded && loses && call.elements * call.element_size > settings_.bounded_min) {
    arguments.mode = TARPON_BOUNDED;
    arguments.bound_us = settings_.bound_us;
    arguments.deadline_us = settings_.deadline_us;
  }
  return arguments;
}

void Carrier::run(const GlooCall& call, Tally& tally) {
  Custom custom(*call.combine, call.element_size);
  tarpon_arguments arguments{};
  try {
    arguments = arguments_of(call);
    arguments.input = own_sum(call, custom);
    custom.rethrow();
  } catch (...) {
    refuse(call.tag);
    throw;
  }
  if (arguments.function == TARPON_CUSTOM) arguments.custom_context = &custom;
  reduce(call, arguments, custom, tally);
  for (std::size_t i = 1; i < call.outputs.size(); ++i) {
    std::memcpy(call.outputs[i], call.outputs[0], call.elements * call.element_size);
  }
}

/// The input of this rank: if it has several, their sum, in the first output.
const void* Carrier::own_sum(const GlooCall& call, Custom& custom) {
  const bool in_place = call.inputs.empty();
  const std::size_t inputs = in_place ? call.outputs.size() : call.inputs.size();
  const auto input = [&](std::size_t i) { return in_place ? call.outputs[i] : call.inputs[i]; };
  if (inputs == 1) return input(0);
  void* const sum = call.outputs[0];
  Custom::run(sum, input(0), input(1), call.elements, &custom);
  for (std::size_t i = 2; i < inputs; ++i) {
    Custom::run(sum, sum, input(i), call.elements, &custom);
  }
  return sum;
}

void Carrier::refuse(std::uint32_t tag) {
  tarpon_arguments arguments{};
  arguments.size = sizeof arguments;
  arguments.tag = tag;
  arguments.refusal = "an exception";  // the program gets it
  tarpon_allreduce(job_, &arguments, nullptr);
}

void Carrier::reduce(const GlooCall& call, const tarpon_arguments& arguments, const Custom& custom,
                     Tally& tally) {
  tarpon_report* report = nullptr;
  const int code = tarpon_allreduce(job_, &arguments, &report);
  const std::unique_ptr<tarpon_report, decltype(&tarpon_report_free)> owner(report,
                                                                            &tarpon_report_free);
  const bool bounded = arguments.mode == TARPON_BOUNDED;
  const bool calls_back = arguments.function == TARPON_CUSTOM;
  if (code != TARPON_OK) {
    const std::string text = failure_text(call, report, bounded, settings_.deadline_us);
    // A rank that has a result goes on with share_failure(): from there on its numbers are others.
    if (calls_back && may_be_whole_elsewhere(report)) {
      tarpon_abort(job_, ("a call with a callback failed on some ranks: " + text).c_str());
    }
    throw CallFailed(text);
  }
  if (calls_back) share_failure(arguments, custom.failed());
  custom.rethrow();
  const std::uint64_t bytes = call.elements * call.element_size;
  tally.calls += 1;
  tally.bytes += bytes;
  if (!bounded) return;
  tarpon_summary summary{};
  summary.size = sizeof summary;
  tarpon_report_summary(report, &summary);
  tally.bounded_bytes += bytes;
  add(tally.lost_bytes, summary.lost_fraction * static_cast<double>(bytes));
}

/// A callback that throws on one rank leaves the others without that rank's part of the result.
void Carrier::share_failure(const tarpon_arguments& arguments, bool failed) {
  std::uint8_t any = failed ? 1 : 0;
  tarpon_arguments shared = arguments;
  shared.input = shared.output = &any;
  shared.count = 1;
  shared.type = TARPON_UINT8;
  shared.function = TARPON_MAX;
  if (tarpon_allreduce(job_, &shared, nullptr) != TARPON_OK) {
    throw CallFailed(std::string("the call has no result on another rank: ") + tarpon_error_text());
  }
  if (any != 0 && !failed) throw CallFailed("the reduction function of another rank has thrown");
}

void Carrier::close(double seconds) {
  tarpon_close(job_, static_cast<std::int64_t>(seconds * 1e6));
}

}  // namespace tarpon::gloo_shim
