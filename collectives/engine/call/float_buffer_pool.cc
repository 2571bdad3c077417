#include "collectives/engine/call/float_buffer_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

namespace tarpon {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = 2 << 20;

// Huge pages pay from this size on. Half precision takes a buffer for every call, even a small one.
constexpr std::size_t kLarge = 1 << 20;

std::size_t page_of(std::size_t bytes) {
  return bytes >= kLarge ? kHugePage : kPage;
}

std::size_t whole_pages(std::uint64_t elements) {
  const std::size_t bytes = std::max<std::size_t>(elements * sizeof(float), 1);
  return (bytes + page_of(bytes) - 1) / page_of(bytes) * page_of(bytes);
}

/// A buffer that is much too large is kept for larger calls.
bool fits(std::size_t has, std::size_t bytes) {
  return has >= bytes && has <= 4 * bytes;
}

}  // namespace

void FloatBufferPool::Deallocate::operator()(float* buffer) const {
  memory->deallocate(buffer, bytes, page_of(bytes));
}

FloatBufferPool::Buffer FloatBufferPool::allocate(std::uint64_t elements) {
  ++allocations_;
  const std::size_t bytes = whole_pages(elements);
  const auto idle = std::find_if(idle_.begin(), idle_.end(), [bytes](const Idle& one) {
    return fits(one.buffer.get_deleter().bytes, bytes);
  });
  if (idle != idle_.end()) {
    Buffer buffer = std::move(idle->buffer);
    idle_.erase(idle);
    return buffer;
  }
  const auto fresh = std::find_if(fresh_.begin(), fresh_.end(), [bytes](const Buffer& one) {
    return fits(one.get_deleter().bytes, bytes);
  });
  if (fresh == fresh_.end()) return make(bytes);
  Buffer buffer = std::move(*fresh);
  fresh_.erase(fresh);
  return buffer;
}

FloatBufferPool::Buffer FloatBufferPool::make(std::size_t bytes) {
  void* const memory = memory_->allocate(bytes, page_of(bytes));
  // Huge pages help because rows of a group lie far apart. Without them it works, but slower.
  if (page_of(bytes) == kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
  return Buffer(static_cast<float*>(memory), Deallocate{memory_, bytes});
}

void FloatBufferPool::release(Buffer buffer) {
  std::erase_if(idle_,
                [this](const Idle& one) { return allocations_ - one.since > kMaxIdleAllocations; });
  keep(std::move(buffer));
}

void FloatBufferPool::keep(Buffer buffer) {
  const std::size_t bytes = buffer.get_deleter().bytes;
  const auto larger = std::find_if(idle_.begin(), idle_.end(), [bytes](const Idle& one) {
    return one.buffer.get_deleter().bytes >= bytes;
  });
  idle_.insert(larger, {std::move(buffer), allocations_});
  if (idle_.size() > kMaxIdle) idle_.erase(idle_.begin());
}

void FloatBufferPool::prepare(std::span<const std::uint64_t> elements) {
  std::vector<std::size_t> have;
  std::uint64_t prepared = 0;
  for (const Idle& one : idle_) have.push_back(one.buffer.get_deleter().bytes);
  for (const Buffer& one : fresh_) {
    have.push_back(one.get_deleter().bytes);
    prepared += have.back();
  }
  std::size_t buffers = have.size();
  for (const std::uint64_t wanted : elements) {
    const std::size_t bytes = whole_pages(wanted);
    const auto found = std::find_if(have.begin(), have.end(),
                                    [bytes](std::size_t one) { return fits(one, bytes); });
    if (found != have.end()) {
      have.erase(found);
      continue;
    }
    if (buffers == kMaxIdle || prepared + bytes > kMaxPrepared) continue;
    try {
      fresh_.push_back(make(bytes));
    } catch (const std::bad_alloc&) {
      return;
    }
    ++buffers;
    prepared += bytes;
  }
}

Piece FloatBufferPool::take_piece(std::uint64_t piece_bytes) {
  touched_ = std::move(fresh_.front());
  fresh_.erase(fresh_.begin());
  const Deallocate& of = touched_->get_deleter();
  const std::size_t count = std::min<std::size_t>(of.bytes - of.touched, piece_bytes);
  return {count,
          [this](std::uint64_t first, std::uint64_t bytes) { touch(*touched_, first + bytes); },
          of.touched, count};
}

void FloatBufferPool::piece_ended() {
  Buffer one = std::move(*touched_);
  touched_.reset();
  if (one.get_deleter().touched < one.get_deleter().bytes) {
    fresh_.insert(fresh_.begin(), std::move(one));
  } else {
    keep(std::move(one));
  }
}

void FloatBufferPool::touch(Buffer& buffer, std::size_t to) {
  auto* const memory = reinterpret_cast<volatile std::byte*>(buffer.get());
  std::size_t& touched = buffer.get_deleter().touched;
  for (std::size_t at = touched; at < to; at += kPage) memory[at] = std::byte{};
  touched = std::max(touched, to);
}

}  // namespace tarpon
