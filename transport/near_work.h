// What the caller of an endpoint knows of an open operation by other ways than packets.
//
// Not thread-safe.
#pragma once

#include <cstdint>

#include "transport/operation_news.h"
#include "transport/operation_spec.h"
#include "transport/rank.h"
#include "transport/time.h"

namespace tarpon {

class OpenOperation;
class Receiver;

/// Valid until the endpoint's next call that is not const.
class NearWork {
 public:
  /// `peer` has begun the operation, with `signature`. If that is another one, the endpoint tells
  /// it as Event::Kind::mismatch, once, whether a packet says it too or not. REQUIRES: the peer is
  /// one of OperationSpec::near.
  void begun(Rank peer, const Signature& signature, Time now);

  /// Bounded: ranks have set their marks, as a peer has told. What this rank sends from now on says
  /// so.
  void marked(const Marks& told);

  /// The near peers go on without this rank: it is late (OpenOperation), and fetches the messages
  /// of ReceiveSpec::if_late. The endpoint tells Event::Kind::late. REQUIRES: the operation is
  /// bounded.
  void left_out(Time now);

  /// This rank lacks data of these peers at present, for blame and for the status socket. Bit r:
  /// rank r.
  void awaits(std::uint64_t peers);

  /// Nothing more comes of `stage` by other ways than packets. Closes it if its messages have come
  /// too. REQUIRES: StageSpec::closed_by_caller.
  void close(std::uint8_t stage, Time now);

 private:
  friend class Endpoint;
  NearWork(OpenOperation& operation, Receiver& receiver)
      : operation_(operation), receiver_(receiver) {}

  OpenOperation& operation_;
  Receiver& receiver_;
};

}  // namespace tarpon
