#include "transport/ports/port_lines.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

namespace tarpon {
namespace {

std::uint16_t communicator_of(const RxPacket& packet) {
  std::uint16_t communicator = 0;
  if (packet.length < TARPON_HEADER_BYTES) return communicator;
  std::memcpy(&communicator, packet.data + offsetof(tarpon_header, communicator),
              sizeof communicator);
  return communicator;
}

}  // namespace

PortLine::PortLine(PortLines& lines, std::uint16_t communicator, RankMap ranks)
    : lines_(lines), communicator_(communicator), ranks_(std::move(ranks)) {}

PortLine::~PortLine() {
  drop_waiting();
  lines_.lines_.erase(communicator_);
}

void PortLine::drop_waiting() {
  for (const Lender lender : lenders_) lines_.drop_unsent(lender);
  lenders_.clear();
}

/// Lenders of different lines have different upper bits. An endpoint's lenders differ in the lower
/// ones, but for operations that are 65,536 uses of one index apart.
Lender PortLine::salted(Lender lender) const {
  constexpr int kShift = 48;
  return Lender{communicator_} << kShift | (lender & ((Lender{1} << kShift) - 1));
}

const PortCapabilities& PortLine::capabilities() const {
  return lines_.port_->capabilities();
}

std::span<TxPacket> PortLine::transmit_frames(std::size_t at_most) {
  return lines_.port_->transmit_frames(at_most);
}

void PortLine::transmit(std::span<TxPacket> packets) {
  for (TxPacket& packet : packets) {
    if (packet.peer != kAllRanks) packet.peer = ranks_.in_job(packet.peer);
    if (packet.lender == kNoLender) continue;
    packet.lender = salted(packet.lender);
    note(packet.lender);
  }
  lines_.port_->transmit(packets);
  last_packet_ = lines_.packets_ += packets.size();
  if (lines_.port_->unsent() == 0) lenders_.clear();
}

void PortLine::note(Lender lender) {
  if (!lenders_.empty() && lenders_.back() == lender) return;
  if (std::find(lenders_.begin(), lenders_.end(), lender) != lenders_.end()) return;
  if (lenders_.size() >= many_lenders_) {
    std::erase_if(lenders_, [this](Lender one) { return !lines_.port_->holds(one); });
    many_lenders_ = std::max(kFewLenders, 2 * lenders_.size());
  }
  lenders_.push_back(lender);
}

/// Where packets leave in order, those of this line are gone once no more wait than were given to
/// the port after them.
std::size_t PortLine::unsent() const {
  const std::size_t waiting = lines_.port_->unsent();
  if (!capabilities().in_order) return waiting;
  return lines_.packets_ >= last_packet_ + waiting ? 0 : waiting;
}

bool PortLine::holds(Lender lender) const {
  return lines_.port_->holds(salted(lender));
}

void PortLine::drop_unsent(Lender lender) {
  lines_.drop_unsent(salted(lender));
}

/// Takes a packet that has arrived. Returns false if no rank of this line sent it.
bool PortLine::take(const RxPacket& packet) {
  const Rank source = own_rank(packet.source);
  if (source == kUnknownRank) return false;
  arrived_.push_back({packet.data, packet.length, source});
  return true;
}

std::span<const RxPacket> PortLine::receive(Time now) {
  if (communicator_ == 0) return lines_.receive_for_all(now);
  taken_.swap(arrived_);
  arrived_.clear();
  return taken_;
}

void PortLine::wait(Time now, Time until) {
  if (!lines_.failure_) lines_.port_->wait(now, until);
}

void PortLine::wake() {
  lines_.port_->wake();
}

BellName PortLine::bell() const {
  return lines_.port_->bell();
}

void PortLine::ring(const BellName& bell) {
  lines_.port_->ring(bell);
}

void PortLine::publish(std::uint32_t tag, std::uint32_t lowest) {
  if (communicator_ == 0) lines_.port_->publish(tag, lowest);
}

PortStatistics PortLine::statistics() const {
  return lines_.port_->statistics();
}

std::optional<Error> PortLine::failure() const {
  auto failure = lines_.port_->failure();
  return failure ? failure : lines_.failure_;
}

PortLines::PortLines(std::unique_ptr<Port> port, std::uint32_t world)
    : port_(std::move(port)), first_(new PortLine(*this, 0, RankMap::of_job(world))) {}

std::unique_ptr<PortLine> PortLines::open(std::uint16_t communicator, std::vector<Rank> ranks) {
  assert(communicator > 0 && !lines_.contains(communicator));
  std::unique_ptr<PortLine> line(new PortLine(*this, communicator, RankMap(std::move(ranks))));
  lines_[communicator] = line.get();
  return line;
}

/// Dropped packets no longer count among those that wait, nor among those that were given.
void PortLines::drop_unsent(Lender lender) {
  const std::size_t before = port_->unsent();
  port_->drop_unsent(lender);
  packets_ -= before - std::min(before, port_->unsent());
}

/// Returns the packets of line 0. Packets of a communicator without a line, and of ranks outside of
/// their line, are among them: the endpoint of line 0 counts and drops them.
std::span<const RxPacket> PortLines::receive_for_all(Time now) {
  const std::span<const RxPacket> batch = port_->receive(now);
  for (const auto& [communicator, line] : lines_) line->arrived_.clear();
  if (lines_.empty()) return batch;
  first_->taken_.clear();
  for (const RxPacket& packet : batch) {
    const std::uint16_t communicator = communicator_of(packet);
    const auto found = communicator == 0 ? lines_.end() : lines_.find(communicator);
    if (found == lines_.end() || !found->second->take(packet)) first_->taken_.push_back(packet);
  }
  return first_->taken_;
}

}  // namespace tarpon
