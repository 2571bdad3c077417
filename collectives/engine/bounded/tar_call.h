// A running call that may be bounded. It runs exact if it calibrates a bound. Its schedule is TAR.
//
// A bounded reduce_scatter is the first stage of one: its second stage is empty.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "collectives/engine/bounded/call_layout.h"
#include "collectives/engine/bounded/clocked_call.h"
#include "collectives/engine/bounded/output_completion.h"
#include "collectives/engine/bounded/reducer.h"
#include "collectives/engine/call/buffers.h"
#include "collectives/engine/coded/coding.h"

namespace tarpon {

/// The data of a call that does not come by packets, but through the memory of a host: sums that
/// this rank contributes, also to its own shard (Reducer::provide()), and shards of other owners.
class NearData {
 public:
  virtual ~NearData() = default;
  /// Lends this rank's sums over its host for another shard, which begin at `slots`.
  virtual Source& source(SlotArray<const std::byte> slots) = 0;
  /// Whether all of these sums are there, or as many as this rank gets.
  virtual bool has_contributions() const = 0;
  /// Whether the shards are here, or are waited for no longer.
  virtual bool has_shards(Time now) = 0;
  /// The ranks of the host that the call does without. Bit r: rank r.
  virtual std::uint64_t left_out() const = 0;
  virtual const HostSums& sums() const = 0;
};

class TarCall : public ClockedCall {
 public:
  /// Opens the operation on `endpoint`, as its last step. `coding`: the encoded bucket of a coded
  /// call, else null. `submitted` is when the caller asked. Throws std::bad_alloc if a buffer of
  /// the call is refused.
  TarCall(const Setting& setting, const std::shared_ptr<PendingCall>& call,
          std::unique_ptr<Coding> coding, Endpoint& endpoint, Time submitted, Time now);
  ~TarCall() override;

 protected:
  /// Of a call over hosts.
  struct OverHosts {
    CallLayout layout;
    std::uint64_t senders = 0;  // Reducer::Shape::senders
    NearData& near;             // outlives the call
  };
  /// The derived class opens the operation, as the last step of its constructor.
  TarCall(const Setting& setting, const std::shared_ptr<PendingCall>& call, Endpoint& endpoint,
          Time submitted, Time now, const OverHosts& hosts)
      : TarCall(setting, call, nullptr, endpoint, submitted, now, &hosts) {}

  OperationSpec specify(Time now);
  OperationSignature signature() const;
  bool advance(Time now) override;
  void on_progress(const Event& event, Time now) override;
  void complete_output() override;

  const CallLayout& layout() const { return layout_; }
  Reducer& reducer() { return reducer_; }
  const Reducer& reducer() const { return reducer_; }
  std::vector<BufferSink>& gather() { return gather_; }
  const BoundClock& clock() const { return clock_; }
  bool is_late() const { return late_self_; }

 private:
  /// `hosts`: of a call over hosts, else null.
  TarCall(const Setting& setting, const std::shared_ptr<PendingCall>& call,
          std::unique_ptr<Coding> coding, Endpoint& endpoint, Time submitted, Time now,
          const OverHosts* hosts);
  Reducer::Shape reducer_shape(Mode mode, const OverHosts* hosts);
  static CallKind kind_of(const Setting& setting, const PendingCall& call, bool coded,
                          bool over_hosts);
  void add_scatter(OperationSpec& spec);
  Source& contribution_to(const TarShards::Shard& shard);
  void add_gather(OperationSpec& spec);

  void finish(Time now) override;
  std::optional<Time> cut_at() const;
  Duration closing_work() const override { return work_left(copies()); }

  Duration work_left(bool with_copy) const;
  void close_for_work(Time now);
  bool retains() const;
  bool may_finish(Time now);
  Duration settling(Time now) const;
  bool serves_afterwards() const;
  bool confirmed() const;
  bool copies() const;
  bool drops_copy(Time now) const;
  void settle();
  void settle_if_due();
  void retain();
  void end_whole(Time now);
  void report_result();
  void report_nonfinite();
  std::uint64_t absent() const;
  std::uint64_t left_out() const;

  std::unique_ptr<Coding> coding_;  // where the call is coded
  const CallLayout layout_;
  // Of the reducer, where it uses them.
  std::optional<FloatBufferPool::Buffer> partials_;
  std::optional<FloatBufferPool::Buffer> parked_;
  NearData* const near_;  // null: all data comes by packets
  Reducer reducer_;
  std::vector<BufferSource> scatter_;
  std::vector<BufferSink> gather_;
  OutputCompletion output_;
  std::unique_ptr<Retained> retained_;  // our shard, until the endpoint keeps it
  Time whole_since_ = kNever;           // when the result was complete, or closed by its bound
  Time settle_at_ = kNever;             // until then confirmations may save the copy of our shard
  bool asks_peers_ = false;             // whether they have ended this bounded call without us
  bool gather_complete_ = false;
  bool settle_due_ = false;  // the scatter has closed, and something is missing
  bool finishing_ = false;   // our shard is being copied, or has been
};

}  // namespace tarpon
