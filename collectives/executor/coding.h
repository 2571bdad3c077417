// The coded bucket of one call: rows out of the input, and the result out of rows.
//
// Room for coded buckets is kept from call to call: fresh memory would cost a page fault for every
// 4 KiB, more than coding does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "codec/hadamard.h"

namespace tarpon {

/// Memory for coded buckets. Not thread-safe.
class CodedRooms {
 public:
  struct Unmap {
    std::size_t bytes = 0;
    void operator()(float* room) const;
  };
  using Room = std::unique_ptr<float, Unmap>;

  /// At a page, at least `elements`, with what it held before. Throws std::bad_alloc.
  Room take(std::uint64_t elements);
  void give_back(Room room);

 private:
  static constexpr std::size_t kKept = 8;
  static constexpr std::uint64_t kPatience = 64;  // takes without need of it
  struct Kept {
    Room room;
    std::uint64_t since = 0;  // taken_ then
  };
  std::vector<Kept> kept_;  // the smallest one first
  std::uint64_t taken_ = 0;
};

class Coding {
 public:
  /// `rooms` outlives it.
  Coding(const codec::CodedLayout& layout, codec::SignKey key, CodedRooms& rooms);
  ~Coding();
  Coding(const Coding&) = delete;
  Coding& operator=(const Coding&) = delete;

  const codec::CodedLayout& layout() const { return layout_; }
  codec::SignKey key() const { return key_; }
  std::uint32_t row_bytes() const { return layout_.row_elements() * sizeof(float); }
  std::uint32_t row_pitch_bytes() const { return layout_.row_pitch() * sizeof(float); }
  /// The row that begins at this byte of data().
  std::uint64_t row_at(std::uint64_t byte) const { return byte / row_pitch_bytes(); }
  std::byte* data() { return reinterpret_cast<std::byte*>(room_.get()); }

  /// False when an element is NaN or infinite: all rows are zero then.
  bool encode(const float* input);

  /// This row has not come: to be said before decode().
  void lose(std::uint64_t row);

  /// Of these elements nothing has come.
  struct Gap {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
  };
  /// Into `output`, all but the gaps, which it returns. What has come of a block stands for all of
  /// it: a result is too large by nothing on average.
  std::vector<Gap> decode(float* output);

 private:
  std::span<float> coded() { return {room_.get(), layout_.room()}; }

  const codec::CodedLayout layout_;
  const codec::SignKey key_;
  CodedRooms& rooms_;
  CodedRooms::Room room_;
  std::vector<std::uint32_t> came_;  // by group: coefficients of each of its blocks
};

}  // namespace tarpon
