#include "tools/collective/timed_calls.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <span>
#include <thread>

#include "collectives/report_text.h"
#include "collectives/step_verdict.h"
#include "tools/cli/files/report_output.h"
#include "tools/collective/slow_calls.h"
#include "tools/job/host_trouble.h"
#include "tools/job/joint_outcome.h"
#include "tools/job/outcome.h"
#include "tools/job/rank_names.h"
#include "tools/system/process_usage.h"
#include "transport/clock.h"
#include "transport/integrity.h"
#include "transport/rank_mask.h"
#include "xdp/base/printable.h"

namespace tarpon {
namespace {

void note(const Report& report, IterationLog& log) {
  Closing worst = Closing::complete;
  for (const StageReport& stage : report.stages) worst = std::max(worst, stage.closing);
  log.late.push_back(report.mask(report.late_ranks));
  log.lost.push_back(report.lost_fraction);
  log.bound_us.push_back(std::chrono::duration<double, std::micro>(report.bound).count());
  log.held_us.push_back(std::chrono::duration<double, std::micro>(report.held).count());
  log.closing.push_back(static_cast<int>(worst));
  log.causes.push_back(report.causes);
  log.void_shards.push_back(report.mask(report.void_shards));
  log.coded += report.coded ? 1 : 0;
  log.lost_fraction = std::max(log.lost_fraction, report.lost_fraction);
  log.lost_stage1 = std::max(log.lost_stage1, report.lost_stage1);
  log.lost_stage2 = std::max(log.lost_stage2, report.lost_stage2);
}

void note_outcome(const Report& report, IterationLog& log) {
  log.outcome = outcome_json(report);
  if (report.status == Status::complete) return;
  log.outcome_text = to_string(report);
}

constexpr std::uint32_t kMeetingTag = 0x6d656574;
/// Waits until all ranks are here. Before bounded calls it leaves out ranks that are silent, as
/// these calls do: an exact barrier would end the run of all.
Result<void> meet(const TimedCalls& calls, Duration deadline) {
  Communicator& job = calls.communicator;
  const Mechanisms& mechanisms = calls.options.job.mechanisms;
  // Whether a learnt bound waits for each live rank: one of them is more than a stage may lack.
  const double of_one = 1.0 / std::max(1.0, job.world_size() - 1.0);
  const bool waits = mechanisms.repair && mechanisms.scatter_repair &&
                     of_one > LossBudget::usual(mechanisms.loss_target).skip_above / 2;
  if (calls.options.mode != Mode::bounded || !waits) return job.barrier(deadline);
  float nothing = 0;
  const auto report = job.allreduce({.input = &nothing,
                                     .output = &nothing,
                                     .count = 1,
                                     .tag = kMeetingTag,
                                     .mode = Mode::bounded,
                                     .deadline = deadline,
                                     .bound_rule = BoundRule::learnt});
  if (!report) return fail(report.error());
  const Status status = report->status;
  if (has_result(status)) return {};
  return fail(
      Error::make(status == Status::peer_late ? Error::Code::timeout : Error::Code::unavailable,
                  fmt::format("barrier: {}: {}", name(status), report->detail)));
}

constexpr const char* kLateRemedy = "tarpon check shows pairs of ranks whose packets are lost";

/// `before`: the counts of the port when the call, or the barrier before it, began.
IterationLog failed(const TimedCalls& calls, const PortStatistics& before, IterationLog log,
                    std::string error, std::string outcome) {
  const Communicator& job = calls.communicator;
  const std::string trouble =
      host_trouble(before, job.port_statistics(), job.ranks()[job.rank()].mtu);
  log.error = trouble.empty() ? std::move(error) : fmt::format("{}; {}", error, trouble);
  log.outcome_text = std::move(outcome);  // not that of an earlier call
  return log;
}

/// Agrees with the other ranks on the step, if there are loss budgets. Returns whether to go on.
bool agree_on_step(const TimedCalls& calls, const Report& report, IterationLog& log) {
  if (calls.step == nullptr) return true;
  const StepVerdict verdict =
      calls.communicator.agree((*calls.step)++, loss_report(report), calls.options.job.deadline);
  log.verdicts.push_back(static_cast<int>(verdict.verdict));
  if (verdict.verdict != Verdict::halt) return true;
  log.halted = fmt::format("halted at step {}: {}", verdict.step, verdict.detail);
  return false;
}

/// Sends to the next rank and receives from the one before, at the same time. Returns the report of
/// the call that went worse: a dead peer ranks above one that is only late.
Result<Report> send_and_receive(Communicator& job, const CollectiveArguments& message) {
  CollectiveArguments out = message, in = message;
  out.output = nullptr;
  out.peer = rank_after(job.rank(), job.world_size());
  in.collective = Collective::receive;
  in.input = nullptr;
  in.peer = rank_before(job.rank(), job.world_size());
  auto sent = job.collective_async(out);
  if (!sent) return fail(sent.error());
  auto received = job.collective_async(in);
  if (!received) {
    sent->wait();
    return fail(received.error());
  }
  Report of_send = sent->wait(), of_receive = received->wait();
  if (of_send.status > of_receive.status) return of_send;
  return of_receive;
}

/// Makes the call that the options ask for, on these buffers.
std::function<Result<Report>()> call_of(const TimedCalls& calls, const void* input, void* output,
                                        std::uint64_t count) {
  Communicator& job = calls.communicator;
  if (calls.options.of_allreduce()) {
    return [&job, arguments = allreduce_arguments(calls.options, input, output, count)] {
      return job.allreduce(arguments);
    };
  }
  return [&job, arguments = collective_arguments(calls.options, input, output, count)] {
    return is_message(arguments.collective) ? send_and_receive(job, arguments)
                                            : job.collective(arguments);
  };
}

}  // namespace

IterationLog run_timed(const TimedCalls& calls, const void* input, void* output,
                       std::uint64_t count, Report& last) {
  IterationLog log;
  log.bit = calls.communicator.mask_bit(calls.communicator.rank());
  const auto call = call_of(calls, input, output, count);
  const std::optional<InjectedDelay>& delay = calls.options.delay;
  for (std::uint32_t i = 0; i < calls.warmup + calls.iterations; ++i) {
    calls.refill();
    const PortStatistics port_first = calls.communicator.port_statistics();
    if (const auto met = meet(calls, calls.options.job.deadline); !met) {
      log.peer_late = met.error().code == Error::Code::timeout;
      return failed(calls, port_first, std::move(log), met.error().message, "");
    }
    if (delay && delay->rank == calls.communicator.rank()) std::this_thread::sleep_for(delay->by);
    const PortStatistics port_before = calls.communicator.port_statistics();
    const double cpu_before = process_cpu_seconds();
    const Time start = monotonic_now();
    auto report = call();
    const Time stop = monotonic_now();
    if (!report) {
      return failed(calls, port_first, std::move(log), report.error().message, "");
    }
    if (!has_result(report->status)) {
      log.outcome = outcome_json(*report);
      log.peer_late = report->status == Status::peer_late;
      return failed(calls, port_first, std::move(log),
                    fmt::format("{}: {}", name(report->status), report->detail),
                    progress_text(*report));
    }
    if (i >= calls.warmup) {
      log.cpu_s += process_cpu_seconds() - cpu_before;
      const PortStatistics port = calls.communicator.port_statistics();
      log.sent_packets += port.tx_packets - port_before.tx_packets;
      log.sent_bytes += port.tx_bytes - port_before.tx_bytes;
      log.time_us.push_back(std::chrono::duration<double, std::micro>(stop - start).count());
      note(*report, log);
      if (is_slow(log.time_us.back(), log.time_us)) calls.communicator.record_flight();
      if (report->status != Status::complete) note_outcome(*report, log);
    }
    log.nonfinite.insert(report->nonfinite_ranks.begin(), report->nonfinite_ranks.end());
    if (calls.log.enabled(DebugLevel::trace)) {
      calls.log.write(DebugLevel::trace, "CALL",
                      fmt::format("operation {} of tag {}: {} in {:.1f} us {}", report->operation,
                                  report->tag, name(report->status),
                                  std::chrono::duration<double, std::micro>(stop - start).count(),
                                  report->detail));
    }
    last = std::move(*report);
    calls.progress(i + 1, std::chrono::duration<double, std::micro>(stop - start).count());
    if (!agree_on_step(calls, last, log)) break;
  }
  if (log.outcome.is_null()) note_outcome(last, log);
  log.max_rss_kib = max_resident_kib();
  log.flows = calls.communicator.flows();
  if (calls.check) {
    const ResultCheck checked = calls.check(last);
    log.wrong = checked.wrong;
    log.squared_error = checked.squared_error;
  }
  return log;
}

namespace {

// Iterations in one message: some 10 MB of text; a message may hold 16 MiB.
constexpr std::size_t kPiece = 50'000;

/// One line: what failed, and the progress of the call.
std::string failure(const IterationLog& log) {
  return log.outcome_text.empty() ? log.error : fmt::format("{} ({})", log.error, log.outcome_text);
}

void append(const IterationLog& piece, IterationLog& log) {
  log.time_us.insert(log.time_us.end(), piece.time_us.begin(), piece.time_us.end());
  log.late.insert(log.late.end(), piece.late.begin(), piece.late.end());
  log.lost.insert(log.lost.end(), piece.lost.begin(), piece.lost.end());
  log.bound_us.insert(log.bound_us.end(), piece.bound_us.begin(), piece.bound_us.end());
  log.held_us.insert(log.held_us.end(), piece.held_us.begin(), piece.held_us.end());
  log.closing.insert(log.closing.end(), piece.closing.begin(), piece.closing.end());
  log.causes.insert(log.causes.end(), piece.causes.begin(), piece.causes.end());
  log.void_shards.insert(log.void_shards.end(), piece.void_shards.begin(), piece.void_shards.end());
  log.verdicts.insert(log.verdicts.end(), piece.verdicts.begin(), piece.verdicts.end());
}

std::vector<Rank> ranks_that_say(const std::vector<IterationLog>& logs, const std::string& error) {
  std::vector<Rank> ranks;
  for (std::size_t rank = 0; rank < logs.size(); ++rank) {
    if (logs[rank].error == error) ranks.push_back(static_cast<Rank>(rank));
  }
  return ranks;
}

/// Whether no rank's run has failed.
Result<void> all_good(const std::vector<IterationLog>& logs) {
  std::string errors;
  bool late = false;
  for (std::size_t rank = 0; rank < logs.size(); ++rank) {
    const IterationLog& log = logs[rank];
    late = late || log.peer_late;
    const std::vector<Rank> alike = ranks_that_say(logs, log.error);
    if (log.error.empty() || alike.front() != rank) continue;
    errors += fmt::format("{}{}: {}", errors.empty() ? "" : "; ", rank_names(alike), failure(log));
  }
  if (errors.empty()) return {};
  if (late) errors += fmt::format("; {}", kLateRemedy);
  return fail(Error::Code::io, errors);
}

/// The error of a rank whose calls failed, if then the control channel fails with `control`.
Error unshared(const IterationLog& mine, const Error& control) {
  const bool timeout = control.code == Error::Code::timeout;
  std::string text = failure(mine);
  // A dead rank has no control channel, and the ranks that found it dead end theirs.
  const bool dead = mine.error.find(" is dead: ") != std::string::npos;
  if (!timeout && !dead) text += fmt::format("; {}", control.message);
  if (mine.peer_late) text += fmt::format("; {}", kLateRemedy);
  return Error::make(timeout ? Error::Code::timeout : Error::Code::io, std::move(text));
}

Result<std::vector<IterationLog>> logs_of(const std::vector<std::string>& texts) {
  std::vector<IterationLog> logs;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    auto log = iteration_log_from(texts[rank]);
    if (!log) return fail(Error::Code::mismatch, fmt::format("rank {} sent no valid log", rank));
    logs.push_back(std::move(*log));
  }
  return logs;
}

/// As share_piece(), but rank 0 alone has the logs of the others, and tells all whether they are
/// good: to tell all of them to many ranks would take longer than the calls.
Result<std::vector<IterationLog>> gather_piece(ControlChannel& control, const IterationLog& mine,
                                               std::size_t from, Duration bound) {
  std::vector<Rank> missing;
  const std::string text = to_text(mine, from, kPiece);
  auto texts = control.gather(text, monotonic_now() + bound, missing);
  if (!texts) return fail(mine.error.empty() ? texts.error() : unshared(mine, texts.error()));
  const bool first = control.rank() == 0;
  auto logs = logs_of(first && missing.empty() ? *texts : std::vector{text});
  Result<void> good;
  if (!logs) good = fail(logs.error());
  if (first && logs) good = all_good(*logs);
  if (!missing.empty()) {
    good = fail(Error::Code::unavailable,
                fmt::format("{} did not tell what became of the calls", rank_names(missing)));
  }
  const auto heard =
      control.broadcast(good ? "" : good.error().message, monotonic_now() + kControlBound);
  if (!heard) return fail(heard.error());
  if (!heard->empty()) return fail(Error::Code::io, printable(*heard, kLongestMessage));
  return logs;
}

Result<std::vector<IterationLog>> share_piece(ControlChannel& control, const IterationLog& mine,
                                              std::size_t from, Duration bound) {
  if (control.world_size() > Communicator::kMostOfOne) {
    return gather_piece(control, mine, from, bound);
  }
  auto texts = control.all_gather(to_text(mine, from, kPiece), monotonic_now() + bound);
  if (!texts) return fail(mine.error.empty() ? texts.error() : unshared(mine, texts.error()));
  return logs_of(*texts);
}

}  // namespace

Result<std::vector<IterationLog>> share_logs(ControlChannel& control, const IterationLog& mine,
                                             Duration deadline, nlohmann::json& failure) {
  const auto give_up = [&](const Error& error, const std::vector<IterationLog>& logs) {
    nlohmann::json outcomes = nlohmann::json::array();
    for (const IterationLog& log : logs) outcomes.push_back(log.outcome);
    failure = {{"error", error.message}, {"outcomes", outcomes}};
    return fail(error);
  };
  // A failed rank has waited long enough in its call, and knows which ranks were missing.
  const Duration bound = mine.error.empty() ? kControlBound : std::min<Duration>(deadline, 1s);
  auto logs = share_piece(control, mine, 0, bound);
  if (!logs) {
    std::vector<IterationLog> known(control.world_size());
    known[control.rank()] = mine;
    return give_up(logs.error(), known);
  }
  if (const auto good = all_good(*logs); !good) return give_up(good.error(), *logs);
  // No rank has failed, so all have the same number of iterations.
  const std::size_t longest = std::max(mine.time_us.size(), mine.verdicts.size());
  for (std::size_t from = kPiece; logs && from < longest; from += kPiece) {
    auto more = share_piece(control, mine, from, bound);
    if (!more) return give_up(more.error(), *logs);
    for (std::size_t rank = 0; rank < logs->size(); ++rank) append((*more)[rank], (*logs)[rank]);
  }
  return logs;
}

std::string datapath_of(const Communicator& communicator) {
  const std::vector<RankInfo>& ranks = communicator.ranks();
  for (const RankInfo& rank : ranks) {
    if (rank.datapath != ranks[0].datapath) return "mixed";
  }
  return ranks[0].datapath;
}

nlohmann::json ranks_json(const std::vector<RankInfo>& ranks) {
  nlohmann::json json = nlohmann::json::array();
  for (const RankInfo& rank : ranks) {
    json.push_back({{"host", rank.host},
                    {"interface", rank.interface},
                    {"driver", rank.driver},
                    {"mtu", rank.mtu},
                    {"datapath", rank.datapath},
                    {"datapath_reason", rank.datapath_reason},
                    {"lanes", rank.lanes},
                    {"address", rank.address}});
  }
  return json;
}

nlohmann::json config_json(const CollectiveOptions& options, const Session& session) {
  const Communicator& communicator = *session.communicator;
  nlohmann::json config = report_config();
  config.update({{"seed", options.job.seed},
                 {"world_size", communicator.world_size()},
                 {"slot_bytes", communicator.slot_bytes()},
                 {"shrunk_slots", communicator.shrunk_slots()},
                 {"multicast", communicator.multicast()},
                 {"hosts", communicator.hosts()},
                 {"order", order_name(options.job.mechanisms)},
                 {"connect", session.cost.json()},
                 {"integrity", name(communicator.integrity())},
                 {"ranks", ranks_json(communicator.ranks())}});
  return config;
}

}  // namespace tarpon
