// Numbers by tag: a table of limited size, the oldest entry out first. Some tags may stay for good.
//
// Two arrays that grow to the limit and stay: an entry costs 28 to 36 bytes, no allocation and few
// cache misses, however many tags a job uses. (A map of nodes and a queue took 80 bytes an entry,
// and scattered small blocks over the heap.)
//
// Not thread-safe. No clock inside.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tarpon {

class TagNumbers {
 public:
  struct Known {
    std::uint32_t number = 0;
    bool lost = false;  // this rank forgot its number: the peers know another one
    bool operator==(const Known&) const = default;
  };

  /// `kept`: tags that are never removed, as long as there are fewer of them than `limit`. Outlives
  /// the object.
  explicit TagNumbers(std::uint32_t limit, std::span<const std::uint32_t> kept = {})
      : limit_(limit), kept_(kept) {}

  std::optional<Known> find(std::uint32_t tag) const;

  /// Makes `tag` the newest entry. Removes the oldest one that is not kept when there are more than
  /// the limit.
  void put(std::uint32_t tag, Known known);

  /// Whether the limit has removed an entry: then a tag without an entry need not be new.
  bool has_forgotten() const { return has_forgotten_; }

  void erase(std::uint32_t tag);

  std::size_t size() const { return size_; }

  /// At most `most` tags, the newest first.
  std::vector<std::uint32_t> newest(std::size_t most) const;

 private:
  static constexpr std::uint32_t kNone = 0xffffffff;
  struct Entry {
    std::uint32_t tag = 0;
    Known known;
    std::uint32_t older = kNone;  // neighbours in age
    std::uint32_t newer = kNone;  // of a free entry: the next free one
  };

  std::uint32_t oldest_to_remove() const;
  std::size_t home(std::uint32_t tag) const;
  std::size_t next(std::size_t place) const { return (place + 1) & (places_.size() - 1); }
  std::size_t place_of(std::uint32_t tag) const;
  void grow();
  void unlink(const Entry& entry);
  void remove(std::size_t place);

  const std::uint32_t limit_;
  const std::span<const std::uint32_t> kept_;
  std::vector<Entry> entries_;
  // Open addressing with linear probing: indexes of entries. At most half of them are in use.
  std::vector<std::uint32_t> places_;
  std::size_t size_ = 0;
  bool has_forgotten_ = false;
  std::uint32_t oldest_ = kNone;
  std::uint32_t newest_ = kNone;
  std::uint32_t free_ = kNone;
};

}  // namespace tarpon
