// Which packets of one direction have come: a packet counts once (as in RFC 4303, section 3.4.3).
//
// Not thread-safe.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace tarpon::seal {

class ReplayWindow {
 public:
  /// Packets that may overtake one another: several flows and GSO trains. A packet that is as many
  /// numbers behind the highest one counts as a replay.
  static constexpr std::uint64_t kNumbers = 4096;

  /// The number, of those that end in the low `bits` bits of `low`, that is nearest to the highest
  /// one so far.
  std::uint64_t number(std::uint32_t low, unsigned bits) const {
    const std::uint64_t period = std::uint64_t{1} << bits;
    const std::uint64_t near = (highest_ & ~(period - 1)) | low;
    if (near + period / 2 < highest_) return near + period;
    if (near > highest_ + period / 2 && near >= period) return near - period;
    return near;
  }

  /// Whether no packet of that number has come, as far as the window says.
  bool is_fresh(std::uint64_t number) const {
    if (number > highest_ || empty_) return true;
    if (highest_ - number >= kNumbers) return false;
    return (word(number) >> (number % 64) & 1) == 0;
  }

  /// The packet has come, and its tag is right. REQUIRES: is_fresh(number).
  void note(std::uint64_t number) {
    if (empty_ || number > highest_) {
      if (empty_ || number - highest_ >= kNumbers) {
        words_.fill(0);
      } else {
        for (std::uint64_t at = highest_ / 64 + 1; at <= number / 64; ++at) words_[at % kWords] = 0;
      }
      highest_ = number;
      empty_ = false;
    }
    words_[number / 64 % kWords] |= std::uint64_t{1} << (number % 64);
  }

  std::uint64_t highest() const { return highest_; }

 private:
  // One word more than kNumbers fill: the word of the highest number is not full.
  static constexpr std::uint64_t kWords = kNumbers / 64 + 1;

  std::uint64_t word(std::uint64_t number) const { return words_[number / 64 % kWords]; }

  std::uint64_t highest_ = 0;
  bool empty_ = true;
  std::array<std::uint64_t, kWords> words_{};
};

}  // namespace tarpon::seal
