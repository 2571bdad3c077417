#include "transport/operation_view.h"

#include "transport/endpoint/contract.h"
#include "transport/operation/operation.h"
#include "transport/peers/participants.h"

namespace tarpon {

const Operation& OperationView::open(const char* what) const {
  require(operation_ != nullptr, what);
  return *operation_;
}

MessageProgress OperationView::progress(std::uint8_t stage, Rank peer) const {
  const Operation& operation = open("progress() of an open operation");
  require(stage < operation.stage_count, "progress() of a stage of the operation");
  MessageProgress result;
  if (peer >= operation.peers.size()) return result;
  const PeerExchange& exchange = operation.peers[peer];
  result.heard = exchange.heard() && !exchange.disagrees();
  if (result.heard) result.begun = exchange.begin().at;
  if (const ReceiveMessage* message = operation.stages[stage].receive_from(peer)) {
    result.slots = message->slots();
    result.end = message->arrivals().presence().end();
    result.received = message->received();
    result.bytes = message->received_bytes();
    result.all_bytes = message->lengths().sum(message->slots(), [](std::uint32_t) { return true; });
  }
  return result;
}

std::uint64_t OperationView::awaited_near() const {
  return open("awaited_near() of an open operation").awaited_near;
}

std::uint16_t OperationView::stage_time(Rank peer) const {
  const Operation& operation = open("stage_time() of an open operation");
  require(peer < operation.peers.size(), "stage_time() of a rank");
  return operation.peers[peer].stage_time();
}

std::optional<CallTerms> OperationView::terms(Rank peer) const {
  const Operation& operation = open("terms() of an open operation");
  require(peer < operation.peers.size(), "terms() of a rank");
  return operation.peers[peer].terms();
}

std::uint64_t OperationView::first_half() const {
  return open("first_half() of an open operation").clock.first_half();
}

bool OperationView::acknowledged(std::uint8_t stage) const {
  const Operation& operation = open("acknowledged() of an open operation");
  require(stage < operation.stage_count, "acknowledged() of a stage of the operation");
  return operation.stages[stage].unacknowledged == 0;
}

std::uint64_t OperationView::unacknowledged() const {
  return unconfirmed_by(open("unacknowledged() of an open operation"));
}

bool OperationView::is_stranded() const {
  return stranded(open("is_stranded() of an open operation"));
}

bool OperationView::has_closed(std::uint8_t stage) const {
  const Operation& operation = open("has_closed() of an open operation");
  require(stage < operation.stage_count, "has_closed() of a stage of the operation");
  return operation.stages[stage].closed;
}

bool OperationView::sent(std::uint8_t stage) const {
  const Operation& operation = open("sent() of an open operation");
  require(stage < operation.stage_count, "sent() of a stage of the operation");
  for (const SendMessage& message : operation.stages[stage].sends) {
    if (message.is_done() || message.has_all_left()) continue;
    if (operation.peers[message.peer()].heard() || message.has_credit()) return false;
  }
  return true;
}

bool OperationView::in_doubt() const {
  return operation_ != nullptr && operation_->inquiry.is_on();
}

Marks OperationView::marks() const {
  return operation_ == nullptr ? Marks{} : operation_->marks;
}

bool OperationView::takes_no_part(Rank peer) const {
  return operation_ != nullptr && peer != self_ &&
         participants_.excludes(peer, operation_->tag, operation_->number);
}

}  // namespace tarpon
