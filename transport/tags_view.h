// A look at the tags of an endpoint: the numbers of their operations, how far peers have come, and
// the room for results.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/endpoint_options.h"
#include "transport/operation_news.h"

namespace tarpon {

class EarlyOperations;
class Participants;
class TagHistory;

/// Valid as long as the endpoint.
class TagsView {
 public:
  /// Whether Endpoint::submit() on `tag` is within the window. The first operation of a tag that
  /// this rank may have forgotten runs alone.
  bool can_submit(std::uint32_t tag) const;

  /// Number that the next submit() on `tag` takes; ownership rotates by it.
  std::uint32_t next_number(std::uint32_t tag) const;

  /// The lowest number of `tag` that is open; next_number() when none is.
  std::uint32_t lowest_open(std::uint32_t tag) const;

  /// Whether this rank has forgotten the numbers of `tag`, and a peer knows them. No operation of
  /// this tag can match those of the peers: the caller aborts each (TARPON_ABORT_FORGOTTEN).
  bool is_lost(std::uint32_t tag) const;

  /// The number below which the furthest rank has ended its operations of `tag`, as far as heard.
  std::uint32_t furthest(std::uint32_t tag) const;

  /// How many operations of `tag`, from `number` on, a rank that takes part in them has ended, as
  /// far as heard. Each of them makes this rank late if it begins it (Event::Kind::late).
  std::uint32_t ended_elsewhere(std::uint32_t tag, std::uint32_t number) const;

  /// Returns the active tags and the latest 1024 others. A tag is active until this rank and all
  /// live peers have passed its latest operation.
  std::vector<std::uint32_t> all() const;

  /// Tags from `first` on whose next operation a peer has begun and this rank has not.
  std::vector<std::uint32_t> begun_by_peers(std::uint32_t first) const;

  /// The next number of each tag that this rank or some live peer has not passed, as far as heard.
  std::vector<NextNumber> unpassed() const;

  /// Whether Endpoint::close() may retain `bytes` more now; when not, wait for acknowledgements or
  /// for the peers' next operations. Always true when nothing is retained.
  bool may_retain(std::uint64_t bytes) const;

  /// Ranks that the oldest retained result is kept for: bit r: rank r.
  std::uint64_t holding_back() const;

 private:
  friend class Endpoint;
  struct Parts {
    const EndpointOptions& options;
    const Participants& participants;
    TagHistory& tags;  // looking a tag up remembers it
    const EarlyOperations& early;
  };
  explicit TagsView(const Parts& parts) : parts_(parts) {}

  const Parts parts_;
};

}  // namespace tarpon
