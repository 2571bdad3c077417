// The communicator of a job of at most 64 ranks, with an engine of its own; also of some ranks of
// such a job (split()).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/driver/call_runner.h"
#include "collectives/driver/communicator_state.h"

namespace tarpon {

class JobCommunicator final : public Communicator, public CallRunner {
 public:
  /// As Communicator::connect(). Errors: also more ranks than one engine has.
  static Result<std::unique_ptr<JobCommunicator>> connect(const CommunicatorOptions& options,
                                                          const PartOfGrid& part = {});
  ~JobCommunicator() override;

  // -- CallRunner --------------------------------------------------------------------------------

  std::shared_ptr<PendingCall> submit(const CallArguments& arguments) override;
  std::optional<Refusal> refusal(const AllreduceArguments& arguments) const override;
  std::optional<Abort> aborted() const override { return state_->aborted(); }
  void leave_at_once() override;

  // -- Communicator ------------------------------------------------------------------------------

  Result<void> check_process() const override;
  Rank rank() const override;
  std::uint32_t world_size() const override;
  const std::vector<RankInfo>& ranks() const override;
  std::uint32_t slot_bytes() const override;
  const std::string& shrunk_slots() const override;
  const std::string& multicast() const override;
  const std::string& hosts() const override;
  tarpon_integrity integrity() const override;
  Result<Report> allreduce(const AllreduceArguments& arguments) override;
  Result<AsyncAllreduce> allreduce_async(const AllreduceArguments& arguments) override;
  Result<Report> collective(const CollectiveArguments& arguments) override;
  Result<AsyncAllreduce> collective_async(const CollectiveArguments& arguments) override;
  Result<Rank> probe(std::uint32_t tag, Duration patience) override;
  std::uint32_t behind(std::uint32_t tag) const override;
  Result<void> set_loss_target(double share) override;
  void abort(const std::string& reason) override;
  StepVerdict agree(std::uint64_t step, const LossReport& report, Duration deadline) override;
  Result<std::unique_ptr<Communicator>> split(const std::vector<Rank>& ranks, std::uint16_t number,
                                              Duration deadline) override;
  Result<std::unique_ptr<Communicator>> shrink(Duration deadline) override;
  Result<std::unique_ptr<Communicator>> rejoin(Duration deadline) override;
  const std::string& left_out() const override { return left_out_; }
  std::uint64_t rejoin_wanted() const override;
  void poll(Duration wait) override;
  Result<void> close(Duration deadline) override;
  ControlChannel& control() override;
  void record_flight() override;
  PortStatistics port_statistics() const override;
  EndpointCounters counters() const override;
  Shares learnt_shares(std::uint32_t tag) const override;
  std::uint32_t flows() const override;

 private:
  explicit JobCommunicator(std::shared_ptr<CommunicatorState> state);
  Result<Report> run(const CallArguments& arguments);
  Result<Report> run_reserved(const AllreduceArguments& arguments) override {
    return run(arguments);
  }
  Result<AsyncAllreduce> start(const CallArguments& arguments);
  Result<std::unique_ptr<Communicator>> regroup(Regroup what, Duration deadline);

  std::shared_ptr<CommunicatorState> state_;
  std::string left_out_;
};

}  // namespace tarpon
