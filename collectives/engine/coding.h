// The coded bucket of one call: rows out of the input, and the result out of rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "codec/hadamard.h"
#include "collectives/engine/float_buffer_pool.h"

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

  /// How many bytes of the rows have been touched; fewer than all in a fresh buffer. Rows of a
  /// member are far apart: the first one to be encoded would pay for the pages of all.
  std::uint64_t touched() const;
  void touch(std::uint64_t to) { FloatBufferPool::touch(buffer_, to); }
  std::uint64_t rows_bytes() const { return layout_.room() * sizeof(float); }

  /// Encodes the elements of some members.
  void encode(const float* input, codec::MemberRange members);
  /// False once an element was NaN or infinite: the rows are undefined until they are cleared.
  bool finite() const { return finite_; }
  /// Makes rows zero.
  void clear(std::uint64_t first_row, std::uint64_t rows);

  /// This row is missing: it has to be cleared before its members are decoded.
  void lose(std::uint64_t row);

  /// Elements of which no coefficient is here.
  struct Gap {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
  };
  /// Once all missing rows are known: where decode() will write nothing.
  std::vector<Gap> start_decoding();
  /// Writes the elements of some members but the gaps. The coefficients of a block that are here
  /// stand for all of the block: the estimate is unbiased where at least half of them are. Where
  /// fewer are, it is drawn towards zero, so that it costs no more than zeros would.
  void decode(float* output, codec::MemberRange members);

 private:
  std::span<float> coded() { return {buffer_.get(), layout_.room()}; }

  const codec::CodedLayout layout_;
  const codec::SignKey key_;
  FloatBufferPool& buffers_;
  FloatBufferPool::Buffer buffer_;
  std::vector<std::uint32_t> came_;  // by group: coefficients of each of its blocks
  std::vector<float> gains_;         // by group, for decode()
  bool finite_ = true;
};

}  // namespace tarpon
