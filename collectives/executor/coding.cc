#include "collectives/executor/coding.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

namespace tarpon {
namespace {

constexpr std::size_t kHugePage = 2 << 20;

}  // namespace

void CodedRooms::Unmap::operator()(float* room) const {
  munmap(room, bytes);
}

CodedRooms::Room CodedRooms::take(std::uint64_t elements) {
  ++taken_;
  const std::size_t bytes = (elements * sizeof(float) + kHugePage - 1) / kHugePage * kHugePage;
  // One that is much too large is left to those that need it, or to go.
  const auto fits = std::find_if(kept_.begin(), kept_.end(), [bytes](const Kept& one) {
    const std::size_t has = one.room.get_deleter().bytes;
    return has >= bytes && has <= 4 * bytes;
  });
  if (fits != kept_.end()) {
    Room room = std::move(fits->room);
    kept_.erase(fits);
    return room;
  }
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  madvise(memory, bytes, MADV_HUGEPAGE);  // rows of a group lie far apart; as good without, slower
  return Room(static_cast<float*>(memory), Unmap{bytes});
}

/// Those go that nobody has needed for long, and the smallest one where there are too many.
void CodedRooms::give_back(Room room) {
  std::erase_if(kept_, [this](const Kept& one) { return taken_ - one.since > kPatience; });
  const std::size_t bytes = room.get_deleter().bytes;
  const auto larger = std::find_if(kept_.begin(), kept_.end(), [bytes](const Kept& one) {
    return one.room.get_deleter().bytes >= bytes;
  });
  kept_.insert(larger, {std::move(room), taken_});
  if (kept_.size() > kKept) kept_.erase(kept_.begin());
}

Coding::Coding(const codec::CodedLayout& layout, codec::SignKey key, CodedRooms& rooms)
    : layout_(layout),
      key_(key),
      rooms_(rooms),
      room_(rooms.take(layout.room())),
      came_(layout.groups, layout.block) {}

Coding::~Coding() {
  rooms_.give_back(std::move(room_));
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
