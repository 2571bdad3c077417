// The calls of the C interface: they are run, started, waited for, and put in groups.
#include <fmt/format.h>

#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/c_api/errors.h"
#include "collectives/c_api/handles.h"
#include "collectives/c_api/structs.h"
#include "collectives/c_api/translate.h"
#include "collectives/report_text.h"
#include "collectives/tarpon.h"

using namespace tarpon;
using namespace tarpon::c_api;

namespace {

int hand_over(Report report, tarpon_report** place) {
  const bool good = has_result(report.status);
  const std::string text = good ? std::string() : to_string(report);
  if (place != nullptr) {
    auto handle = std::make_unique<tarpon_report>();
    handle->report = std::move(report);
    *place = handle.release();
  }
  return good ? kOk : failed(TARPON_ERROR_NO_RESULT, text);
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

std::optional<std::string> wrong_members(const tarpon_collective_arguments& given) noexcept {
  try {
    if (auto unknown = unknown_members(given, "tarpon_collective_arguments")) return unknown;
    if (known_part(given).reserved == 0) return std::nullopt;
    return "tarpon_collective_arguments: reserved is set: set it to 0";
  } catch (const std::exception&) {
    return AllreduceArguments::kNoMemory;
  }
}

std::optional<std::string> wrong_members(const tarpon_message& given) noexcept {
  try {
    return unknown_members(given, "tarpon_message");
  } catch (const std::exception&) {
    return AllreduceArguments::kNoMemory;
  }
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

  static auto call(const Communicator&, const tarpon_arguments& known) { return translate(known); }
  static auto refused(const tarpon_arguments& known) { return refused_call(known.tag); }
};

/// Those of the other collectives.
struct CollectiveCalls {
  static constexpr const char* kStruct = "tarpon_collective_arguments";

  static auto call(const Communicator& job, const tarpon_collective_arguments& known) {
    return translate(known, job.world_size());
  }
  static auto refused(const tarpon_collective_arguments& known) { return refused_call(known.tag); }
};

/// Those of messages.
template <Collective kDirection>
struct MessageCalls {
  static constexpr const char* kStruct = "tarpon_message";

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
  const auto unknown = wrong_members(*arguments);
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
  const char* wrong = report == nullptr ? nullptr : "a group has no reports: give NULL";
  try {
    group.calls.reserve(group.calls.size() + 1);
  } catch (const std::bad_alloc&) {
    wrong = "no memory for the group";
  }
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
    if (auto unknown = wrong_members(*arguments)) {
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
    // The buffers of all calls are the caller's on return, whatever fails here.
    const int of_call = guarded([&] { return hand_over(call.wait(), nullptr); });
    if (error != kOk || of_call == kOk) continue;
    error = of_call;
    text = c_api::error_text();
  }
  return error == kOk ? kOk : failed(static_cast<tarpon_error>(error), text);
}

}  // namespace

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
