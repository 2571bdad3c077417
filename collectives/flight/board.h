// One value that one thread replaces now and then and others read without stopping it.
//
// A sequence lock over words: a reader that meets a change tries again. Wait-free for the writer.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace tarpon {

template <typename T>
class Board {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  /// One thread at a time.
  void publish(const T& value) noexcept {
    std::array<std::uint64_t, kWords> words{};
    std::memcpy(words.data(), &value, sizeof value);
    const std::uint64_t turn = turn_.load(std::memory_order_relaxed);
    turn_.store(turn + 1, std::memory_order_relaxed);  // odd: being changed
    for (std::size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
    turn_.store(turn + 2, std::memory_order_release);
  }

  /// False when the writer was always faster, or has published nothing yet. Any thread.
  bool read(T& value) const noexcept {
    constexpr int kTries = 100;
    for (int i = 0; i < kTries; ++i) {
      std::array<std::uint64_t, kWords> words{};
      const std::uint64_t before = turn_.load(std::memory_order_acquire);
      if (before == 0) return false;
      for (std::size_t w = 0; w < kWords; ++w) words[w] = words_[w].load(std::memory_order_acquire);
      if (before % 2 != 0 || turn_.load(std::memory_order_relaxed) != before) continue;
      std::memcpy(static_cast<void*>(&value), words.data(), sizeof value);
      return true;
    }
    return false;
  }

 private:
  static constexpr std::size_t kWords = (sizeof(T) + 7) / 8;
  std::array<std::atomic<std::uint64_t>, kWords> words_{};
  std::atomic<std::uint64_t> turn_ = 0;
};

}  // namespace tarpon
