// The coded bucket of one call: encodes the input into rows, and decodes rows into the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "codec/hadamard.h"
#include "collectives/engine/call/float_buffer_pool.h"

namespace tarpon {

class Coding {
 public:
  /// `buffers` outlives it. Throws std::bad_alloc.
  Coding(const codec::CodedLayout& layout, codec::SignKey key, FloatBufferPool& buffers);
  ~Coding();
  Coding(const Coding&) = delete;
  Coding& operator=(const Coding&) = delete;

  const codec::CodedLayout& layout() const { return layout_; }
  codec::SignKey key() const { return key_; }
  std::uint32_t row_bytes() const { return layout_.row_elements() * sizeof(float); }
  std::uint64_t block_bytes() const { return layout_.block * sizeof(float); }
  std::uint32_t row_pitch_bytes() const { return layout_.row_pitch() * sizeof(float); }
  /// The row that begins at this byte of data().
  std::uint64_t row_at(std::uint64_t byte) const { return byte / row_pitch_bytes(); }
  std::byte* data() { return reinterpret_cast<std::byte*>(buffer_.get()); }

  /// Bytes of the rows that have been touched; fewer than all in a fresh buffer. The rows of a
  /// member are far apart, so encoding the first member would fault in the pages of all.
  std::uint64_t touched() const;
  void touch(std::uint64_t to) { FloatBufferPool::touch(buffer_, to); }
  std::uint64_t rows_bytes() const { return layout_.room() * sizeof(float); }

  /// Encodes the elements of some members.
  void encode(const float* input, codec::MemberRange members);
  /// False once an element was NaN or infinite: the rows are undefined until they are cleared.
  bool finite() const { return finite_; }
  /// Sets rows to zero.
  void clear(std::uint64_t first_row, std::uint64_t rows);

  /// Notes that a row is missing. It has to be cleared before its members are decoded.
  void lose(std::uint64_t row);

  /// Elements of blocks of which no coefficient arrived.
  struct Gap {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
  };
  /// Called once all missing rows are known. Returns the gaps, which decode() does not write.
  std::vector<Gap> start_decoding();
  /// Writes the elements of some members, except the gaps. The coefficients of a block that arrived
  /// stand for all of the block: the estimate is unbiased if at least half of them arrived. With
  /// fewer it is drawn towards zero, so that its error is no larger than that of zeros.
  void decode(float* output, codec::MemberRange members);

 private:
  std::span<float> coded() { return {buffer_.get(), layout_.room()}; }

  const codec::CodedLayout layout_;
  const codec::SignKey key_;
  FloatBufferPool& buffers_;
  FloatBufferPool::Buffer buffer_;
  std::vector<std::uint32_t> came_;  // by group: arrived coefficients of each block
  std::vector<float> gains_;         // by group, for decode()
  bool finite_ = true;
};

}  // namespace tarpon
