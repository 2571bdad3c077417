// A grid in virtual time: the real code of grids (collectives/grid) over the real engines of all
// ranks, two for each rank.
//
// Not there: forming of the grid, close(), deaths and evictions.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/grid/grid_engine.h"
#include "tests/simulation/simulated_part.h"

namespace tarpon::testing_support {

struct SimulatedGridOptions {
  std::uint32_t hosts = 2, places = 2;
  bool round_robin = false;  // rank r is on host r % hosts; else on host r / places
  Mechanisms mechanisms = {};
  FaultOptions faults = {};  // of the rails
  std::uint64_t seed = 1;
};

class SimulatedGrid {
 public:
  explicit SimulatedGrid(const SimulatedGridOptions& options) : layout_(layout_of(options)) {
    const auto make = [&](std::uint32_t ranks, bool shares_memory) {
      parts_.push_back(std::make_unique<SimulatedPart>(
          SimulatedPartOptions{.ranks = static_cast<std::uint16_t>(ranks),
                               .shares_memory = shares_memory,
                               .mechanisms = options.mechanisms,
                               .faults = shares_memory ? FaultOptions{} : options.faults,
                               .seed = options.seed * 1000 + parts_.size()},
          now_));
    };
    for (std::uint32_t host = 0; host < options.hosts; ++host) make(options.places, true);
    for (std::uint32_t place = 0; place < options.places; ++place) make(options.hosts, false);
    for (Rank rank = 0; rank < size(); ++rank) {
      ranks_.push_back(std::make_unique<One>(grid::GridParts{
          .layout = layout_,
          .self = rank,
          .host = &host_part(layout_.host_of(rank)).runner(place(rank)),
          .rail = &rail_part(layout_.place_of(rank)).runner(host(rank)),
      }));
    }
  }

  const grid::GridLayout& layout() const { return layout_; }
  Rank size() const { return static_cast<Rank>(layout_.world_size()); }
  Time now() const { return now_; }
  std::size_t engines() const {
    std::size_t sum = 0;
    for (const auto& part : parts_) sum += part->engines();
    return sum;
  }

  /// `arguments`: AllreduceArguments or CollectiveArguments.
  template <typename Arguments>
  std::shared_ptr<PendingCall> submit(Rank rank, const Arguments& arguments) {
    One& one = *ranks_[rank];
    auto call = one.engine.submit(arguments, now_);
    one.open.push_back(call);
    ++open_;
    progress(rank);
    return call;
  }
  void abort(Rank rank, const std::string& reason) {
    ranks_[rank]->engine.abort(reason);
    progress(rank);
  }

  /// Does `what` when `delay` has passed.
  void after(Duration delay, std::function<void()> what) {
    events_.emplace(now_ + delay, std::move(what));
  }

  /// The call of `tag` on the rail of `rank`, in which it has one. Null: it has none.
  std::shared_ptr<const PendingCall> rail_call(Rank rank, std::uint32_t tag) const {
    const auto& calls = parts_[layout_.hosts() + layout_.place_of(rank)]->calls(host(rank));
    const auto found = std::find_if(calls.begin(), calls.end(),
                                    [&](const auto& call) { return call->arguments.tag == tag; });
    return found == calls.end() ? nullptr : *found;
  }

  /// Runs until all calls have ended and nothing waits in after(), at most for `limit`. Returns
  /// whether they have.
  bool finish(Duration limit) {
    const Time end = now_ + limit;
    while (open_ > 0 || !events_.empty()) {
      if (!step(end)) return false;
    }
    return true;
  }

 private:
  struct One {
    explicit One(grid::GridParts given) : parts(std::move(given)), engine(parts) {}
    const grid::GridParts parts;
    grid::GridEngine engine;
    std::vector<std::shared_ptr<PendingCall>> open;
    Time look_at = kNever;
  };

  static grid::GridLayout layout_of(const SimulatedGridOptions& options) {
    std::vector<std::string> keys;
    for (std::uint32_t rank = 0; rank < options.hosts * options.places; ++rank) {
      keys.push_back(
          std::to_string(options.round_robin ? rank % options.hosts : rank / options.places));
    }
    return *grid::GridLayout::make(keys, keys);
  }

  Rank host(Rank rank) const { return static_cast<Rank>(layout_.host_of(rank)); }
  Rank place(Rank rank) const { return static_cast<Rank>(layout_.place_of(rank)); }
  SimulatedPart& host_part(std::uint32_t host) { return *parts_[host]; }
  SimulatedPart& rail_part(std::uint32_t place) { return *parts_[layout_.hosts() + place]; }

  /// As GridCalls does when a driver has told it of a change.
  void progress(Rank rank) {
    One& one = *ranks_[rank];
    if (one.engine.progress(now_)) {
      open_ -= std::erase_if(one.open, [](const auto& call) { return call->done.load(); });
    }
    const Time look_at = one.engine.next_deadline();
    if (look_at == one.look_at) return;
    one.look_at = look_at;
    if (look_at != kNever) looks_.emplace(look_at, rank);
  }

  /// Goes on to the next event. False if none comes until `end`.
  bool step(Time end) {
    const auto first =
        std::min_element(parts_.begin(), parts_.end(),
                         [](const auto& a, const auto& b) { return a->next() < b->next(); });
    Time next = (*first)->next();
    if (!events_.empty()) next = std::min(next, events_.begin()->first);
    if (!looks_.empty()) next = std::min(next, looks_.begin()->first);
    if (next > end) return false;
    now_ = std::max(now_, next);
    while (!events_.empty() && events_.begin()->first <= now_) {
      const auto event = events_.extract(events_.begin());
      event.mapped()();
    }
    while (!looks_.empty() && looks_.begin()->first <= now_) {
      const auto look = looks_.extract(looks_.begin());
      progress(look.mapped());
    }
    const auto at = static_cast<std::uint32_t>(first - parts_.begin());
    if ((*first)->next() > now_) return true;
    (*first)->run([&](Rank rank) {
      progress(at < layout_.hosts() ? layout_.host(at)[rank]
                                    : layout_.host(rank)[at - layout_.hosts()]);
    });
    return true;
  }

  const grid::GridLayout layout_;
  Time now_ = Time{} + 1h;
  std::vector<std::unique_ptr<SimulatedPart>> parts_;  // hosts, then rails
  std::vector<std::unique_ptr<One>> ranks_;
  std::size_t open_ = 0;  // calls
  std::multimap<Time, std::function<void()>> events_;
  std::multimap<Time, Rank> looks_;
};

}  // namespace tarpon::testing_support
