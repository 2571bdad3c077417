// The tags of one rank: the numbering of their operations, what is remembered of those that are
// over, and the results that are retained for peers.
//
// A tag is *active* from its first operation here until every peer that is not gone has passed the
// last one: then no rank can ask about it any more. Its state goes to the next tag that needs one;
// its next number stays in a table of limited size, the oldest entry out first. Callers may take a
// fresh tag for every call: time and memory do not grow with the tags that were ever used.
//
// Retained results are limited in bytes of memory and in entries. Looking a tag up, retaining a
// result and releasing it take constant time; a search among results that are not for all ranks
// takes time in their number.
//
// Not thread-safe. No clock inside.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "transport/endpoint.h"
#include "transport/pair_tag.h"
#include "transport/tag_numbers.h"
#include "transport/wire/operation_number.h"

namespace tarpon {

class OpenOperation;

/// Operations from `first` on, before `end`.
struct NumberRange {
  std::uint32_t first = 0, end = 0;
  bool contains(std::uint32_t number) const { return number - first < end - first; }
};

/// A result of a closed operation that peers may still ask for.
struct KeptResult {
  std::uint64_t order = 0;  // among all results; TagHistory gives it
  std::uint32_t number = 0;
  std::uint32_t slot_bytes = 0;
  OperationEpoch epoch;
  std::uint16_t signature_hash = 0;
  bool marked = false;
  std::unique_ptr<Retained> data;
};

/// What is remembered of a closed operation, for peers that come to it later.
struct PastOperation {
  bool aborted = false;
  std::uint32_t number = 0;
  std::uint32_t reason = 0;  // aborted
  std::uint64_t ranks = 0;   // ranks of which nothing had come; aborted: the ranks to blame
  Marks marks;
  OperationEpoch epoch;
  Signature signature{};
};

/// The operations of one active tag.
struct TagState {
  struct Open {
    std::uint32_t number = 0;
    OpenOperation* operation = nullptr;
  };
  /// Operations in a row that were given up for one reason: they may be more than `past` has room
  /// for, and come all at once.
  struct Aborted : NumberRange {
    std::uint32_t reason = 0;
    std::uint64_t ranks = 0;  // to blame
  };
  static constexpr std::size_t kAbortedRuns = 16;

  std::uint32_t tag = 0;
  std::uint32_t next_number = 0;
  std::vector<Open> open;                      // by number
  std::vector<std::uint32_t> closed_below_of;  // by peer: its lowest open operation, as heard
  std::vector<NumberRange> early_aborts_of;    // by peer: operations whose ABORT came before it
                                               // could be kept, and those between
  std::deque<KeptResult> kept;                 // by number, oldest first; TagHistory's to change
  std::size_t kept_for_some = 0;               // of them: those not for all ranks
  std::vector<PastOperation> past;             // the latest ones; a ring once it is full
  std::size_t next_past = 0;                   // its oldest entry
  std::vector<Aborted> aborted;                // in the order in which they ended
  std::uint64_t late_packets = 0;              // DATA that came after its operation was closed
  bool untold = false;                         // closed_below has risen since peers were told
  bool lost = false;         // this rank forgot its numbers: its operations match no peer's
  bool unproven = false;     // begun with 0 by a rank that has forgotten tags: it need not be new
  bool wrapped = false;      // numbers below 2^32 have been used up since the tag became active
  std::size_t position = 0;  // in TagHistory's list

  void remember(const PastOperation& one, std::size_t most);
  /// Adds an aborted operation. When there are more than kAbortedRuns runs, the oldest two become
  /// one, with the reason of the first.
  void remember_abort(std::uint32_t number, std::uint32_t reason, std::uint64_t ranks);
  const Aborted* find_aborted(std::uint32_t number) const;
  const PastOperation* find_past(std::uint32_t number) const;
  /// Whether the operation has ended here by an ABORT, as far as that is remembered.
  bool ended_by_abort(std::uint32_t number) const;
  /// The open operation of this number; nullptr: there is none.
  OpenOperation* find_open(std::uint32_t number) const {
    for (const Open& one : open) {
      if (one.number == number) return one.operation;
    }
    return nullptr;
  }
  std::uint32_t lowest_open() const { return open.empty() ? next_number : open.front().number; }
  /// Whether the operation was made here, or is the next one.
  bool has_reached(std::uint32_t number) const {
    return wrapped ? !before(next_number, number) : number <= next_number;
  }
};

class TagHistory {
 public:
  /// Memory of a result besides its payload and its contributor masks: objects, and what the
  /// allocator adds. For results of 1 KiB it is a sixth.
  static constexpr std::uint64_t kBytesPerResult = 192;

  struct Limits {
    std::uint16_t world_size = 1;
    std::uint64_t retain_bytes = 0;
    std::uint32_t retain_entries = 65'536;
    std::uint32_t remembered_tags = 65'536;
    std::span<const std::uint32_t> kept_tags = {};  // EndpointOptions
  };

  explicit TagHistory(const Limits& limits);

  /// The state of an active tag; nullptr for any other.
  TagState* find(std::uint32_t tag);

  /// The same, but makes the tag active. Numbers continue where they are remembered, else from 0.
  TagState& activate(std::uint32_t tag);

  /// Return the number of the next operation, and of the lowest open one, or of the next one if
  /// none is open. The tag need not be active.
  std::uint32_t next_number(std::uint32_t tag);
  std::uint32_t lowest_open(std::uint32_t tag);

  /// Whether this rank has used the tag, and forgot its numbers.
  bool is_lost(std::uint32_t tag);
  /// Whether this rank has forgotten the numbers of some tag.
  bool has_forgotten() const { return numbers_.has_forgotten() || pair_numbers_.has_forgotten(); }

  /// Whether the tag has been used, and its number is remembered.
  bool remembers(std::uint32_t tag) {
    return find(tag) != nullptr || numbers_of(tag).find(tag).has_value();
  }

  /// The latest tags of all ranks that are not active, at most `most`, the newest first.
  std::vector<std::uint32_t> recent(std::size_t most) const { return numbers_.newest(most); }

  std::span<const std::unique_ptr<TagState>> active() const { return active_; }

  /// Makes the tag inactive. Invalidates `tag_state`. REQUIRES: nothing open.
  void forget(TagState& tag_state);

  // -- retention -------------------------------------------------------------------------------

  void retain(TagState& tag_state, KeptResult kept);
  const KeptResult* find_kept(const TagState& tag_state, std::uint32_t number) const;
  /// Frees what is kept of operations below `passed`.
  void release(TagState& tag_state, std::uint32_t passed);
  /// Frees what is kept of operations from `first` on, before `end`.
  void release(TagState& tag_state, std::uint32_t first, std::uint32_t end);
  /// Frees the results that are not for all ranks, and for which `is_done(result)`.
  template <typename IsDone>
  void release_if(TagState& tag_state, IsDone is_done);
  /// Whether a result of `bytes` more fits the limits. Always true when nothing is retained.
  bool may_retain(std::uint64_t bytes) const;
  /// Memory of all results.
  std::uint64_t retained_bytes() const { return retained_bytes_; }
  std::uint32_t retained_entries() const { return retained_entries_; }

 private:
  TagNumbers& numbers_of(std::uint32_t tag) { return pair_tag(tag) ? pair_numbers_ : numbers_; }

  static constexpr std::size_t kIdleStates = 64;      // kept for the next tags
  static constexpr std::size_t kActiveTags = 65'536;  // above this nothing is retained
  static std::uint64_t memory_of(const Retained& result);
  void note_released(TagState& tag_state, const KeptResult& kept);

  const Limits limits_;
  std::vector<std::unique_ptr<TagState>> active_;
  std::vector<std::unique_ptr<TagState>> idle_;
  std::unordered_map<std::uint32_t, TagState*> by_tag_;
  TagState* last_found_ = nullptr;
  // Of tags that are not active. Ranks use different numbers of tags of two ranks: in one table
  // these would push out tags of all ranks, which other ranks still know.
  TagNumbers numbers_;
  TagNumbers pair_numbers_;  // of tags of two ranks
  std::uint64_t retained_bytes_ = 0;
  std::uint32_t retained_entries_ = 0;
  std::uint64_t results_ = 0;  // retained so far
};

template <typename IsDone>
void TagHistory::release_if(TagState& tag_state, IsDone is_done) {
  if (tag_state.kept_for_some == 0) return;
  std::erase_if(tag_state.kept, [&](const KeptResult& kept) {
    if (kept.data->receivers == kAllReceivers || !is_done(kept)) return false;
    note_released(tag_state, kept);
    return true;
  });
}

}  // namespace tarpon
