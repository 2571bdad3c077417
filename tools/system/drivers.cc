#include "tools/system/drivers.h"

namespace tarpon {
namespace {

struct Entry {
  std::string_view driver;
  DriverNotes notes;
};

constexpr std::string_view kQueues = "rebuilds its queues: traffic stops for a moment";
constexpr std::string_view kLink = "restarts the adapter: the link goes down for up to seconds";

constexpr Entry kEntries[] = {
    {"veth",
     {AttachEffect::nothing, "resets nothing; while it is loaded the peer sends without GSO",
      false}},
    {"tun", {AttachEffect::nothing, "resets nothing", false}},
    {"lo", {AttachEffect::nothing, "resets nothing", false}},
    {"virtio_net",
     {AttachEffect::queues,
      "rebuilds its queues and switches receive offloads (GRO_HW, LRO) off: "
      "traffic stops for a moment",
      false}},
    {"mlx5_core", {AttachEffect::queues, kQueues, false}},
    {"mlx4_en", {AttachEffect::queues, kQueues, false}},
    {"ena", {AttachEffect::queues, kQueues, true}},
    {"gve", {AttachEffect::queues, kQueues, true}},
    {"ice", {AttachEffect::queues, kQueues, false}},
    {"idpf", {AttachEffect::queues, kQueues, false}},
    {"hv_netvsc",
     {AttachEffect::queues,
      "rebuilds its queues, and those of its virtual function: traffic stops "
      "for a moment",
      false}},
    {"mana", {AttachEffect::queues, kQueues, false}},
    {"bnxt_en", {AttachEffect::link, kLink, false}},
    {"i40e", {AttachEffect::link, kLink, false}},
    {"ixgbe", {AttachEffect::link, kLink, false}},
    {"igb", {AttachEffect::link, kLink, false}},
    {"igc", {AttachEffect::link, kLink, false}},
};

}  // namespace

DriverNotes driver_notes(std::string_view driver) {
  for (const Entry& entry : kEntries) {
    if (entry.driver == driver) return entry.notes;
  }
  return {AttachEffect::link, "may restart the adapter: traffic may stop for seconds", false};
}

}  // namespace tarpon
