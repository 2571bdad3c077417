// Messages of Communicator::agree() on the wire (CONTROL_MESH.md, PROTOCOL.md).
#include <cstring>

#include "collectives/membership/agreement.h"
#include "transport/rank_mask.h"

namespace tarpon {
namespace {

constexpr std::uint8_t kLastKind = 4;

}  // namespace

AgreementPayload pack(const AgreementMessage& message) {
  AgreementPayload payload;
  payload.kind = static_cast<std::uint8_t>(message.kind);
  payload.nonfinite = message.report.nonfinite ? 1 : 0;
  payload.verdict = static_cast<std::uint8_t>(message.verdict.verdict);
  payload.decided_by = message.verdict.decided_by;
  payload.step = message.step;
  payload.report_lost = message.report.lost_fraction;
  payload.verdict_lost = message.verdict.lost_fraction;
  payload.reporters = message.verdict.reporters;
  payload.rejoin = message.verdict.rejoin;
  payload.late =
      message.report.late | message.verdict.late;  // a report has the one, a verdict the other
  payload.digest = message.report.digest;
  payload.differing = message.verdict.differing;
  payload.gone = message.verdict.gone;
  payload.patience_ms = message.patience_ms;
  return payload;
}

std::optional<AgreementMessage> unpack(const AgreementPayload& payload, std::uint32_t world_size) {
  if (payload.kind < 1 || payload.kind > kLastKind) return std::nullopt;
  if (payload.verdict >= AgreementPayload::kVerdicts) return std::nullopt;
  const std::uint64_t named =
      payload.reporters | payload.rejoin | payload.late | payload.differing | payload.gone;
  if (payload.decided_by >= world_size || (named & ~first_ranks(world_size)) != 0) {
    return std::nullopt;
  }
  if (!(payload.verdict_lost >= 0 && payload.verdict_lost <= 1)) return std::nullopt;
  AgreementMessage message;
  message.kind = static_cast<AgreementMessage::Kind>(payload.kind);
  message.step = payload.step;
  message.report = {payload.report_lost, payload.nonfinite != 0, payload.late, payload.digest};
  message.patience_ms = payload.patience_ms;
  message.verdict.verdict = static_cast<Verdict>(payload.verdict);
  message.verdict.step = payload.step;
  message.verdict.lost_fraction = payload.verdict_lost;
  message.verdict.reporters = payload.reporters;
  message.verdict.decided_by = static_cast<Rank>(payload.decided_by);
  message.verdict.rejoin = payload.rejoin;
  message.verdict.differing = payload.differing;
  message.verdict.gone = payload.gone;
  message.verdict.late = payload.late;
  return message;
}

std::string encode(const AgreementMessage& message) {
  AgreementPayload payload = pack(message);
  payload.text_bytes = static_cast<std::uint32_t>(message.verdict.detail.size());
  std::string bytes(sizeof payload, '\0');
  std::memcpy(bytes.data(), &payload, sizeof payload);
  return bytes + message.verdict.detail;
}

std::optional<AgreementMessage> decode_agreement(std::string_view body, std::uint32_t world_size) {
  AgreementPayload payload;
  if (body.size() < sizeof payload) return std::nullopt;
  std::memcpy(&payload, body.data(), sizeof payload);
  if (payload.text_bytes != body.size() - sizeof payload) return std::nullopt;
  auto message = unpack(payload, world_size);
  if (message) message->verdict.detail = body.substr(sizeof payload);
  return message;
}

}  // namespace tarpon
