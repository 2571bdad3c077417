#include "xdp/umem.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "xdp/base/private_descriptor.h"

namespace tarpon::xdp {
namespace {

constexpr std::size_t kHugePage = 2u << 20;

void* map_pages(std::size_t bytes, int flags) {
  void* const pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | flags, -1, 0);
  if (pages != MAP_FAILED) keep_from_children(pages, bytes);  // a fork would copy what is locked
  return pages;
}

}  // namespace

Result<Umem> Umem::map(std::uint32_t frames) {
  const std::size_t bytes = std::size_t{frames} * kFrameBytes;
  const std::size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  if (void* const huge = map_pages(rounded, MAP_HUGETLB); huge != MAP_FAILED) {
    return Umem(static_cast<std::byte*>(huge), rounded, frames, true);
  }
  void* const plain = map_pages(bytes, 0);
  if (plain == MAP_FAILED) return fail_system(errno, fmt::format("{} bytes for the UMEM", bytes));
  return Umem(static_cast<std::byte*>(plain), bytes, frames, false);
}

Umem::Umem(Umem&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      mapped_(other.mapped_),
      frames_(other.frames_),
      huge_(other.huge_) {}

Umem& Umem::operator=(Umem&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(mapped_, other.mapped_);
  std::swap(frames_, other.frames_);
  std::swap(huge_, other.huge_);
  return *this;
}

Umem::~Umem() {
  if (data_ != nullptr) ::munmap(data_, mapped_);
}

}  // namespace tarpon::xdp
