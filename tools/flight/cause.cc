#include "tools/flight/cause.h"

#include <algorithm>
#include <array>

#include "bpf/wire.h"

namespace tarpon {
namespace {

using Cause = FlightCause;

constexpr std::array kCauses{
    FlightCauseRow{Cause::none, "none", "nothing differs", "nothing"},
    FlightCauseRow{
        Cause::mismatch, "mismatch", "called with other arguments than the other ranks",
        "compare the calls in the programs of these ranks: order, count, type, function"},
    FlightCauseRow{Cause::port_failed, "port", "lost its network port",
                   "read the error in this rank's own output; look at its interface"},
    FlightCauseRow{Cause::send_refused, "send", "was not allowed to send by its own host",
                   "open outgoing UDP in this rank's own firewall where the error is a permission; "
                   "else raise the MTU of its interface again, or start the job anew"},
    FlightCauseRow{Cause::refused, "refused", "refused the call",
                   "mend the call at this rank: its own output names the argument or the error"},
    FlightCauseRow{Cause::aborted, "abort", "gave the operation up",
                   "look in this rank's program for the reason of its abort() or early end"},
    FlightCauseRow{Cause::expired, "expired", "let the call's deadline pass before it could begin",
                   "wait for earlier calls before you make more, or raise the deadline"},
    FlightCauseRow{Cause::forgotten, "forgotten", "no longer remembers the tag's numbers",
                   "do not use a tag again after 65,536 others"},
    FlightCauseRow{Cause::died, "died", "died",
                   "read this rank's own output and its host's kernel log (signal, out of memory)"},
    FlightCauseRow{Cause::left, "left", "left the job",
                   "let every rank make the same calls before close()"},
    FlightCauseRow{Cause::evicted, "evicted", "was evicted",
                   "find out why this rank fell behind, or raise --retain; then rejoin()"},
    FlightCauseRow{Cause::paused, "paused", "did not run",
                   "look at this rank's host: SIGSTOP, a debugger, swapping, too few processors, a "
                   "suspended machine"},
    FlightCauseRow{Cause::late, "late", "made the call too late",
                   "find out what this rank's program did before the call, or raise the deadline"},
    FlightCauseRow{Cause::silent, "silent", "was silent and left no recording",
                   "look at this rank's process and host, then at its network: tarpon check"},
    FlightCauseRow{Cause::cut_off, "cut off", "was cut off from the network",
                   "run tarpon check between this rank's host and another one"},
    FlightCauseRow{Cause::link_cut, "link", "packets do not arrive on the way",
                   "run tarpon check between the two hosts; look at firewalls and switches"},
    FlightCauseRow{Cause::loss, "loss", "packets are lost on the way",
                   "run tarpon check; look at the error counters of interfaces and switches"},
    FlightCauseRow{
        Cause::mtu, "mtu", "full-size packets do not pass",
        "raise the MTU of the path, or start the job again: connecting finds what it carries"},
    FlightCauseRow{
        Cause::stalled, "stalled", "most ranks did not run at the same time",
        "look at what these ranks share: a host without processors, a suspended machine"},
    FlightCauseRow{Cause::slow, "slow", "data still arrived when the time was over",
                   "raise the deadline or the bound, or make the calls smaller; tarpon check shows "
                   "what the network carries"},
    FlightCauseRow{Cause::nonfinite, "nonfinite", "gave an input with NaN or infinity",
                   "look for the NaN in this rank's input"},
    FlightCauseRow{Cause::undecided, "undecided", "undecided", "collect what is missing"},
};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kCauses.size(); ++i) {
    if (static_cast<std::size_t>(kCauses[i].cause) != i) return false;
  }
  return kCauses.size() == static_cast<std::size_t>(Cause::count);
}
static_assert(in_order());

constexpr std::array kReasons{
    AbortReasonRow{TARPON_ABORT_GIVEN_UP, Cause::aborted, "its caller gave it up"},
    AbortReasonRow{TARPON_ABORT_MISMATCH, Cause::none, "another operation under this number"},
    AbortReasonRow{TARPON_ABORT_EXPIRED, Cause::expired, "its deadline passed in the queue"},
    AbortReasonRow{TARPON_ABORT_LATE, Cause::none, "it reached its deadline"},
    AbortReasonRow{TARPON_ABORT_ARGUMENT, Cause::refused, "its arguments make no sense"},
    AbortReasonRow{TARPON_ABORT_DEADLINE, Cause::refused, "its deadline had passed at the call"},
    AbortReasonRow{TARPON_ABORT_MEMORY, Cause::refused, "there was no memory for its buffers"},
    AbortReasonRow{TARPON_ABORT_EXCEPTION, Cause::refused, "an exception ended it"},
    AbortReasonRow{TARPON_ABORT_FORGOTTEN, Cause::forgotten, "the tag's numbers are forgotten"},
};

}  // namespace

const FlightCauseRow& row_of(FlightCause cause) {
  return kCauses[static_cast<std::size_t>(cause)];
}

AbortReasonRow abort_reason(std::uint32_t reason) {
  const auto* const row = std::find_if(kReasons.begin(), kReasons.end(),
                                       [reason](const auto& one) { return one.reason == reason; });
  return row != kReasons.end() ? *row : AbortReasonRow{reason, Cause::aborted, "it gave it up"};
}

}  // namespace tarpon
