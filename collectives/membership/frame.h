// Frames of the control mesh: kinds, bytes, and the reader that cuts a byte stream into messages.
//
// A frame is, little-endian: u32 length of the body, u32 word, body of at most 64 KiB. Bits 0 to 7
// of the word are the kind, bits 8 to 23 the communicator (0: that of the job). A message whose
// body is longer is sent as several frames with the same word; all but the last have kMore set.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "collectives/membership/facts.h"
#include "transport/rank_mask.h"

namespace tarpon::mesh {

/// The numbers are part of the wire format. A new kind extends kLastKind and the table in
/// CONTROL_MESH.md.
enum class FrameKind : std::uint32_t {
  fact = 1,             // a Fact: the sender's row of a rank
  passed = 2,           // no body: the receiver's operations are over at the sender
  abort = 3,            // text: why the sender aborted the communicator
  agreement = 4,        // an AgreementMessage
  shrink = 5,           // u8: number of the sender's waiting shrink(), 1 to 255; 0: none waits
  shrink_plan = 6,      // a ShrinkPlan
  votes = 7,            // three u64 masks: asked for a sign of life, silent, holding back
  here = 8,             // no body: the sign of life
  rejoin = 9,           // as shrink, for rejoin()
  rejoin_plan = 10,     // a ShrinkPlan
  epoch_level = 11,     // u32: the sender is calm (0), between (1), lossy (2) or costly (3)
  epoch_question = 12,  // u32 round: how far have your calls come?
  epoch_answer = 13,    // u32 round, u32 latest epoch, u32 tag and u32 next operation of each
  epoch_record = 14,    // u32 epoch, u32 whether coded, u32 tag and u32 first operation of each
  line = 15,            // u8 LineState, u16 of each member: of a communicator other than 0
};
inline constexpr FrameKind kLastKind = FrameKind::line;

struct Frame {
  FrameKind kind = FrameKind::fact;
  std::string body;
  std::uint16_t communicator = 0;
};

inline constexpr std::uint32_t kMore = 1u << 31;
inline constexpr std::size_t kFrameHeaderBytes = 8;
inline constexpr std::size_t kMaxFrameBody = 64u << 10;
/// 65,536 tags of 8 bytes, and room for the rest.
inline constexpr std::size_t kMaxBody = 1u << 20;

/// Appends the frames of a message. Cuts off what exceeds kMaxBody.
void append_frames(std::string& bytes, FrameKind kind, std::string_view body,
                   std::uint16_t communicator = 0);

/// Append and read a little-endian mask. REQUIRES: 8 bytes at `at`.
void append_u64(std::string& bytes, std::uint64_t value);
std::uint64_t read_u64(const char* at);

std::string encode(const Fact& fact);
/// Returns nullopt for a malformed body. Does not check that the rank exists.
std::optional<Fact> decode_fact(std::string_view body);

/// Holds at most one message and one frame. Not thread-safe.
class FrameReader {
 public:
  void append(std::string_view bytes) { bytes_.append(bytes); }
  /// Returns the next whole message. After a frame that no rank sends, returns nullopt, and
  /// broken() is true.
  std::optional<Frame> next();
  bool broken() const { return broken_; }
  std::size_t buffered() const { return bytes_.size() - taken_ + body_.size(); }

 private:
  std::string bytes_;
  std::size_t taken_ = 0;   // bytes of bytes_ that are already read
  std::string body_;        // of the message whose last frame has not arrived
  std::uint32_t word_ = 0;  // of that message, without kMore; 0: there is none
  bool broken_ = false;
};

}  // namespace tarpon::mesh
