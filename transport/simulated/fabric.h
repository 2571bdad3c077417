// How packets cross a modelled network: each rank has an egress and an ingress link, and all ranks
// may share a core link. Virtual time; a seed fixes everything. It moves sizes, with a label that
// the caller gives each packet, and no bytes. simulated_port.h carries packets over it; tools/scale
// uses it alone.
//
//   limit of the flow (if any)  ->  egress of `from`  ->  core (if any)  ->  ingress of `to`
//
// A packet enters each link when it gets there, so that packets of several senders meet in the
// order of their arrival, and a full ingress queue drops those that come last (incast).
//
// To add a kind of link: its options in LinkOptions, its arithmetic in Link::enter.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "transport/port.h"
#include "transport/simulated/delay_trace.h"
#include "transport/simulated/link.h"
#include "transport/simulated/tcp_flow.h"

namespace tarpon {

/// Other traffic, in packets of 1500 bytes. Either a bulk TCP flow
/// (transport/simulated/tcp_flow.h), or `burst_bytes` at once, then a pause, so that
/// `bits_per_second` are offered in the mean (pauses vary by half, drawn from the seed). Bursts
/// take their share of links and queues, and do not slow down when packets are lost.
struct Background {
  Rank from = 0, to = 0;
  double bits_per_second = 0;
  std::uint32_t burst_bytes = 1500;
  bool tcp = false;  // the two above mean nothing then
};

struct FabricOptions {
  std::uint32_t ranks = 2;
  LinkOptions egress = {}, ingress = {};  // of every rank, except these:
  std::vector<std::pair<Rank, LinkOptions>> egress_of = {}, ingress_of = {};
  LinkOptions core = {};  // the default: no core
  /// Limit of each flow (from, to, number) by itself, as in clouds; the default: no limit.
  LinkOptions flow = {};
  std::vector<Background> background = {};
  /// Up to 44 packets that leave one rank for another at one time are one train, as with
  /// segmentation offload: when the queue of an ingress link has no room for all of them, all are
  /// dropped.
  bool trains = false;
  std::vector<DelaySample> delay_trace = {};  // on top of the egress link's delay
  std::uint64_t seed = 1;
};

struct FabricStatistics {
  std::uint64_t delivered = 0;  // packets
  std::uint64_t dropped_queue = 0;
  std::uint64_t dropped_policer = 0;
  std::uint64_t dropped_loss = 0;
  std::uint64_t background_bytes = 0;  // delivered
};

/// Single-threaded.
class Fabric {
 public:
  /// REQUIRES: every rank named is below `ranks`.
  explicit Fabric(const FabricOptions& options);

  /// A packet leaves `from` at `now`, in flow `flow`; `label` comes back with its fate.
  /// REQUIRES: `now` is not before the last advance(); from, to < ranks; flow < TARPON_MAX_FLOWS.
  void send(Time now, Rank from, Rank to, std::uint32_t wire_bytes, std::uint64_t label,
            std::uint8_t flow = 0);

  /// A packet leaves `from` once, for several ranks. It belongs to no flow, and is copied behind
  /// the egress link. A copy has its own label. REQUIRES: as send().
  struct Copy {
    Rank to = 0;
    std::uint64_t label = 0;
  };
  void multicast(Time now, Rank from, std::span<const Copy> copies, std::uint32_t wire_bytes);

  /// What became of one packet, and when.
  struct Outcome {
    Time time;
    LinkFate fate = LinkFate::delivered;
    std::uint64_t label = 0;
  };

  /// Moves everything up to `now`. Returns the packets that arrived or were dropped since, by time;
  /// valid until the next call.
  std::span<const Outcome> advance(Time now);

  /// When advance() has something to do next: no outcome comes before. kNever when no packet is
  /// under way; background traffic alone does not count.
  Time next_event() const { return packets_.empty() ? kNever : packets_.front().time; }

  const FabricStatistics& statistics() const { return statistics_; }

 private:
  enum class Hop : std::uint8_t {
    burst,
    flow,
    egress,
    core,
    ingress,
    arrived,
    acknowledged,
    missed
  };
  struct Event {
    Time time{};
    std::uint64_t order = 0;  // ties go by it
    std::uint64_t label = 0;
    std::uint32_t bytes = 0;
    Rank from = 0, to = 0;
    std::uint8_t flow = 0;
    Hop hop = Hop::egress;
    bool copied = false;  // shares the passage of the event before it over the egress link
    bool operator<(const Event& other) const;
  };
  using Heap = std::vector<Event>;

  void push(Heap& heap, Event event);
  static Event pop(Heap& heap);
  void step(Heap& heap);
  void start_burst(const Event& event);
  void answer_tcp(const Event& event);
  void tell_tcp(const Event& event, LinkFate fate);
  void send_tcp(Time now, std::size_t index);
  Hop after(Hop hop) const;
  Passage cross(Event& event);
  bool drop_train(Heap& heap, const Event& first);
  void end(const Event& event, const Passage& passage, bool background);
  void count(LinkFate fate, bool background, std::uint32_t bytes);

  std::vector<Background> background_;
  std::vector<TcpFlow> tcp_;  // by index in background_
  const std::uint32_t ranks_;
  std::vector<Link> egress_, ingress_;
  Passage latest_egress_;
  std::vector<Link> flows_;  // by from, to, flow; empty: no limit
  Link core_;
  bool has_core_;
  const bool has_trains_;
  Event last_;                 // the first of a train that found room
  std::size_t followers_ = 0;  // packets of that train that still come
  std::vector<Event> train_;   // the train in hand
  DelayTrace trace_;
  Random random_;
  Heap packets_, others_;  // others: background traffic; label: index, above it TCP's number
  std::uint64_t order_ = 0;
  std::vector<Outcome> outcomes_;
  FabricStatistics statistics_;
};

}  // namespace tarpon
