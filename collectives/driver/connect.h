// Forms a job: rendezvous, the settings that the ranks agree on, and this rank's port.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "collectives/engine/engine.h"
#include "collectives/hosts/shared_host.h"
#include "collectives/membership/membership.h"
#include "collectives/options.h"
#include "collectives/rank_info.h"
#include "collectives/rendezvous/control.h"
#include "xdp/base/result.h"

namespace tarpon {

struct Connection {
  /// Contributor masks have 64 bits.
  static constexpr std::uint32_t kMaxRanks = 64;  // of one engine

  CommunicatorOptions options;  // as given, with the network that was found
  std::unique_ptr<ControlChannel> control;
  std::vector<RankInfo> ranks;
  /// Alike on all ranks: job, world size, size of slots, integrity, initial credit, mechanisms. The
  /// rank's own: its number, retention, limit of its rate, flows.
  EngineOptions agreed;
  /// Why slots are smaller than the interfaces allow: one line that names the pair of ranks whose
  /// path carries less. Empty: they are not. Alike on all ranks.
  std::string shrunk_slots;
  std::string multicast;                    // as Communicator::multicast()
  std::string hosts;                        // as Communicator::hosts()
  std::unique_ptr<hosts::SharedHost> host;  // null: the ranks share no memory
  std::unique_ptr<Port> port;
  std::unique_ptr<Membership> membership;  // connected, not started
};

/// What a job is to a communicator that is composed of several (collectives/grid).
struct PartOfGrid {
  /// How many ranks of this host share its link, each in another job; 0: the ranks of this job that
  /// share a host.
  std::uint32_t siblings = 0;
  std::uint32_t place = 0;  // of this rank among them
  /// Driver::watch(). Null: none.
  std::function<void()> watcher = nullptr;
};

/// How the size of slots is found. Alike on all ranks.
enum class SlotSizing : std::uint8_t {
  /// Slots fit what every pair of ranks carries in both directions, found with packets of the full
  /// size and smaller ones. A pair that does not carry packets of 576 bytes is an error.
  by_path,
  /// The same, but such a pair is no error: slots then fit the smallest MTU of the interfaces.
  by_path_or_interface,
};

/// The options of a communicator's membership. `self`: its place in the job, or in the part of the
/// job.
MembershipOptions membership_options(const CommunicatorOptions& options,
                                     const EndpointOptions& self);

/// Checks `options`, and meets the other ranks of a job of at most `most` ranks. Puts the scheme
/// before the address of the rendezvous.
Result<std::unique_ptr<ControlChannel>> meet_ranks(CommunicatorOptions& options,
                                                   std::uint32_t most);

/// Meets the other ranks, then sets up the data path. Blocks for at most
/// options.rendezvous.timeout. Errors are the same on every rank that could be reached and name the
/// rank at fault, or the pair of ranks between which packets do not arrive.
Result<Connection> connect_ranks(const CommunicatorOptions& options,
                                 SlotSizing sizing = SlotSizing::by_path,
                                 const PartOfGrid& part = {});

}  // namespace tarpon
