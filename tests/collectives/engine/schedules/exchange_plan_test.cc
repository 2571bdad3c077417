// Collectives through the memory of hosts and over the network between them, without memory and
// network: each element that an output needs is taken once, from where its sender has it.
#include "collectives/engine/schedules/exchange_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace tarpon::exchange_plan_test {
namespace {

constexpr Collective kAll[] = {
    Collective::reduce_scatter, Collective::all_gather, Collective::broadcast, Collective::reduce,
    Collective::gather,         Collective::scatter,    Collective::all_to_all};
constexpr std::uint64_t kPlace = 4096;

/// A call of all ranks, in turn on the hosts.
struct Job {
  CollectiveParts parts;
  hosts::HostLayout layout;

  std::uint32_t hosts() const { return static_cast<std::uint32_t>(layout.count()); }
  std::uint32_t local() const { return static_cast<std::uint32_t>(layout.hosts[0].size()); }
  std::uint32_t world() const { return hosts() * local(); }
  Rank rank(std::uint32_t host, std::uint32_t place) const { return layout.hosts[host][place]; }
  ExchangePlan plan(std::uint32_t host) const {
    return {parts, layout, host, sizeof(float), kPlace};
  }
};

/// Calls body(job) for parts that are even, uneven with empty ones, all of one rank, or empty.
template <typename Body>
void for_all(Body body) {
  const std::pair<std::uint32_t, std::uint32_t> shapes[] = {{1, 2}, {1, 5}, {1, 64}, {2, 2},
                                                            {2, 3}, {3, 2}, {4, 16}, {32, 2}};
  for (const Collective collective : kAll) {
    for (const auto& [hosts, local] : shapes) {
      const std::uint32_t world = hosts * local;
      std::vector<std::uint64_t> uneven, one(world, 0);
      for (std::uint32_t rank = 0; rank < world; ++rank) uneven.push_back(rank % 3 * 117);
      one[world / 2] = 3000;
      for (const auto& counts : {std::vector<std::uint64_t>(world, 330), uneven, one,
                                 std::vector<std::uint64_t>(world, 0)}) {
        CollectiveArguments call{.collective = collective, .counts = counts};
        if (has_root(collective)) call.root = static_cast<Rank>(world - 1);
        if (!has_parts(collective) || collective == Collective::all_to_all) {
          call.count = counts[world / 2] * (has_parts(collective) ? 1 : 40);
          call.counts.clear();
        }
        std::vector<std::uint32_t> host_of(world);
        for (std::uint32_t rank = 0; rank < world; ++rank) host_of[rank] = rank % hosts;
        const Job job{CollectiveParts::of(call, world, 0), hosts::HostLayout::by(host_of)};
        SCOPED_TRACE(std::string(name(collective)) + ", " + std::to_string(hosts) + " hosts of " +
                     std::to_string(local) + ", " + std::to_string(counts[0]));
        ASSERT_TRUE(ExchangePlan::suits(&job.parts, job.layout));
        body(job);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

/// Calls body(elements, sender) for what a rank receives over the network.
template <typename Body>
void for_received(const Schedule& schedule, Body body) {
  for (const Schedule::Stage& stage : schedule.stages) {
    for (const Schedule::Message& message : stage.receives) {
      for (const Schedule::Piece& piece : schedule.pieces_of(message)) {
        body(schedule.chunks[piece.chunk].elements, message.peer);
      }
    }
  }
}

TEST(ExchangePlan, elements__reach_each_output_once) {
  for_all([](const Job& job) {
    for (std::uint32_t host = 0; host < job.hosts(); ++host) {
      const ExchangePlan plan = job.plan(host);
      if (plan.adds()) continue;
      for (std::uint32_t to = 0; to < job.local(); ++to) {
        const Rank self = job.rank(host, to);
        const Range output = job.parts.output(self);
        std::vector<int> taken(output.count, 0);
        const auto take = [&](Range elements) {
          for (std::uint64_t i = elements.first; i < elements.end(); ++i) {
            ++taken.at(i - output.first);
          }
        };
        for (std::uint32_t from = 0; from < job.local(); ++from) {
          if (from == to || !plan.passes(from, to)) continue;
          for (std::uint32_t slice = 0; slice < plan.slices(); ++slice) {
            for (std::uint32_t step = 0; step < plan.steps(); ++step) {
              take(plan.piece(plan.target(from, to, slice), step));
            }
          }
        }
        // all_to_all has a second chunk for each part that it receives.
        for_received(plan.schedule(to), [&](Range elements, Rank) { take(elements); });
        const auto own = job.parts.own_copy(self);
        take({own.to, own.count});
        EXPECT_EQ(std::count(taken.begin(), taken.end(), 1), std::ssize(taken)) << "rank " << self;
      }
    }
  });
}

TEST(ExchangePlan, passed_on__comes_over_the_network) {
  for_all([](const Job& job) {
    for (std::uint32_t host = 0; host < job.hosts(); ++host) {
      const ExchangePlan plan = job.plan(host);
      for (std::uint32_t from = 0; from < job.local(); ++from) {
        for (std::uint32_t slice = 0; slice < plan.slices(); ++slice) {
          const std::uint32_t to = from == 0 ? 1 : 0;
          if (!plan.passes(from, to) || !plan.is_passed_on(from, slice)) continue;
          const Range all = plan.source(from, to, slice);
          std::uint64_t received = 0;
          for_received(plan.schedule(from), [&](Range elements, Rank) {
            const std::uint64_t end = std::min(all.end(), elements.end());
            const std::uint64_t first = std::max(all.first, elements.first);
            if (first < end) received += end - first;
          });
          EXPECT_EQ(received, all.count);
        }
      }
    }
  });
}

TEST(ExchangePlan, sums__hold_each_host_once) {
  for_all([](const Job& job) {
    for (std::uint32_t host = 0; host < job.hosts(); ++host) {
      const ExchangePlan plan = job.plan(host);
      for (std::uint32_t to = 0; to < job.local() && plan.adds(); ++to) {
        const Rank self = job.rank(host, to);
        const Range output = job.parts.output(self);
        if (output.count == 0) continue;
        // The sum of its own host, and one of each other host.
        EXPECT_EQ(plan.source(to, to, plan.own_slice()).count, output.count);
        EXPECT_EQ(plan.has_rail_bucket(to), job.hosts() > 1);
        std::vector<Rank> senders;
        for_received(plan.schedule(to), [&](Range elements, Rank sender) {
          EXPECT_EQ(elements.count, output.count);
          EXPECT_EQ(elements.first, plan.rail_offset(to, plan.own_slice()));
          senders.push_back(sender);
        });
        ASSERT_EQ(senders.size(), job.hosts() - 1);
        for (const Rank sender : senders) {
          const std::uint32_t there = job.layout.host_of(sender);
          EXPECT_NE(there, host);
          EXPECT_EQ(sender, job.rank(there, to));
          EXPECT_TRUE(job.plan(there).has_rail_bucket(to));
        }
      }
    }
  });
}

TEST(ExchangePlan, network__carries_each_byte_once_to_a_host) {
  for_all([](const Job& job) {
    const bool by_pairs = job.parts.collective == Collective::all_to_all;
    if (by_pairs) return;
    for (std::uint32_t host = 0; host < job.hosts(); ++host) {
      std::uint64_t received = 0;
      for (std::uint32_t place = 0; place < job.local(); ++place) {
        for_received(job.plan(host).schedule(place),
                     [&](Range elements, Rank) { received += elements.count; });
      }
      const std::uint64_t hosts = job.plan(host).adds() ? job.hosts() - 1 : 1;
      EXPECT_LE(received, job.parts.count * hosts);
    }
  });
}

TEST(ExchangePlan, slices__lie_in_the_place_side_by_side) {
  for_all([](const Job& job) {
    const ExchangePlan plan = job.plan(job.hosts() - 1);
    for (std::uint32_t from = 0; from < job.local(); ++from) {
      std::uint64_t end = 0;
      for (std::uint32_t to = 0; to < job.local(); ++to) {
        if (from == to || !plan.passes(from, to)) continue;
        if (plan.shares()) end = 0;
        for (std::uint32_t slice = 0; slice < plan.slices(); ++slice) {
          EXPECT_GE(plan.offset(to, slice), end);
          for (std::uint32_t step = 0; step < plan.steps(); ++step) {
            const Range piece = plan.piece(plan.source(from, to, slice), step);
            end = std::max(end, plan.offset(to, slice) + piece.count * sizeof(float));
          }
          EXPECT_LE(end, kPlace);
        }
      }
    }
  });
}

}  // namespace
}  // namespace tarpon::exchange_plan_test
