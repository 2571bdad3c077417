#include "collectives/engine/coded/coding.h"

#include <algorithm>

namespace tarpon {
namespace {

// If a share p of a block's coefficients has arrived, the gain 1 / p makes the squared error
// (1 - p) / p times the block's own square. Below p = 1/2 that exceeds the error of zeros. The
// gain 2 makes it (1 - 2 p)^2 + 4 p (1 - p) = 1.
constexpr float kLargestGain = 2;

}  // namespace

Coding::Coding(const codec::CodedLayout& layout, codec::SignKey key, FloatBufferPool& buffers)
    : layout_(layout),
      key_(key),
      buffers_(buffers),
      buffer_(buffers.allocate(layout.room())),
      came_(layout.groups, layout.block) {}

Coding::~Coding() {
  buffers_.release(std::move(buffer_));
}

std::uint64_t Coding::touched() const {
  return std::min<std::uint64_t>(buffer_.get_deleter().touched, rows_bytes());
}

void Coding::encode(const float* input, codec::MemberRange members) {
  if (!codec::encode(layout_, key_, members, {input, layout_.count}, coded())) finite_ = false;
}

void Coding::clear(std::uint64_t first_row, std::uint64_t rows) {
  const std::span<float> elements =
      coded().subspan(first_row * layout_.row_pitch(), rows * layout_.row_pitch());
  std::fill(elements.begin(), elements.end(), 0.0f);
}

void Coding::lose(std::uint64_t row) {
  came_[layout_.group_of(row)] -= layout_.coefficients_in(row);
}

std::vector<Coding::Gap> Coding::start_decoding() {
  gains_.assign(layout_.groups, 0);
  bool all = true;
  for (std::uint32_t group = 0; group < layout_.groups; ++group) {
    if (came_[group] == 0) {
      all = false;
    } else {
      gains_[group] = std::min(
          kLargestGain, static_cast<float>(layout_.block) / static_cast<float>(came_[group]));
    }
  }
  std::vector<Gap> gaps;
  if (all) return gaps;
  for (std::uint64_t block = 0; block < layout_.blocks(); ++block) {
    if (came_[block % layout_.groups] > 0) continue;
    const std::uint64_t first = block * layout_.block;
    gaps.push_back({first, std::min<std::uint64_t>(layout_.block, layout_.count - first)});
  }
  return gaps;
}

void Coding::decode(float* output, codec::MemberRange members) {
  codec::decode(layout_, key_, members, coded(), gains_, {output, layout_.count});
}

}  // namespace tarpon
