// What this rank and one peer have told each other in one operation, besides DATA and its credit
// (send_message.h, receive_message.h): whether the peer has begun, what its READY said, and which
// answers are due.
//
// A value. Only its functions change it. Not thread-safe. No clock inside.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "transport/operation/ready_timer.h"
#include "transport/operation_spec.h"
#include "transport/time.h"

namespace tarpon {

struct PeerBegin {
  Time at = kNever;       // kNever: not known
  Duration read_after{};  // age of the packet that told it, as PeerClocks::age()
  Time read = kNever;     // when that packet was read, if before this rank began
};

class PeerExchange {
 public:
  /// This rank's READYs to the peer.
  const ReadyTimer& ready() const { return ready_; }
  ReadyTimer& ready() { return ready_; }

  // -- whether the peer has begun the operation --------------------------------------------------

  /// Whether a packet of the operation has come from the peer.
  bool heard() const { return heard_; }
  /// When the operation began there, as far as known.
  const PeerBegin& begin() const { return begin_; }
  void set_begin(const PeerBegin& begin) { begin_ = begin; }
  /// Takes what a packet of the operation tells. The first packet counts. A later one counts if it
  /// `corrects` that and tells an earlier begin.
  void note_begin(const PeerBegin& told, bool corrects) {
    if (begin_.at == kNever || (corrects && told.at < begin_.at)) begin_ = told;
  }
  /// Takes the first packet: the READYs end, unless this rank asks whether it is late, or
  /// `keeps_asking`. Returns false when the peer was heard before.
  bool note_heard(bool keeps_asking) {
    if (heard_) return false;
    heard_ = true;
    if (!asked_if_late_ && !keeps_asking) ready_.stop();
    return true;
  }
  /// Whether the peer's deadline passed before it could begin.
  bool never_began() const { return never_began_; }
  void set_never_began() { never_began_ = true; }

  // -- what the peer says of its call ------------------------------------------------------------

  /// Of its READY.
  const std::optional<CallTerms>& terms() const { return terms_; }
  void set_terms(const CallTerms& terms) { terms_ = terms; }
  /// As the peer last said it.
  std::uint16_t stage_time() const { return stage_time_; }
  void set_stage_time(std::uint16_t time) { stage_time_ = time; }
  /// Whether the peer runs the operation, a bounded one, in another epoch.
  bool is_in_other_epoch() const { return other_epoch_; }
  void set_other_epoch() { other_epoch_ = true; }

  // -- different signatures ----------------------------------------------------------------------

  bool disagrees() const { return disagrees_; }
  /// The peer's signature differs. Returns whether the peer needs this rank's READY, which carries
  /// the fields: once, and again when the peer `asks` for it.
  bool note_mismatch(bool asks) {
    disagrees_ = true;
    return !std::exchange(has_fields_, true) || asks;
  }
  /// Whether the caller knows the peer's fields.
  bool mismatch_is_told() const { return mismatch_told_; }
  void set_mismatch_told() {
    mismatch_told_ = true;
    ready_.stop();
  }

  // -- questions and answers ---------------------------------------------------------------------

  /// Asks by READY, now, whether the peer has closed the operation without this rank. Returns false
  /// when the peer has not answered the question of before.
  bool ask_if_late(Time now) {
    ready_.ask(now);
    return !std::exchange(asked_if_late_, true);
  }
  /// Whether the peer has not answered ask_if_late().
  bool is_asked_if_late() const { return asked_if_late_; }
  /// The peer has answered, or the answer no longer counts. Returns false when there was no
  /// question. A peer that was not heard gets more READYs: until it is heard, it is not asked for
  /// data.
  bool end_question() {
    if (!std::exchange(asked_if_late_, false)) return false;
    if (heard_) ready_.stop();
    return true;
  }
  /// Asks by READY, now, whether the peer has really passed so many operations. Returns false when
  /// it was asked less than `interval` ago.
  bool check_jump(Time now, Duration interval) {
    if (jump_checked_ != Time{} && now < jump_checked_ + interval) return false;
    jump_checked_ = now;
    ready_.ask(now);
    return true;
  }
  /// Whether the answer to the peer's repeated READYs is queued.
  bool answer_is_queued() const { return answer_queued_; }
  void set_answer_queued(bool queued) { answer_queued_ = queued; }

 private:
  ReadyTimer ready_;
  bool heard_ = false;
  bool never_began_ = false;
  bool other_epoch_ = false;
  bool disagrees_ = false;
  bool has_fields_ = false;  // this rank's READY is on its way there
  bool mismatch_told_ = false;
  bool asked_if_late_ = false;
  bool answer_queued_ = false;
  std::uint16_t stage_time_ = 0;
  PeerBegin begin_;
  Time jump_checked_{};
  std::optional<CallTerms> terms_;
};

}  // namespace tarpon
