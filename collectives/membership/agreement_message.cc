// Messages of Communicator::agree() on the wire (CONTROL_MESH.md).
#include <bit>
#include <cstdint>

#include "collectives/membership/agreement.h"

namespace tarpon {
namespace {

constexpr std::size_t kMessageBytes = 88;

void append(std::string& bytes, std::uint64_t value, int width) {
  for (int i = 0; i < width; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
}

std::uint64_t read(std::string_view bytes, std::size_t at, std::size_t width) {
  std::uint64_t value = 0;
  for (std::size_t i = width; i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  }
  return value;
}

}  // namespace

std::string encode(const AgreementMessage& message) {
  std::string bytes;
  append(bytes, static_cast<std::uint8_t>(message.kind), 1);
  append(bytes, message.report.nonfinite ? 1 : 0, 1);
  append(bytes, static_cast<std::uint8_t>(message.verdict.verdict), 1);
  append(bytes, 0, 1);
  append(bytes, message.verdict.decided_by, 4);
  append(bytes, message.step, 8);
  append(bytes, std::bit_cast<std::uint64_t>(message.report.lost_fraction), 8);
  append(bytes, std::bit_cast<std::uint64_t>(message.verdict.lost_fraction), 8);
  append(bytes, message.verdict.reporters, 8);
  append(bytes, message.verdict.rejoin, 8);
  append(bytes, message.report.late, 8);
  append(bytes, message.report.digest, 8);
  append(bytes, message.verdict.differing, 8);
  append(bytes, message.verdict.gone, 8);
  append(bytes, message.patience_ms, 4);
  append(bytes, message.verdict.detail.size(), 4);
  return bytes + message.verdict.detail;
}

std::optional<AgreementMessage> decode_agreement(std::string_view body) {
  if (body.size() < kMessageBytes) return std::nullopt;
  const std::uint64_t kind = read(body, 0, 1);
  const std::uint64_t verdict = read(body, 2, 1);
  if (kind < 1 || kind > 4 || verdict > 2) return std::nullopt;
  if (read(body, 84, 4) != body.size() - kMessageBytes) return std::nullopt;
  AgreementMessage message;
  message.kind = static_cast<AgreementMessage::Kind>(kind);
  message.step = read(body, 8, 8);
  message.report.nonfinite = read(body, 1, 1) != 0;
  message.report.lost_fraction = std::bit_cast<double>(read(body, 16, 8));
  message.patience_ms = static_cast<std::uint32_t>(read(body, 80, 4));
  message.verdict.verdict = static_cast<Verdict>(verdict);
  message.verdict.step = message.step;
  message.verdict.decided_by = static_cast<Rank>(read(body, 4, 4));
  message.verdict.lost_fraction = std::bit_cast<double>(read(body, 24, 8));
  message.verdict.reporters = read(body, 32, 8);
  message.verdict.rejoin = read(body, 40, 8);
  message.report.late = read(body, 48, 8);
  message.report.digest = read(body, 56, 8);
  message.verdict.differing = read(body, 64, 8);
  message.verdict.gone = read(body, 72, 8);
  message.verdict.detail = body.substr(kMessageBytes);
  return message;
}

}  // namespace tarpon
