#include "xdp/port_windows.h"

#include <bpf/bpf.h>
#include <linux/bpf.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <utility>

namespace tarpon::xdp {

Result<PortWindows> PortWindows::create() {
  bpf_map_create_opts options{};
  options.sz = sizeof options;
  options.map_flags = BPF_F_MMAPABLE;
  PrivateDescriptor made = FileDescriptor(::bpf_map_create(
      BPF_MAP_TYPE_ARRAY, "tarpon_window", sizeof(__u32), sizeof(tarpon_windows), 1, &options));
  if (!made) return fail_system(errno, "a map of operation windows (needs CAP_BPF)");
  auto windows = map(std::move(made));
  if (!windows) return windows;
  for (__u64& lowest : windows->mapped_->lowest) lowest = TARPON_NO_WINDOW;
  return windows;
}

Result<PortWindows> PortWindows::map(PrivateDescriptor map) {
  PortWindows windows;
  windows.map_ = std::move(map);
  void* const data = ::mmap(nullptr, sizeof(tarpon_windows), PROT_READ | PROT_WRITE, MAP_SHARED,
                            windows.map_.get(), 0);
  if (data == MAP_FAILED) return fail_system(errno, "mmap of the operation windows");
  keep_from_children(data, sizeof(tarpon_windows));
  windows.mapped_ = static_cast<tarpon_windows*>(data);
  return windows;
}

PortWindows::PortWindows(PortWindows&& other) noexcept
    : map_(std::move(other.map_)), mapped_(std::exchange(other.mapped_, nullptr)) {}

PortWindows& PortWindows::operator=(PortWindows&& other) noexcept {
  std::swap(map_, other.map_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

PortWindows::~PortWindows() {
  if (mapped_ != nullptr) ::munmap(mapped_, sizeof(tarpon_windows));
}

void PortWindows::publish(std::uint32_t tag, std::uint32_t lowest) {
  if (mapped_ == nullptr) return;
  std::atomic_ref(mapped_->lowest[tarpon_window_slot(tag)])
      .store(tarpon_window(tag, lowest), std::memory_order_relaxed);
}

}  // namespace tarpon::xdp
