#include "collectives/engine/coded/coded_calls.h"

#include <algorithm>

#include "codec/layout.h"

namespace tarpon {
namespace {

/// The most elements that a slot holds.
std::uint32_t most_elements(std::uint32_t slot_bytes) {
  return static_cast<std::uint32_t>(slot_bytes / sizeof(float));
}

/// Time to encode and to decode `bytes` on one core: 10 GB/s each beyond the caches (tests/bench).
Duration coding_time(std::uint64_t bytes) {
  constexpr double kBytesPerNanosecond = 5;
  return Duration(static_cast<Duration::rep>(static_cast<double>(bytes) / kBytesPerNanosecond));
}

}  // namespace

CodedCalls::CodedCalls(const Setting& setting)
    : setting_(setting),
      epochs_(setting.mechanisms.codec == CodecRule::on),
      buffers_(setting.memory),
      coded_lately_(setting.mechanisms.codec == CodecRule::on) {}

void CodedCalls::decided(const EpochRecord& record) {
  epochs_.decided(record);
  if (std::exchange(coded_lately_, record.setting.coded) || !record.setting.coded) return;
  std::size_t open = 0;
  for (const Latest& call : latest_) open = std::max(open, call.open);
  const Encoding::Setting& encoding = setting_.encoding;
  std::vector<std::uint64_t> elements;
  const std::size_t kept = latest_.size();
  for (std::size_t age = 1; age <= kept && elements.size() < open; ++age) {
    const std::uint64_t count = latest_[(oldest_ + kept - age) % kept].count;
    if (count == 0) break;
    elements.push_back(
        codec::strided_layout(count, most_elements(encoding.slot_bytes), encoding.world).room());
  }
  buffers_.prepare(elements);
}

void CodedCalls::note_submitted(const CallArguments& arguments, std::size_t open) {
  if (!can_be_coded(arguments)) return;
  latest_[oldest_] = {arguments.count, open + 1};
  oldest_ = (oldest_ + 1) % latest_.size();
}

bool CodedCalls::may_begin(const std::shared_ptr<PendingCall>& call, std::uint32_t number,
                           Time submitted, Time now) {
  const CallArguments& arguments = call->arguments;
  if (!can_be_coded(arguments)) return true;
  const bool coded = is_coded(arguments, epochs_.at(arguments.tag, number), number);
  for (const auto& encoding : encodings_) {
    const bool holds = coded && encoding->number() == number;
    if (encoding->call() == call && holds) return encoding->done();
  }
  take(*call);
  if (!coded) return true;
  const Encoding::Start start{.number = number, .submitted = submitted, .now = now};
  encodings_.push_back(std::make_unique<Encoding>(setting_.encoding, call, start, buffers_));
  return encodings_.back()->done();
}

std::unique_ptr<Encoding> CodedCalls::take(const PendingCall& call) {
  const auto found = std::find_if(encodings_.begin(), encodings_.end(),
                                  [&](const auto& one) { return one->call().get() == &call; });
  if (found == encodings_.end()) return nullptr;
  std::unique_ptr<Encoding> encoding = std::move(*found);
  encodings_.erase(found);
  return encoding;
}

bool CodedCalls::encodes(const PendingCall& call) const {
  return std::any_of(encodings_.begin(), encodings_.end(),
                     [&](const auto& one) { return one->call().get() == &call; });
}

Encoding* CodedCalls::oldest_with_piece() const {
  Encoding* oldest = nullptr;
  for (const auto& one : encodings_) {
    if (!one->has_piece()) continue;
    if (oldest == nullptr || one->submitted() < oldest->submitted()) oldest = one.get();
  }
  return oldest;
}

/// Counts the loss of the network, but not the data that a late rank did not send, and no loss of a
/// call that is too short to be coded. Counts the time of a rank that came late, because encoding
/// may have made it late.
void CodedCalls::note_ended(const PendingCall& call) {
  const Report& report = call.report;
  const bool in_time = report.status == Status::complete || report.status == Status::partial;
  const bool ended = in_time || report.status == Status::late_self;
  const Mechanisms& mechanisms = setting_.mechanisms;
  const bool over_hosts = report.algorithm == Algorithm::hosts;
  const bool decides = mechanisms.codec == CodecRule::automatic || over_hosts;
  if (call.arguments.parts || !decides || !ended || report.mode != Mode::bounded ||
      report.bound <= Duration{})
    return;
  CallEvidence evidence{.lost = std::nullopt,
                        .coded = report.coded.has_value(),
                        .bound = report.bound,
                        .took = report.elapsed - std::max(report.clock_start, Duration{}),
                        .over_hosts = over_hosts};
  // Coding does not cause the wait for live ranks, so the time of the wait does not count.
  if (report.held > Duration{}) evidence.took = std::min(evidence.took, report.bound);
  const Duration coding = coding_time(bucket_bytes(call.arguments));
  const bool tells_loss = in_time && report.late_ranks.empty() && report.void_shards.empty();
  if (tells_loss && coding <= report.bound / 2) evidence.lost = report.lost_fraction;
  evidence_.push_back(evidence);
}

}  // namespace tarpon
