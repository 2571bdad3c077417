#include "collectives/membership/frame.h"

#include <algorithm>

#include "collectives/rendezvous/control_frame.h"

namespace tarpon::mesh {
namespace {

using rendezvous::append_u32;
using rendezvous::read_u32;

constexpr std::uint32_t kServes = 1, kWithoutMajority = 2;
constexpr std::size_t kFactBytes = 16;  // rank, standing, flags, length of the evidence
constexpr std::size_t kNumberBytes = 8;
constexpr std::size_t kMaxEvidence = 512;

constexpr int kCommunicatorShift = 8;
constexpr std::uint32_t kKindMask = 0xff;
constexpr std::uint32_t kReserved = 0x7f000000;

}  // namespace

void append_frames(std::string& bytes, FrameKind kind, std::string_view body,
                   std::uint16_t communicator) {
  body = body.substr(0, kMaxBody);
  const std::uint32_t word = static_cast<std::uint32_t>(kind) |
                             static_cast<std::uint32_t>(communicator) << kCommunicatorShift;
  while (true) {
    const std::string_view piece = body.substr(0, kMaxFrameBody);
    body.remove_prefix(piece.size());
    append_u32(bytes, static_cast<std::uint32_t>(piece.size()));
    append_u32(bytes, word | (body.empty() ? 0 : kMore));
    bytes += piece;
    if (body.empty()) return;
  }
}

void append_u64(std::string& bytes, std::uint64_t value) {
  append_u32(bytes, static_cast<std::uint32_t>(value));
  append_u32(bytes, static_cast<std::uint32_t>(value >> 32));
}

std::uint64_t read_u64(const char* at) {
  return read_u32(at) | std::uint64_t{read_u32(at + 4)} << 32;
}

std::string encode(const Fact& fact) {
  std::string body;
  const std::string evidence = fact.evidence.substr(0, kMaxEvidence);
  append_u32(body, fact.rank);
  append_u32(body, static_cast<std::uint32_t>(fact.standing));
  append_u32(body, (fact.serves ? kServes : 0) | (fact.without_majority ? kWithoutMajority : 0));
  append_u32(body, static_cast<std::uint32_t>(evidence.size()));
  body += evidence;
  for (const NextNumber& next : fact.next_numbers) {
    append_u32(body, next.tag);
    append_u32(body, next.number);
  }
  return body;
}

std::optional<Fact> decode_fact(std::string_view body) {
  if (body.size() < kFactBytes) return std::nullopt;
  const std::uint32_t rank = read_u32(body.data());
  const std::uint32_t standing = read_u32(body.data() + 4);
  const std::uint32_t flags = read_u32(body.data() + 8);
  const std::uint32_t evidence = read_u32(body.data() + 12);
  body.remove_prefix(kFactBytes);
  if (rank > UINT16_MAX || standing > static_cast<std::uint32_t>(Standing::dead)) {
    return std::nullopt;
  }
  if (evidence > std::min(kMaxEvidence, body.size())) return std::nullopt;
  Fact fact{.rank = static_cast<Rank>(rank),
            .standing = static_cast<Standing>(standing),
            .evidence = std::string(body.substr(0, evidence)),
            .without_majority = (flags & kWithoutMajority) != 0,
            .serves = (flags & kServes) != 0,
            .next_numbers = {}};
  body.remove_prefix(evidence);
  if (body.size() % kNumberBytes != 0) return std::nullopt;
  for (; !body.empty(); body.remove_prefix(kNumberBytes)) {
    fact.next_numbers.push_back({read_u32(body.data()), read_u32(body.data() + 4)});
  }
  return fact;
}

std::optional<Frame> FrameReader::next() {
  while (!broken_ && bytes_.size() - taken_ >= kFrameHeaderBytes) {
    const std::uint32_t length = read_u32(bytes_.data() + taken_);
    const std::uint32_t word = read_u32(bytes_.data() + taken_ + 4);
    const std::uint32_t kind = word & kKindMask;
    const bool known = kind >= 1 && kind <= static_cast<std::uint32_t>(kLastKind);
    if (!known || (word & kReserved) != 0 || length > kMaxFrameBody ||
        (word_ != 0 && (word & ~kMore) != word_) || length > kMaxBody - body_.size()) {
      broken_ = true;
      break;
    }
    if (bytes_.size() - taken_ - kFrameHeaderBytes < length) break;
    body_.append(bytes_, taken_ + kFrameHeaderBytes, length);
    taken_ += kFrameHeaderBytes + length;
    word_ = word & ~kMore;
    if ((word & kMore) != 0) continue;
    word_ = 0;
    return Frame{static_cast<FrameKind>(kind), std::exchange(body_, {}),
                 static_cast<std::uint16_t>(word >> kCommunicatorShift)};
  }
  bytes_.erase(0, std::exchange(taken_, 0));
  return std::nullopt;
}

}  // namespace tarpon::mesh
