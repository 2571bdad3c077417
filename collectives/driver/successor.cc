#include "collectives/driver/successor.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <string_view>

#include "collectives/membership/socket_network.h"
#include "transport/clock.h"

namespace tarpon::mesh {
namespace {

/// Ends `agreed` with the line `plan`, in place of an earlier plan's: the text does not grow with
/// each successor.
void set_plan(std::string& agreed, const std::string& plan) {
  constexpr std::string_view kPlan = "\nmembers=";
  if (const std::size_t earlier = agreed.rfind(kPlan); earlier != std::string::npos) {
    agreed.erase(earlier, agreed.find('\n', earlier + 1) - earlier);
  }
  agreed += std::string(kPlan) + plan;
}

}  // namespace

Result<Successor> plan_successor(Membership& membership, Regroup what,
                                 const CommunicatorOptions& given, Rank rank,
                                 std::uint32_t public_id, Time until) {
  CommunicatorOptions options = given;
  // This rank listens before the others learn its address.
  const auto listen = [&]() -> Result<std::string> {
    auto door = open_door(options.address, options.ports);
    if (!door) return fail(door.error());
    options.rendezvous.listener = std::make_shared<FileDescriptor>(std::move(door->listener));
    return fmt::format("tcp://{}:{}", options.address, door->port);
  };
  auto plan = membership.plan(what, listen, until);
  if (!plan) return fail(plan.error());
  options.datapath_may_change = true;
  options.rendezvous.rank = plan->new_rank(rank);
  options.rendezvous.world_size = static_cast<std::uint32_t>(std::popcount(plan->members));
  options.rendezvous.address = plan->address;
  options.rendezvous.timeout = until - std::min(until, monotonic_now());
  // A rank that follows another plan is refused.
  set_plan(options.rendezvous.agreed, fmt::format("{:x} of job {:x}", plan->members, public_id));
  return Successor{std::move(options), std::move(plan->left_out)};
}

}  // namespace tarpon::mesh
