// The C interface: checks pointers and sizes, calls the library, and lets no exception out.
#include "collectives/tarpon.h"

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "collectives/c_api/errors.h"
#include "collectives/c_api/structs.h"
#include "collectives/c_api/translate.h"
#include "collectives/communicator.h"
#include "collectives/rendezvous/control.h"
#include "collectives/report_text.h"
#include "collectives/version.h"

struct tarpon_communicator {
  std::unique_ptr<tarpon::Communicator> communicator;
};

struct tarpon_call {
  std::optional<tarpon::AsyncAllreduce> async;
};

struct tarpon_report {
  tarpon::Report report;
  mutable std::once_flag written;
  mutable std::string text;
};

using namespace tarpon;
using namespace tarpon::c_api;

namespace {

constexpr int kOk = TARPON_OK;

int hand_over(Result<std::unique_ptr<Communicator>> made, tarpon_communicator** place) {
  if (!made) return failed(made.error());
  (*made)->control().close();  // this interface has no exchanges, and a program may have many jobs
  *place = new tarpon_communicator{*std::move(made)};
  return kOk;
}

bool has_result(const Report& report) {
  return report.status == Status::complete || report.status == Status::partial ||
         report.status == Status::late_self;
}

int hand_over(Report report, tarpon_report** place) {
  const bool good = has_result(report);
  const std::string text = good ? std::string() : to_string(report);
  if (place != nullptr) {
    auto handle = std::make_unique<tarpon_report>();
    handle->report = std::move(report);
    *place = handle.release();
  }
  return good ? kOk : failed(TARPON_ERROR_NO_RESULT, text);
}

/// Reads the known part of `given` into `loss`, or returns why it is refused.
std::optional<std::string> read_loss(const tarpon_loss& given, LossReport& loss) {
  tarpon_loss known{};
  if (auto wrong = read(given, "tarpon_loss", known)) return wrong;
  if (known.reserved != 0) return "tarpon_loss: reserved is set: set it to 0";
  loss = {known.lost_fraction, known.nonfinite != 0, known.late_ranks, known.digest};
  return std::nullopt;
}

/// Why arguments are refused by this version of the library.
std::optional<std::string> wrong_members(const tarpon_arguments& given) noexcept {
  try {
    if (auto unknown = unknown_members(given, "tarpon_arguments")) return unknown;
    const std::uint32_t flags = known_part(given).flags;
    if ((flags & ~std::uint32_t{TARPON_FOLLOW}) == 0) return std::nullopt;
    return fmt::format("tarpon_arguments: flags is {}: give TARPON_FOLLOW, or 0", flags);
  } catch (const std::exception&) {
    return AllreduceArguments::kNoMemory;
  }
}

/// The same of arguments of which only unknown bytes can be wrong here.
template <typename Arguments>
std::optional<std::string> wrong_bytes(const Arguments& given, const char* name) noexcept {
  try {
    return unknown_members(given, name);
  } catch (const std::exception&) {
    return AllreduceArguments::kNoMemory;
  }
}

const RankInfo& own_info(const tarpon_communicator& handle) {
  const Communicator& job = *handle.communicator;
  return job.ranks()[job.rank()];
}

int outcome(const Result<void>& done) {
  return done ? kOk : failed(done.error());
}

/// Runs `body` with the job of `handle`, as guarded() does. `function`: the name that a refusal of
/// NULL, and of a communicator of another process, begins with.
template <typename Body>
int with_job(tarpon_communicator* handle, const char* function, Body body) noexcept {
  return guarded([&] {
    if (handle == nullptr) return failed_pointer(function, "communicator");
    if (const int error = check_process(*handle->communicator, function); error != kOk)
      return error;
    return body(*handle->communicator);
  });
}

Result<Report> run_call(Communicator& job, const AllreduceArguments& call) {
  return job.allreduce(call);
}
Result<Report> run_call(Communicator& job, const CollectiveArguments& call) {
  return job.collective(call);
}
Result<AsyncAllreduce> start_call(Communicator& job, const AllreduceArguments& call) {
  return job.allreduce_async(call);
}
Result<AsyncAllreduce> start_call(Communicator& job, const CollectiveArguments& call) {
  return job.collective_async(call);
}

/// How calls are made of the arguments of C: those of AllReduce.
struct AllreduceCalls {
  static constexpr const char* kStruct = "tarpon_arguments";

  static std::optional<std::string> wrong(const tarpon_arguments& given) noexcept {
    return wrong_members(given);
  }
  static auto call(const Communicator&, const tarpon_arguments& known) { return translate(known); }
  static auto refused(const tarpon_arguments& known) { return refused_call(known.tag); }
};

/// Those of the other collectives.
struct CollectiveCalls {
  static constexpr const char* kStruct = "tarpon_collective_arguments";

  static std::optional<std::string> wrong(const tarpon_collective_arguments& given) noexcept {
    return wrong_bytes(given, kStruct);
  }
  static auto call(const Communicator& job, const tarpon_collective_arguments& known) {
    return translate(known, job.world_size());
  }
  static auto refused(const tarpon_collective_arguments& known) { return refused_call(known.tag); }
};

/// Those of messages.
template <Collective kDirection>
struct MessageCalls {
  static constexpr const char* kStruct = "tarpon_message";

  static std::optional<std::string> wrong(const tarpon_message& given) noexcept {
    return wrong_bytes(given, kStruct);
  }
  static auto call(const Communicator&, const tarpon_message& known) {
    return translate(known, kDirection);
  }
  static auto refused(const tarpon_message& known) {
    CollectiveArguments call = translate(known, kDirection);
    call.deadline = Duration::zero();  // which the engine refuses
    return call;
  }
};

/// The calls of this thread between tarpon_group_start() and tarpon_group_end().
struct Group {
  std::size_t depth = 0;  // of groups within groups
  std::vector<AsyncAllreduce> calls;
  int error = kOk;  // of the first call that could not be started, and its text
  std::string text;
};

thread_local Group group;

/// Starts a call. On success *started is it. `function`: the name that a refusal begins with.
/// `place_error`: why the caller's place for a result cannot be used; empty: it can.
template <typename Calls, typename Arguments>
int begin(Communicator& job, const char* function, Calls, const Arguments* arguments,
          std::optional<AsyncAllreduce>* started, const char* place_error) {
  if (arguments == nullptr) return failed_pointer(function, "arguments");
  if (auto wrong = wrong_size(*arguments, Calls::kStruct)) {
    return failed(TARPON_ERROR_INVALID_ARGUMENT, *wrong);
  }
  const Arguments known = known_part(*arguments);
  const auto unknown = Calls::wrong(*arguments);
  if (unknown || place_error != nullptr) {
    (void)start_call(job, Calls::refused(known));
    return failed(TARPON_ERROR_INVALID_ARGUMENT,
                  unknown ? *unknown : fmt::format("{}: {}", function, place_error));
  }
  auto call = start_call(job, Calls::call(job, known));
  if (!call) return failed(call.error());
  started->emplace(*std::move(call));
  return kOk;
}

/// Starts a call of the group of this thread. Its errors are those of the group, too.
template <typename Calls, typename Arguments>
int add_to_group(Communicator& job, const char* function, Calls calls, const Arguments* arguments,
                 const tarpon_report* const* report) {
  std::optional<AsyncAllreduce> started;
  group.calls.reserve(group.calls.size() + 1);
  const char* const wrong = report == nullptr ? nullptr : "a group has no reports: give NULL";
  const int error = begin(job, function, calls, arguments, &started, wrong);
  if (started) group.calls.push_back(*std::move(started));
  if (error != kOk && group.error == kOk) {
    group.error = error;
    group.text = c_api::error_text();
  }
  return error;
}

/// Runs a call, or starts it if this thread is in a group.
template <typename Calls, typename Arguments>
int run(tarpon_communicator* communicator, const char* function, Calls calls,
        const Arguments* arguments, tarpon_report** report) noexcept {
  return with_job(communicator, function, [&](Communicator& job) {
    if (group.depth > 0) return add_to_group(job, function, calls, arguments, report);
    if (arguments == nullptr) return failed_pointer(function, "arguments");
    if (auto wrong = wrong_size(*arguments, Calls::kStruct)) {
      return failed(TARPON_ERROR_INVALID_ARGUMENT, *wrong);
    }
    const Arguments known = known_part(*arguments);
    if (auto unknown = Calls::wrong(*arguments)) {
      auto refused = run_call(job, Calls::refused(known));
      if (!refused) return failed(refused.error());
      refused->detail = *unknown;
      hand_over(*std::move(refused), report);
      return failed(TARPON_ERROR_INVALID_ARGUMENT, *unknown);
    }
    auto ended = run_call(job, Calls::call(job, known));
    if (!ended) return failed(ended.error());
    return hand_over(*std::move(ended), report);
  });
}

/// Starts a call.
template <typename Calls, typename Arguments>
int start(tarpon_communicator* communicator, const char* function, Calls calls,
          const Arguments* arguments, tarpon_call** call) noexcept {
  return with_job(communicator, function, [&](Communicator& job) {
    std::unique_ptr<tarpon_call> handle(new (std::nothrow) tarpon_call);
    tarpon_call none;
    const char* const wrong = call == nullptr ? "call is NULL" : !handle ? "no memory" : nullptr;
    const int error =
        begin(job, function, calls, arguments, &(handle ? *handle : none).async, wrong);
    if (error != kOk) return !handle ? failed(TARPON_ERROR_NO_MEMORY, "no memory") : error;
    *call = handle.release();
    return kOk;
  });
}

/// Waits for the calls of the group of this thread.
int end_group() {
  Group ended = std::exchange(group, {});
  int error = ended.error;
  std::string text = std::move(ended.text);
  for (AsyncAllreduce& call : ended.calls) {
    const Report report = call.wait();
    if (error != kOk || has_result(report)) continue;
    error = TARPON_ERROR_NO_RESULT;
    text = to_string(report);
  }
  return error == kOk ? kOk : failed(static_cast<tarpon_error>(error), text);
}

int connect(const Result<CommunicatorOptions>& options, tarpon_communicator** place) {
  if (!options) return failed(options.error());
  return hand_over(Communicator::connect(*options), place);
}

}  // namespace

const char* tarpon_version() {
  return kVersion;
}

const char* tarpon_error_text() {
  return c_api::error_text();
}

const char* tarpon_error_name(int error) {
  static constexpr const char* kNames[] = {
      "ok", "invalid argument", "mismatch",  "timeout", "permission", "unavailable",
      "io", "no memory",        "no result", "internal"};
  return error >= 0 && error <= TARPON_ERROR_INTERNAL ? kNames[error] : "?";
}

const char* tarpon_status_name(uint32_t status) {
  return status > TARPON_STATUS_PEER_LEFT ? "?" : name(static_cast<Status>(status)).data();
}

int tarpon_connect(const tarpon_options* options, tarpon_communicator** communicator) {
  return guarded([&] {
    if (options == nullptr) return failed_pointer("tarpon_connect", "options");
    if (communicator == nullptr) return failed_pointer("tarpon_connect", "communicator");
    tarpon_options known{};
    if (auto wrong = read(*options, "tarpon_options", known)) {
      return failed(TARPON_ERROR_INVALID_ARGUMENT, *wrong);
    }
    return connect(translate(known), communicator);
  });
}

int tarpon_connect_from_environment(const tarpon_options* options,
                                    tarpon_communicator** communicator) {
  return guarded([&] {
    if (communicator == nullptr) {
      return failed_pointer("tarpon_connect_from_environment", "communicator");
    }
    tarpon_options known{};
    if (options != nullptr) {
      if (auto wrong = read(*options, "tarpon_options", known)) {
        return failed(TARPON_ERROR_INVALID_ARGUMENT, *wrong);
      }
    }
    return connect(add_environment(known), communicator);
  });
}

int tarpon_check_environment(const tarpon_options* options) {
  return guarded([&] {
    if (options == nullptr) return failed_pointer("tarpon_check_environment", "options");
    tarpon_options known{};
    if (auto wrong = read(*options, "tarpon_options", known)) {
      return failed(TARPON_ERROR_INVALID_ARGUMENT, *wrong);
    }
    const auto complete = add_environment(known);
    return complete ? kOk : failed(complete.error());
  });
}

int tarpon_listen(const char* host, const char* interface, tarpon_listener** listener) {
  return guarded([&] {
    if (listener == nullptr) return failed_pointer("tarpon_listen", "listener");
    InterfaceRequest wish;
    if (host != nullptr && *host != '\0') wish.host = host;
    if (interface != nullptr && *interface != '\0') wish.name = interface;
    auto place = open_meeting_place(wish, process_environment());
    if (!place) return failed(place.error());
    *listener = new tarpon_listener{*std::move(place)};
    return kOk;
  });
}

const char* tarpon_listener_address(const tarpon_listener* listener) {
  return listener == nullptr ? "" : listener->place.address.c_str();
}

void tarpon_listener_free(tarpon_listener* listener) {
  delete listener;
}

uint32_t tarpon_rank(const tarpon_communicator* communicator) {
  return communicator == nullptr ? UINT32_MAX : communicator->communicator->rank();
}

uint32_t tarpon_world_size(const tarpon_communicator* communicator) {
  return communicator == nullptr ? 0 : communicator->communicator->world_size();
}

const char* tarpon_datapath_name(const tarpon_communicator* communicator) {
  return communicator == nullptr ? "" : own_info(*communicator).datapath.c_str();
}

const char* tarpon_interface_name(const tarpon_communicator* communicator) {
  return communicator == nullptr ? "" : own_info(*communicator).interface.c_str();
}

const char* tarpon_shrunk_slots(const tarpon_communicator* communicator) {
  return communicator == nullptr ? "" : communicator->communicator->shrunk_slots().c_str();
}

const char* tarpon_hosts(const tarpon_communicator* communicator) {
  return communicator == nullptr ? "" : communicator->communicator->hosts().c_str();
}

const char* tarpon_multicast(const tarpon_communicator* communicator) {
  return communicator == nullptr ? "" : communicator->communicator->multicast().c_str();
}

int tarpon_allreduce(tarpon_communicator* communicator, const tarpon_arguments* arguments,
                     tarpon_report** report) {
  return run(communicator, __func__, AllreduceCalls(), arguments, report);
}

int tarpon_allreduce_start(tarpon_communicator* communicator, const tarpon_arguments* arguments,
                           tarpon_call** call) {
  return start(communicator, __func__, AllreduceCalls(), arguments, call);
}

int tarpon_collective(tarpon_communicator* communicator,
                      const tarpon_collective_arguments* arguments, tarpon_report** report) {
  return run(communicator, __func__, CollectiveCalls(), arguments, report);
}

int tarpon_collective_start(tarpon_communicator* communicator,
                            const tarpon_collective_arguments* arguments, tarpon_call** call) {
  return start(communicator, __func__, CollectiveCalls(), arguments, call);
}

int tarpon_send(tarpon_communicator* communicator, const tarpon_message* message,
                tarpon_report** report) {
  return run(communicator, __func__, MessageCalls<Collective::send>(), message, report);
}

int tarpon_send_start(tarpon_communicator* communicator, const tarpon_message* message,
                      tarpon_call** call) {
  return start(communicator, __func__, MessageCalls<Collective::send>(), message, call);
}

int tarpon_recv(tarpon_communicator* communicator, const tarpon_message* message,
                tarpon_report** report) {
  return run(communicator, __func__, MessageCalls<Collective::receive>(), message, report);
}

int tarpon_recv_start(tarpon_communicator* communicator, const tarpon_message* message,
                      tarpon_call** call) {
  return start(communicator, __func__, MessageCalls<Collective::receive>(), message, call);
}

int tarpon_probe(tarpon_communicator* communicator, uint32_t tag, int64_t timeout_us,
                 uint32_t* peer) {
  return with_job(communicator, __func__, [&](Communicator& job) {
    if (peer == nullptr) return failed_pointer("tarpon_probe", "peer");
    const auto sender = job.probe(tag, wait_from_us(timeout_us));
    if (!sender) return failed(sender.error());
    *peer = *sender;
    return kOk;
  });
}

int tarpon_group_start() {
  ++group.depth;
  return kOk;
}

int tarpon_group_end() {
  return guarded([&] {
    if (group.depth == 0) {
      return failed(TARPON_ERROR_INVALID_ARGUMENT,
                    "tarpon_group_end: no group is open: call tarpon_group_start() first");
    }
    return --group.depth > 0 ? kOk : end_group();
  });
}

int tarpon_test(const tarpon_call* call, int* done) {
  return guarded([&] {
    if (call == nullptr) return failed_pointer("tarpon_test", "call");
    if (done == nullptr) return failed_pointer("tarpon_test", "done");
    if (const int error = check_process(*call->async, "tarpon_test"); error != kOk) return error;
    *done = call->async->done() ? 1 : 0;
    return kOk;
  });
}

int tarpon_wait(tarpon_call* call, tarpon_report** report) {
  return guarded([&] {
    if (call == nullptr) return failed_pointer("tarpon_wait", "call");
    if (const int error = check_process(*call->async, "tarpon_wait"); error != kOk) return error;
    return hand_over(AsyncAllreduce(*call->async).wait(), report);
  });
}

void tarpon_call_free(tarpon_call* call) {
  delete call;
}

int tarpon_report_summary(const tarpon_report* report, tarpon_summary* summary) {
  return guarded([&] {
    if (report == nullptr) return failed_pointer("tarpon_report_summary", "report");
    if (summary == nullptr) return failed_pointer("tarpon_report_summary", "summary");
    if (auto wrong = wrong_size(*summary, "tarpon_summary")) {
      return failed(TARPON_ERROR_INVALID_ARGUMENT, *wrong);
    }
    write(summarize(report->report), *summary);
    return kOk;
  });
}

const char* tarpon_report_text(const tarpon_report* report) {
  if (report == nullptr) return "";
  const int written = guarded([&] {
    std::call_once(report->written, [&] { report->text = to_string(report->report); });
    return kOk;
  });
  return written == TARPON_OK ? report->text.c_str() : "";
}

int tarpon_report_loss(const tarpon_report* report, tarpon_loss* loss) {
  return guarded([&] {
    if (report == nullptr) return failed_pointer("tarpon_report_loss", "report");
    if (loss == nullptr) return failed_pointer("tarpon_report_loss", "loss");
    LossReport before;
    if (auto wrong = read_loss(*loss, before)) {
      return failed(TARPON_ERROR_INVALID_ARGUMENT, *wrong);
    }
    const LossReport after = worse(before, loss_report(report->report));
    tarpon_loss value{};
    value.lost_fraction = after.lost_fraction;
    value.nonfinite = after.nonfinite ? 1 : 0;
    value.late_ranks = after.late;
    value.digest = after.digest;
    write(value, *loss);
    return kOk;
  });
}

void tarpon_report_free(tarpon_report* report) {
  delete report;
}

int tarpon_behind(tarpon_communicator* communicator, uint32_t tag, uint32_t* calls) {
  return with_job(communicator, __func__, [&](Communicator& job) {
    if (calls == nullptr) return failed_pointer("tarpon_behind", "calls");
    *calls = job.behind(tag);
    return kOk;
  });
}

int tarpon_set_loss_target(tarpon_communicator* communicator, double share) {
  return with_job(communicator, __func__,
                  [&](Communicator& job) { return outcome(job.set_loss_target(share)); });
}

int tarpon_barrier(tarpon_communicator* communicator, int64_t deadline_us) {
  return with_job(communicator, __func__,
                  [&](Communicator& job) { return outcome(job.barrier(from_us(deadline_us))); });
}

int tarpon_abort(tarpon_communicator* communicator, const char* reason) {
  return with_job(communicator, __func__, [&](Communicator& job) {
    job.abort(reason == nullptr ? "" : reason);
    return kOk;
  });
}

int tarpon_agree(tarpon_communicator* communicator, uint64_t step, const tarpon_loss* loss,
                 int64_t deadline_us, tarpon_step_verdict* verdict) {
  return with_job(communicator, __func__, [&](Communicator& job) {
    if (verdict == nullptr) return failed_pointer("tarpon_agree", "verdict");
    LossReport lost;
    auto wrong = wrong_size(*verdict, "tarpon_step_verdict");
    if (!wrong && loss != nullptr) wrong = read_loss(*loss, lost);
    if (wrong) return failed(TARPON_ERROR_INVALID_ARGUMENT, *wrong);
    const StepVerdict decided = job.agree(step, lost, wait_from_us(deadline_us));
    write(translate(decided), *verdict);
    return kOk;
  });
}

int tarpon_split(tarpon_communicator* communicator, const uint32_t* ranks, uint32_t count,
                 uint32_t number, int64_t deadline_us, tarpon_communicator** part) {
  return with_job(communicator, __func__, [&](Communicator& job) {
    if (ranks == nullptr) return failed_pointer("tarpon_split", "ranks");
    if (part == nullptr) return failed_pointer("tarpon_split", "part");
    if (number > UINT16_MAX) {
      return failed(Error::make(Error::Code::invalid_argument,
                                fmt::format("split: number {}: give one up to 65535", number)));
    }
    if (count > job.world_size()) {
      return failed(Error::make(Error::Code::invalid_argument,
                                fmt::format("split: {} ranks of {}", count, job.world_size())));
    }
    std::vector<Rank> members;
    for (uint32_t i = 0; i < count; ++i) members.push_back(to_rank(ranks[i]));
    return hand_over(
        job.split(members, static_cast<std::uint16_t>(number), wait_from_us(deadline_us)), part);
  });
}

int tarpon_shrink(tarpon_communicator* communicator, int64_t deadline_us,
                  tarpon_communicator** fresh) {
  return with_job(communicator, __func__, [&](Communicator& job) {
    if (fresh == nullptr) return failed_pointer("tarpon_shrink", "fresh");
    return hand_over(job.shrink(wait_from_us(deadline_us)), fresh);
  });
}

int tarpon_rejoin(tarpon_communicator* communicator, int64_t deadline_us,
                  tarpon_communicator** fresh) {
  return with_job(communicator, __func__, [&](Communicator& job) {
    if (fresh == nullptr) return failed_pointer("tarpon_rejoin", "fresh");
    return hand_over(job.rejoin(wait_from_us(deadline_us)), fresh);
  });
}

const char* tarpon_left_out(const tarpon_communicator* communicator) {
  return communicator == nullptr ? "" : communicator->communicator->left_out().c_str();
}

int tarpon_resync(tarpon_communicator* communicator, uint32_t root, void* data, uint64_t bytes,
                  int64_t deadline_us) {
  return with_job(communicator, __func__, [&](Communicator& job) {
    return outcome(job.resync(to_rank(root), data, bytes, wait_from_us(deadline_us)));
  });
}

int tarpon_close(tarpon_communicator* communicator, int64_t deadline_us) {
  return with_job(communicator, __func__,
                  [&](Communicator& job) { return outcome(job.close(wait_from_us(deadline_us))); });
}

void tarpon_communicator_free(tarpon_communicator* communicator) {
  delete communicator;
}
