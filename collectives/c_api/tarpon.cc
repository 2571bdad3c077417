// The C interface but for its calls (calls.cc): checks pointers and sizes, calls the library, and
// lets no exception out.
#include "collectives/tarpon.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "collectives/c_api/errors.h"
#include "collectives/c_api/handles.h"
#include "collectives/c_api/structs.h"
#include "collectives/c_api/translate.h"
#include "collectives/communicator.h"
#include "collectives/rendezvous/control.h"
#include "collectives/report_text.h"
#include "collectives/version.h"
#include "transport/integrity.h"

using namespace tarpon;
using namespace tarpon::c_api;

namespace {

int hand_over(Result<std::unique_ptr<Communicator>> made, tarpon_communicator** place) {
  if (!made) return failed(made.error());
  (*made)->control().close();  // this interface has no exchanges, and a program may have many jobs
  const Communicator& job = **made;
  std::string exposed = needs_secret(job.integrity()) ? "" : exposed_text(job.ranks());
  *place = new tarpon_communicator{*std::move(made), std::move(exposed)};
  return kOk;
}

/// Reads the known part of `given` into `loss`, or returns why it is refused.
std::optional<std::string> read_loss(const tarpon_loss& given, LossReport& loss) {
  tarpon_loss known{};
  if (auto wrong = read(given, "tarpon_loss", known)) return wrong;
  if (known.reserved != 0) return "tarpon_loss: reserved is set: set it to 0";
  loss = {known.lost_fraction, known.nonfinite != 0, known.late_ranks, known.digest};
  return std::nullopt;
}

const RankInfo& own_info(const tarpon_communicator& handle) {
  const Communicator& job = *handle.communicator;
  return job.ranks()[job.rank()];
}

/// Null: there is no such list.
const std::vector<Rank>* list_of(const Report& report, std::uint32_t which) {
  switch (which) {
    case TARPON_LATE_RANKS:
      return &report.late_ranks;
    case TARPON_BLAMED:
      return &report.blamed;
    case TARPON_VOID_SHARDS:
      return &report.void_shards;
    case TARPON_NONFINITE_RANKS:
      return &report.nonfinite_ranks;
    default:
      return nullptr;
  }
}

int outcome(const Result<void>& done) {
  return done ? kOk : failed(done.error());
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

uint32_t tarpon_mask_bit(const tarpon_communicator* communicator, uint32_t rank) {
  if (communicator == nullptr || rank >= communicator->communicator->world_size()) {
    return UINT32_MAX;
  }
  return communicator->communicator->mask_bit(static_cast<Rank>(rank));
}

const char* tarpon_datapath_name(const tarpon_communicator* communicator) {
  return communicator == nullptr ? "" : own_info(*communicator).datapath.c_str();
}

const char* tarpon_integrity_name(const tarpon_communicator* communicator) {
  if (communicator == nullptr) return "";
  return name(communicator->communicator->integrity()).data();
}

const char* tarpon_exposed(const tarpon_communicator* communicator) {
  return communicator == nullptr ? "" : communicator->exposed.c_str();
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

int tarpon_report_ranks(const tarpon_report* report, uint32_t which, uint32_t* ranks,
                        uint32_t capacity, uint32_t* count) {
  return guarded([&] {
    if (report == nullptr) return failed_pointer("tarpon_report_ranks", "report");
    if (count == nullptr) return failed_pointer("tarpon_report_ranks", "count");
    if (ranks == nullptr && capacity > 0) return failed_pointer("tarpon_report_ranks", "ranks");
    const std::vector<Rank>* const list = list_of(report->report, which);
    if (list == nullptr) {
      return failed(TARPON_ERROR_INVALID_ARGUMENT,
                    fmt::format("tarpon_report_ranks: list {}: give a tarpon_rank_list", which));
    }
    *count = static_cast<uint32_t>(list->size());
    std::copy_n(list->begin(), std::min<std::size_t>(capacity, list->size()), ranks);
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
