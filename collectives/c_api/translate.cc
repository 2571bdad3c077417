#include "collectives/c_api/translate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "collectives/environment/environment_options.h"
#include "transport/rank_mask.h"

namespace tarpon::c_api {
namespace {

// -- the numbers of C and C++ are the same

template <typename C, typename Cpp>
constexpr bool same(C c, Cpp cpp) {
  return static_cast<unsigned>(c) == static_cast<unsigned>(cpp);
}

static_assert(same(TARPON_REDUCE_SCATTER, Collective::reduce_scatter) &&
              same(TARPON_ALL_GATHER, Collective::all_gather) &&
              same(TARPON_BROADCAST, Collective::broadcast) &&
              same(TARPON_REDUCE, Collective::reduce) && same(TARPON_GATHER, Collective::gather) &&
              same(TARPON_SCATTER, Collective::scatter) &&
              same(TARPON_ALL_TO_ALL, Collective::all_to_all) &&
              same(TARPON_ALL_TO_ALL + 1, Collective::send));

static_assert(same(TARPON_FLOAT32, DataType::float32) && same(TARPON_FLOAT64, DataType::float64) &&
              same(TARPON_INT32, DataType::int32) && same(TARPON_INT64, DataType::int64) &&
              same(TARPON_FLOAT16, DataType::float16) &&
              same(TARPON_BFLOAT16, DataType::bfloat16) && same(TARPON_INT8, DataType::int8) &&
              same(TARPON_UINT8, DataType::uint8) && same(TARPON_INT16, DataType::int16) &&
              same(TARPON_UINT16, DataType::uint16) && same(TARPON_UINT32, DataType::uint32) &&
              same(TARPON_UINT64, DataType::uint64) && same(TARPON_UINT64, kLastDataType));
static_assert(same(TARPON_SUM, ReduceOp::sum) && same(TARPON_AVG, ReduceOp::avg) &&
              same(TARPON_MIN, ReduceOp::min) && same(TARPON_MAX, ReduceOp::max) &&
              same(TARPON_PROD, ReduceOp::prod) && same(TARPON_BAND, ReduceOp::band) &&
              same(TARPON_BOR, ReduceOp::bor) && same(TARPON_BXOR, ReduceOp::bxor) &&
              same(TARPON_CUSTOM, ReduceOp::custom) && same(TARPON_CUSTOM, kLastReduceOp));
static_assert(same(TARPON_EXACT, Mode::exact) && same(TARPON_BOUNDED, Mode::bounded));
static_assert(same(TARPON_TAR, Algorithm::tar) && same(TARPON_CIRCULANT, Algorithm::circulant) &&
              same(TARPON_ONE_SHOT, Algorithm::one_shot) && same(TARPON_RING, Algorithm::ring) &&
              same(TARPON_RECURSIVE_DOUBLING, Algorithm::recursive_doubling) &&
              same(TARPON_2D_TAR, Algorithm::two_level_tar) &&
              same(TARPON_LATE_RANK, Algorithm::late_rank) &&
              same(TARPON_HOSTS, Algorithm::hosts) && same(TARPON_HOSTS, kLastAlgorithm));
static_assert(same(TARPON_MISSING_ZERO, MissingFill::zero) &&
              same(TARPON_MISSING_LOCAL, MissingFill::local));
static_assert(same(TARPON_DATAPATH_AUTO, Datapath::automatic) &&
              same(TARPON_DATAPATH_XDP, Datapath::xdp) &&
              same(TARPON_DATAPATH_URING, Datapath::uring) &&
              same(TARPON_DATAPATH_MMSG, Datapath::mmsg));
static_assert(same(TARPON_STATUS_COMPLETE, Status::complete) &&
              same(TARPON_STATUS_PARTIAL, Status::partial) &&
              same(TARPON_STATUS_LATE_SELF, Status::late_self) &&
              same(TARPON_STATUS_PEER_LATE, Status::peer_late) &&
              same(TARPON_STATUS_MISMATCH, Status::mismatch) &&
              same(TARPON_STATUS_ABORTED, Status::aborted) &&
              same(TARPON_STATUS_FAILED, Status::failed) &&
              same(TARPON_STATUS_PEER_DEAD, Status::peer_dead) &&
              same(TARPON_STATUS_EVICTED, Status::evicted) &&
              same(TARPON_STATUS_PEER_LEFT, Status::peer_left));
static_assert(same(TARPON_CAUSE_GIVEN_UP, AbortReason::given_up) &&
              same(TARPON_CAUSE_MISMATCH, AbortReason::mismatch) &&
              same(TARPON_CAUSE_EXPIRED, AbortReason::expired) &&
              same(TARPON_CAUSE_LATE, AbortReason::late) &&
              same(TARPON_CAUSE_ARGUMENT, AbortReason::argument) &&
              same(TARPON_CAUSE_DEADLINE, AbortReason::deadline) &&
              same(TARPON_CAUSE_MEMORY, AbortReason::memory) &&
              same(TARPON_CAUSE_EXCEPTION, AbortReason::exception) &&
              same(TARPON_CAUSE_TAG_FORGOTTEN, AbortReason::tag_forgotten));
static_assert(same(TARPON_CALL_QUEUED, CallStage::queued) &&
              same(TARPON_CALL_SCATTER, CallStage::scatter) &&
              same(TARPON_CALL_GATHER, CallStage::gather) &&
              same(TARPON_CALL_RESULT, CallStage::result));
static_assert(same(TARPON_STEP_APPLY, Verdict::apply) && same(TARPON_STEP_SKIP, Verdict::skip) &&
              same(TARPON_STEP_HALT, Verdict::halt));

std::int64_t to_us(Duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

/// A number without an enumerator becomes a value without one: the engine refuses it by name.
template <typename Enum>
Enum to_enum(std::uint32_t number) {
  return static_cast<Enum>(std::min<std::uint32_t>(number, 0xff));
}

bool given(const char* text) {
  return text != nullptr && *text != '\0';
}

/// REQUIRES: options.listener.
std::optional<std::string> wrong_listener(const tarpon_options& options) {
  if (options.rank != 0) {
    return fmt::format("tarpon_options: listener is given to rank {}: rank 0 alone listens",
                       options.rank);
  }
  if (given(options.rendezvous)) {
    return "tarpon_options: listener and rendezvous are given: leave rendezvous NULL on rank 0";
  }
  if (!*options.listener->place.listener) {
    return "tarpon_options: listener has served a connect: make a new one with tarpon_listen()";
  }
  return std::nullopt;
}

/// Why a value of `options` is invalid; nothing if none is. Communicator::connect() checks the
/// rest.
std::optional<std::string> nonsense(const tarpon_options& options) {
  const auto text = [](const char* member, auto value, const char* remedy) {
    return fmt::format("tarpon_options: {} is {}: {}", member, value, remedy);
  };
  if (options.datapath > TARPON_DATAPATH_MMSG) {
    return text("datapath", options.datapath, "give a tarpon_datapath");
  }
  if (options.loss_target != 0 && !(options.loss_target > 0 && options.loss_target < 1)) {
    return text("loss_target", options.loss_target, "give a share above 0 and below 1");
  }
  for (const auto& [member, share] :
       {std::pair("skip_above", options.skip_above), std::pair("halt_above", options.halt_above)}) {
    if (share != 0 && !(share > 0 && share <= 1)) {
      return text(member, share, "give a share above 0, up to 1");
    }
  }
  if (options.skip_above != 0 && options.halt_above != 0 &&
      options.skip_above > options.halt_above) {
    return text("skip_above", options.skip_above, "give at most halt_above");
  }
  if (options.secret_file != nullptr && *options.secret_file == '\0') {
    return text("secret_file", "empty", "name a file, or give NULL");
  }
  if (options.rendezvous_timeout_us < 0) {
    return text("rendezvous_timeout_us", options.rendezvous_timeout_us, "give a positive time");
  }
  if (options.silent_after_us < 0) {
    return text("silent_after_us", options.silent_after_us, "give a positive time");
  }
  if (options.dead_after_us < 0) {
    return text("dead_after_us", options.dead_after_us, "give a positive time");
  }
  if (!(options.max_bytes_per_second >= 0) || std::isinf(options.max_bytes_per_second)) {
    return text("max_bytes_per_second", options.max_bytes_per_second, "give a rate, or 0 for none");
  }
  if (options.codec > TARPON_CODEC_OFF) {
    return text("codec", options.codec, "give a tarpon_codec");
  }
  if (options.multicast > 1) return text("multicast", options.multicast, "give 1, or 0 for none");
  if (given(options.ports)) {
    const auto ports = parse_port_range(options.ports);
    if (!ports) return "tarpon_options: ports: " + ports.error().message;
  }
  if (options.fixed_order > 1) {
    return text("fixed_order", options.fixed_order, "give 1, or 0 for an order that rotates");
  }
  if (options.lanes > CommunicatorOptions::kMaxLanes) {
    return text("lanes", options.lanes,
                fmt::format("give 1 to {}, or 0 for by processors", CommunicatorOptions::kMaxLanes)
                    .c_str());
  }
  if (options.encrypt > 1) {
    return text("encrypt", options.encrypt, "give 1, or 0 for payloads that can be read");
  }
  if (options.no_shared_memory > 1) {
    return text("no_shared_memory", options.no_shared_memory,
                "give 1, or 0 for memory that ranks of a host share");
  }
  return options.listener == nullptr ? std::nullopt : wrong_listener(options);
}

/// REQUIRES: sensible options.
std::string rendezvous_of(const tarpon_options& options) {
  if (options.listener != nullptr) return options.listener->place.address;
  return given(options.rendezvous) ? options.rendezvous : "";
}

CodecRule codec_rule(std::uint32_t codec) {
  if (codec == TARPON_CODEC_AUTO) return CodecRule::automatic;
  return codec == TARPON_CODEC_ON ? CodecRule::on : CodecRule::off;
}

/// The environment without the variables that members of `options` take precedence over.
Environment environment_below(const tarpon_options& options) {
  return [rest = process_environment(), datapath = options.datapath != 0,
          target = options.loss_target != 0, codec = options.codec != 0,
          multicast = options.multicast != 0, hosts = options.no_shared_memory != 0,
          lanes = options.lanes != 0, order = options.fixed_order != 0,
          ports = given(options.ports), timeout = options.rendezvous_timeout_us != 0,
          flight = given(options.flight_directory), secret = given(options.secret_file),
          integrity = options.encrypt != 0](const char* name) {
    const std::string_view variable = name;
    const bool hidden =
        (datapath && variable == "TARPON_DATAPATH") ||
        (target && variable == "TARPON_LOSS_TARGET") || (codec && variable == "TARPON_CODEC") ||
        (multicast && variable == "TARPON_MULTICAST") || (order && variable == "TARPON_ORDER") ||
        (hosts && variable == "TARPON_HOSTS") || (lanes && variable == "TARPON_LANES") ||
        (flight && variable == "TARPON_FLIGHT") || (ports && variable == "TARPON_PORTS") ||
        (timeout && variable == "TARPON_RENDEZVOUS_TIMEOUT") ||
        (integrity && variable == "TARPON_INTEGRITY") ||
        (secret && (variable == "TARPON_SECRET_FILE" || variable == "TARPON_SECRET_FD"));
    return hidden ? std::nullopt : rest(name);
  };
}

/// The budgets that `options` set; none if they leave the default. REQUIRES: sensible options.
std::vector<LossBudget> budgets_of(const tarpon_options& options, double loss_target) {
  if (options.skip_above == 0 && options.halt_above == 0) return {};
  LossBudget budget = LossBudget::usual(loss_target);
  if (options.halt_above != 0) budget.halt_above = options.halt_above;
  if (options.skip_above != 0) budget.skip_above = options.skip_above;
  // If only one of the two is given, it moves the other.
  if (options.halt_above == 0) budget.halt_above = std::max(budget.halt_above, budget.skip_above);
  if (options.skip_above == 0) budget.skip_above = std::min(budget.skip_above, budget.halt_above);
  return {budget};
}

/// Sets the options that are neither the place of the rank nor its interface. Errors: those of
/// JobSecret.
Result<void> set_rest(const tarpon_options& from, CommunicatorOptions& to) {
  if (from.mtu != 0) to.mtu = from.mtu;
  if (from.datapath != 0) to.datapath = to_enum<Datapath>(from.datapath);
  if (from.loss_target != 0) to.mechanisms.loss_target = from.loss_target;
  if (from.codec != 0) to.mechanisms.codec = codec_rule(from.codec);
  to.loss_budgets = budgets_of(from, to.mechanisms.loss_target);
  if (given(from.flight_directory)) to.flight.directory = from.flight_directory;
  if (from.rendezvous_timeout_us != 0) to.rendezvous.timeout = from_us(from.rendezvous_timeout_us);
  if (from.silent_after_us != 0) to.silent_after = from_us(from.silent_after_us);
  if (from.dead_after_us != 0) to.dead_after = from_us(from.dead_after_us);
  if (from.retain_bytes != 0) to.retain_bytes = from.retain_bytes;
  if (from.max_bytes_per_second != 0) to.max_bytes_per_second = from.max_bytes_per_second;
  if (from.flows != 0) to.flows = from.flows;
  if (from.lanes != 0) to.lanes = from.lanes;
  if (from.multicast != 0) to.multicast = true;
  if (from.no_shared_memory != 0) to.hosts = false;
  if (given(from.ports)) to.ports = *parse_port_range(from.ports);  // nonsense() has checked it
  if (from.fixed_order != 0) to.mechanisms.rotation = false;
  if (from.no_status_socket != 0) to.flight.socket = false;
  if (from.listener != nullptr) to.rendezvous.listener = from.listener->place.listener;
  if (from.encrypt != 0) to.integrity = TARPON_INTEGRITY_SEALED;
  if (!given(from.secret_file)) return {};
  auto secret = JobSecret::read_file(from.secret_file);
  if (!secret) return fail(secret.error());
  to.rendezvous.secret = *std::move(secret);
  return {};
}

}  // namespace

Duration from_us(std::int64_t us) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max() / 1000;
  return std::chrono::microseconds(std::clamp(us, -kMax, kMax));
}

Duration wait_from_us(std::int64_t us) {
  return from_us(std::max<std::int64_t>(us, 0));
}

Rank to_rank(std::uint32_t number) {
  return static_cast<Rank>(std::min<std::uint32_t>(number, kUnknownRank));
}

namespace {

/// Functions of C throw nothing.
template <typename Arguments>
CustomFunction custom_of(const Arguments& from) {
  return {from.custom_id, reinterpret_cast<decltype(CustomFunction::combine)>(from.custom_combine),
          from.custom_context};
}

AllreduceArguments translated(const tarpon_arguments& from) {
  AllreduceArguments to;
  to.input = from.input;
  to.output = from.output;
  to.count = from.count;
  to.type = to_enum<DataType>(from.type);
  to.function = to_enum<ReduceOp>(from.function);
  to.custom = custom_of(from);
  to.tag = from.tag;
  to.mode = to_enum<Mode>(from.mode);
  to.algorithm = to_enum<Algorithm>(from.algorithm);
  to.group_size = from.group_size;
  to.late_rank = to_rank(from.late_rank);
  if (from.shares != nullptr) to.shares = Shares({from.shares, from.share_count});
  to.learn_shares = from.learn_shares != 0;
  to.follows = (from.flags & TARPON_FOLLOW) != 0;
  to.missing = to_enum<MissingFill>(from.missing);
  to.deadline = from_us(from.deadline_us);
  if (from.bound_us != 0) to.bound = from_us(from.bound_us);
  if (given(from.refusal)) to.refusal = from.refusal;
  return to;
}

}  // namespace

AllreduceArguments translate(const tarpon_arguments& from) noexcept {
  try {
    return translated(from);
  } catch (const std::exception&) {
    AllreduceArguments refused = refused_call(from.tag);
    refused.refusal = AllreduceArguments::kNoMemory;
    return refused;
  }
}

CollectiveArguments translate(const tarpon_collective_arguments& from,
                              std::uint32_t world) noexcept {
  CollectiveArguments to;
  // tarpon_collective_kind has no messages: their numbers are refused.
  const std::uint32_t kind = from.collective;
  const bool message = kind < kCollectives && is_message(static_cast<Collective>(kind));
  to.collective = to_enum<Collective>(message ? UINT32_MAX : kind);
  to.input = from.input;
  to.output = from.output;
  to.count = from.count;
  to.root = to_rank(from.root);
  to.type = to_enum<DataType>(from.type);
  to.function = to_enum<ReduceOp>(from.function);
  to.custom = custom_of(from);
  to.tag = from.tag;
  to.mode = to_enum<Mode>(from.mode);
  if (from.bound_us != 0) to.bound = from_us(from.bound_us);
  to.deadline = from_us(from.deadline_us);
  try {
    if (from.counts != nullptr) to.counts.assign(from.counts, from.counts + world);
    if (from.output_counts != nullptr) {
      to.output_counts.assign(from.output_counts, from.output_counts + world);
    }
    if (given(from.refusal)) to.refusal = from.refusal;
  } catch (const std::exception&) {
    to.refusal = AllreduceArguments::kNoMemory;  // short enough to need no memory
  }
  return to;
}

CollectiveArguments translate(const tarpon_message& from, Collective direction) noexcept {
  CollectiveArguments to;
  to.collective = direction;
  if (direction == Collective::send) to.input = from.data;
  if (direction == Collective::receive) to.output = from.data;
  to.count = from.bytes;
  to.type = DataType::uint8;
  to.peer = to_rank(from.peer);
  to.tag = from.tag;
  to.deadline = from_us(from.deadline_us);
  try {
    if (given(from.refusal)) to.refusal = from.refusal;
  } catch (const std::exception&) {
    to.refusal = AllreduceArguments::kNoMemory;
  }
  return to;
}

AllreduceArguments refused_call(std::uint32_t tag) {
  AllreduceArguments call;
  call.type = to_enum<DataType>(UINT32_MAX);
  call.tag = tag;
  return call;
}

Result<CommunicatorOptions> translate(const tarpon_options& from) {
  if (auto wrong = nonsense(from)) return fail(Error::Code::invalid_argument, *wrong);
  auto to = CommunicatorOptions::for_rank(to_rank(from.rank), from.world_size, rendezvous_of(from));
  if (given(from.interface)) to.interface = from.interface;
  if (given(from.address)) to.address = from.address;
  if (auto set = set_rest(from, to); !set) return fail(set.error());
  return to;
}

Result<CommunicatorOptions> add_environment(const tarpon_options& from) {
  if (auto wrong = nonsense(from)) return fail(Error::Code::invalid_argument, *wrong);
  if (from.rank != 0 && from.world_size == 0) {
    return fail(Error::Code::invalid_argument,
                fmt::format("tarpon_options: rank is {} and world_size 0: give both, or neither "
                            "for those of the environment",
                            from.rank));
  }
  InterfaceRequest wish;
  if (given(from.interface)) wish.name = from.interface;
  if (given(from.address)) wish.address = from.address;
  LaunchFlags flags;
  flags.place_named_by = "tarpon_options";
  flags.rendezvous_remedy = " or tarpon_options: rendezvous";
  if (from.rendezvous_timeout_us != 0) {
    flags.rendezvous_timeout = from_us(from.rendezvous_timeout_us);
  }
  if (from.world_size != 0) {
    flags.rank = from.rank;
    flags.world_size = from.world_size;
  }
  if (std::string rendezvous = rendezvous_of(from); !rendezvous.empty()) {
    flags.rendezvous = std::move(rendezvous);
    flags.rendezvous_named_by = "tarpon_options: rendezvous ";
  }
  auto to = find_options(flags, std::move(wish), environment_below(from));
  if (!to) return to;
  if (auto set = set_rest(from, *to); !set) return fail(set.error());
  return to;
}

tarpon_summary summarize(const Report& report) {
  tarpon_summary summary{};
  summary.status = static_cast<std::uint32_t>(report.status);
  summary.tag = report.tag;
  summary.operation = report.operation;
  summary.stage = static_cast<std::uint32_t>(report.stage);
  summary.mode = static_cast<std::uint32_t>(report.mode);
  summary.abort_cause = static_cast<std::uint32_t>(report.abort_reason);
  summary.elapsed_us = to_us(report.elapsed);
  summary.bound_us = to_us(report.bound);
  summary.bytes_sent = report.bytes_sent;
  summary.bytes_received = report.bytes_received;
  summary.bytes_fetched = report.bytes_fetched;
  summary.lost_fraction = report.lost_fraction;
  summary.lost_stage1 = report.lost_stage1;
  summary.lost_stage2 = report.lost_stage2;
  summary.late_ranks = report.mask(report.late_ranks);
  summary.blamed = report.mask(report.blamed);
  summary.void_shards = report.mask(report.void_shards);
  summary.nonfinite_ranks = report.mask(report.nonfinite_ranks);
  summary.nonfinite = report.nonfinite ? 1 : 0;
  summary.epoch = report.epoch;
  summary.first_missed = report.first_missed;
  summary.operations_missed = report.operations_missed;
  summary.lost_in_network = report.causes.of_network();
  summary.held_us = report.held / 1us;
  return summary;
}

tarpon_step_verdict translate(const StepVerdict& from) {
  tarpon_step_verdict to{};
  to.step = from.step;
  to.verdict = static_cast<std::uint32_t>(from.verdict);
  to.decided_by = from.decided_by;
  to.lost_fraction = from.lost_fraction;
  to.reporters = from.reporters;
  to.rejoin = from.rejoin;
  to.differing = from.differing;
  to.gone = from.gone;
  to.late = from.late;
  from.detail.copy(to.detail, sizeof to.detail - 1);
  return to;
}

}  // namespace tarpon::c_api
