#include "xdp/program_maps.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <utility>
#include <vector>

namespace tarpon::xdp {
namespace {

/// Sums a per-CPU value of 8 bytes.
Result<std::uint64_t> sum(int map, std::uint32_t key) {
  std::vector<std::uint64_t> values(static_cast<std::size_t>(::libbpf_num_possible_cpus()));
  if (::bpf_map_lookup_elem(map, &key, values.data()) != 0) {
    return fail_system(errno, "reading a counter of the XDP program");
  }
  std::uint64_t total = 0;
  for (const std::uint64_t value : values) total += value;
  return total;
}

}  // namespace

const char* name(tarpon_verdict verdict) {
  switch (verdict) {
    case TARPON_VERDICT_SHORT:
      return "short";
    case TARPON_VERDICT_NOT_IPV4:
      return "not_ipv4";
    case TARPON_VERDICT_FRAGMENT:
      return "fragment";
    case TARPON_VERDICT_NOT_UDP:
      return "not_udp";
    case TARPON_VERDICT_NO_PORT:
      return "no_port";
    case TARPON_VERDICT_MAC:
      return "mac";
    case TARPON_VERDICT_CHECKSUM:
      return "checksum";
    case TARPON_VERDICT_LENGTH:
      return "length";
    case TARPON_VERDICT_MAGIC:
      return "magic";
    case TARPON_VERDICT_VERSION:
      return "version";
    case TARPON_VERDICT_JOB:
      return "job";
    case TARPON_VERDICT_TYPE:
      return "type";
    case TARPON_VERDICT_FIELDS:
      return "fields";
    case TARPON_VERDICT_QUEUE:
      return "queue";
    case TARPON_VERDICT_CLOSED:
      return "closed";
    case TARPON_VERDICT_RING:
      return "ring";
    case TARPON_VERDICT_COUNT:
      break;
  }
  return "?";
}

Result<ProgramMaps> ProgramMaps::open(Descriptors descriptors) {
  ProgramMaps maps(std::move(descriptors));
  const std::size_t bytes = sizeof(tarpon_port_slot) * TARPON_MAX_PORTS;
  void* const data =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, maps.descriptors_.slots.get(), 0);
  if (data == MAP_FAILED) return fail_system(errno, "mmap of the slots of ports");
  keep_from_children(data, bytes);
  maps.mapped_ = static_cast<tarpon_port_slot*>(data);
  return maps;
}

ProgramMaps::ProgramMaps(ProgramMaps&& other) noexcept
    : descriptors_(std::move(other.descriptors_)), mapped_(std::exchange(other.mapped_, nullptr)) {}

ProgramMaps& ProgramMaps::operator=(ProgramMaps&& other) noexcept {
  std::swap(descriptors_, other.descriptors_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

ProgramMaps::~ProgramMaps() {
  if (mapped_ != nullptr) ::munmap(mapped_, sizeof(tarpon_port_slot) * TARPON_MAX_PORTS);
}

Result<PortWindows> ProgramMaps::open_port(const tarpon_port_key& key,
                                           const tarpon_port_entry& entry) {
  if (entry.index >= TARPON_MAX_PORTS) {
    return fail(Error::Code::invalid_argument,
                fmt::format("port index {}: at most {}", entry.index, TARPON_MAX_PORTS - 1));
  }
  for (const auto& [other, held] : ports()) {
    if ((held.queues & entry.queues) == 0) continue;
    forget(other);
    ::bpf_map_delete_elem(descriptors_.ports.get(), &other);
  }
  auto windows = PortWindows::create();
  if (!windows) return windows;
  const int map = windows->fd();
  if (::bpf_map_update_elem(descriptors_.windows.get(), &entry.index, &map, BPF_ANY) != 0) {
    return fail_system(errno, "adding operation windows to the XDP program");
  }
  if (::bpf_map_update_elem(descriptors_.ports.get(), &key, &entry, BPF_ANY) != 0) {
    return fail_system(errno, "adding a port to the XDP program");
  }
  // The word is stored last: a reader that sees it finds the entry written.
  mapped_[entry.index].entry = entry;
  std::atomic_ref(mapped_[entry.index].port)
      .store(tarpon_port_word(&key), std::memory_order_release);
  return windows;
}

Result<void> ProgramMaps::open_group(const tarpon_port_key& group, const tarpon_port_entry& entry) {
  if (::bpf_map_update_elem(descriptors_.ports.get(), &group, &entry, BPF_NOEXIST) == 0) return {};
  if (errno != EEXIST) return fail_system(errno, "adding a multicast group to the XDP program");
  return fail(Error::Code::unavailable, "another port of this interface has the multicast group");
}

void ProgramMaps::forget(const tarpon_port_key& key) {
  for (std::uint32_t index = 0; index < TARPON_MAX_PORTS; ++index) {
    __u64 held = tarpon_port_word(&key);
    std::atomic_ref(mapped_[index].port).compare_exchange_strong(held, 0);
  }
}

Result<void> ProgramMaps::close_port(const tarpon_port_key& key) {
  forget(key);
  if (::bpf_map_delete_elem(descriptors_.ports.get(), &key) != 0 && errno != ENOENT) {
    return fail_system(errno, "removing a port from the XDP program");
  }
  return {};
}

std::vector<std::pair<tarpon_port_key, tarpon_port_entry>> ProgramMaps::ports() const {
  std::vector<std::pair<tarpon_port_key, tarpon_port_entry>> result;
  tarpon_port_key at{};
  const tarpon_port_key* previous = nullptr;
  // The kernel starts again when a port is removed meanwhile: the map's size bounds the loop.
  constexpr std::uint32_t kMost = TARPON_MAX_ENTRIES;
  while (result.size() < kMost &&
         ::bpf_map_get_next_key(descriptors_.ports.get(), previous, &at) == 0) {
    tarpon_port_entry entry{};
    if (::bpf_map_lookup_elem(descriptors_.ports.get(), &at, &entry) == 0)
      result.emplace_back(at, entry);
    previous = &at;
  }
  return result;
}

Result<void> ProgramMaps::insert_socket(std::uint32_t queue, int socket) {
  if (::bpf_map_update_elem(descriptors_.sockets.get(), &queue, &socket, BPF_ANY) != 0) {
    return fail_system(errno, fmt::format("adding the AF_XDP socket of queue {}", queue));
  }
  return {};
}

Result<void> ProgramMaps::remove_socket(std::uint32_t queue) {
  if (::bpf_map_delete_elem(descriptors_.sockets.get(), &queue) != 0 && errno != ENOENT) {
    return fail_system(errno, fmt::format("removing the AF_XDP socket of queue {}", queue));
  }
  return {};
}

Result<Verdicts> ProgramMaps::verdicts() const {
  Verdicts result{};
  for (std::uint32_t i = 0; i < result.size(); ++i) {
    auto count = sum(descriptors_.counts.get(), i);
    if (!count) return fail(count.error());
    result[i] = *count;
  }
  return result;
}

Result<std::array<std::uint64_t, TARPON_MAX_SENDERS>> ProgramMaps::late(std::uint32_t index) const {
  std::array<std::uint64_t, TARPON_MAX_SENDERS> result{};
  for (std::uint32_t sender = 0; sender < result.size(); ++sender) {
    auto count = sum(descriptors_.late.get(), index * TARPON_MAX_SENDERS + sender);
    if (!count) return fail(count.error());
    result[sender] = *count;
  }
  return result;
}

}  // namespace tarpon::xdp
