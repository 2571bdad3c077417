#include "collectives/executor/coding.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

namespace tarpon {
namespace {

constexpr std::size_t kHugePage = 2 << 20;

}  // namespace

void CodedBufferPool::Deallocate::operator()(float* buffer) const {
  memory->deallocate(buffer, bytes, kHugePage);
}

CodedBufferPool::Buffer CodedBufferPool::allocate(std::uint64_t elements) {
  ++allocations_;
  const std::size_t bytes = (elements * sizeof(float) + kHugePage - 1) / kHugePage * kHugePage;
  // One that is much too large stays for larger calls.
  const auto fits = std::find_if(idle_.begin(), idle_.end(), [bytes](const Idle& one) {
    const std::size_t has = one.buffer.get_deleter().bytes;
    return has >= bytes && has <= 4 * bytes;
  });
  if (fits != idle_.end()) {
    Buffer buffer = std::move(fits->buffer);
    idle_.erase(fits);
    return buffer;
  }
  void* const memory = memory_->allocate(bytes, kHugePage);
  madvise(memory, bytes, MADV_HUGEPAGE);  // rows of a group lie far apart; works without, slower
  return Buffer(static_cast<float*>(memory), Deallocate{memory_, bytes});
}

void CodedBufferPool::release(Buffer buffer) {
  std::erase_if(idle_,
                [this](const Idle& one) { return allocations_ - one.since > kMaxIdleAllocations; });
  const std::size_t bytes = buffer.get_deleter().bytes;
  const auto larger = std::find_if(idle_.begin(), idle_.end(), [bytes](const Idle& one) {
    return one.buffer.get_deleter().bytes >= bytes;
  });
  idle_.insert(larger, {std::move(buffer), allocations_});
  if (idle_.size() > kMaxIdle) idle_.erase(idle_.begin());
}

Coding::Coding(const codec::CodedLayout& layout, codec::SignKey key, CodedBufferPool& buffers)
    : layout_(layout),
      key_(key),
      buffers_(buffers),
      buffer_(buffers.allocate(layout.room())),
      came_(layout.groups, layout.block) {}

Coding::~Coding() {
  buffers_.release(std::move(buffer_));
}

bool Coding::encode(const float* input) {
  if (codec::encode(layout_, key_, {input, layout_.count}, coded())) return true;
  std::fill(coded().begin(), coded().end(), 0.0f);
  return false;
}

void Coding::lose(std::uint64_t row) {
  const std::span<float> elements =
      coded().subspan(row * layout_.row_pitch(), layout_.row_elements());
  std::fill(elements.begin(), elements.end(), 0.0f);
  came_[layout_.group_of(row)] -= layout_.coefficients_in(row);
}

std::vector<Coding::Gap> Coding::decode(float* output) {
  std::vector<float> gains(layout_.groups);
  for (std::uint32_t group = 0; group < layout_.groups; ++group) {
    if (came_[group] == 0) continue;
    gains[group] = static_cast<float>(layout_.block) / static_cast<float>(came_[group]);
  }
  codec::decode(layout_, key_, coded(), gains, {output, layout_.count});
  std::vector<Gap> gaps;
  for (std::uint64_t block = 0; block < layout_.blocks(); ++block) {
    if (came_[block % layout_.groups] > 0) continue;
    const std::uint64_t first = block * layout_.block;
    gaps.push_back({first, std::min<std::uint64_t>(layout_.block, layout_.count - first)});
  }
  return gaps;
}

}  // namespace tarpon
