// The coded bucket of one call: rows out of the input, and the result out of rows.
//
// Buffers for coded buckets are kept from call to call: fresh memory would cost a page fault for
// every 4 KiB, more than coding does. Before the codec is turned on, buffers for the first coded
// calls are made and touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <vector>

#include "codec/hadamard.h"
#include "collectives/piece.h"

namespace tarpon {

/// Memory for coded buckets. Not thread-safe.
class CodedBufferPool {
 public:
  struct Deallocate {
    std::pmr::memory_resource* memory = nullptr;
    std::size_t bytes = 0;
    std::size_t touched = 0;  // bytes from the first on whose pages are there
    void operator()(float* buffer) const;
  };
  using Buffer = std::unique_ptr<float, Deallocate>;

  /// `memory` outlives the pool and its buffers.
  explicit CodedBufferPool(std::pmr::memory_resource* memory = std::pmr::new_delete_resource())
      : memory_(memory) {}

  /// Aligned to a page, at least `elements`, with the contents of its last use. Throws
  /// std::bad_alloc.
  Buffer allocate(std::uint64_t elements);

  /// Keeps the buffer for later calls. Frees buffers that have been idle for long, and the smallest
  /// one when there are too many.
  void release(Buffer buffer);

  /// Makes a buffer for each of these sizes, unless an idle one fits: up to kMaxIdle buffers and
  /// kMaxPrepared bytes in all. Stops where memory is refused.
  void prepare(std::span<const std::uint64_t> elements);

  /// Buffers that prepare() has made, and no call has taken, are touched piece by piece. They are
  /// idle then.
  bool has_piece() const { return !fresh_.empty() && !touched_; }
  /// The next piece. It runs until piece_ended(). REQUIRES: has_piece().
  Piece take_piece(std::uint64_t piece_bytes);
  void piece_ended();

  /// Writes to every page up to byte `to` that has not been touched yet.
  static void touch(Buffer& buffer, std::size_t to);

 private:
  static constexpr std::uint64_t kMaxPrepared = 2ull << 30;
  static constexpr std::size_t kMaxIdle = 8;
  static constexpr std::uint64_t kMaxIdleAllocations = 64;  // by others, without need of it
  struct Idle {
    Buffer buffer;
    std::uint64_t since = 0;  // allocations_ then
  };
  Buffer make(std::size_t bytes);
  void keep(Buffer buffer);

  std::pmr::memory_resource* memory_;
  std::vector<Idle> idle_;  // the smallest one first
  std::vector<Buffer> fresh_;
  std::optional<Buffer> touched_;  // by the piece that runs
  std::uint64_t allocations_ = 0;
};

class Coding {
 public:
  /// `buffers` outlives it. Throws std::bad_alloc.
  Coding(const codec::CodedLayout& layout, codec::SignKey key, CodedBufferPool& buffers);
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
  void touch(std::uint64_t to) { CodedBufferPool::touch(buffer_, to); }
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
  /// stand for all of the block: the estimate is unbiased.
  void decode(float* output, codec::MemberRange members);

 private:
  std::span<float> coded() { return {buffer_.get(), layout_.room()}; }

  const codec::CodedLayout layout_;
  const codec::SignKey key_;
  CodedBufferPool& buffers_;
  CodedBufferPool::Buffer buffer_;
  std::vector<std::uint32_t> came_;  // by group: coefficients of each of its blocks
  std::vector<float> gains_;         // by group, for decode()
  bool finite_ = true;
};

}  // namespace tarpon
