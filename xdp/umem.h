// UMEM: the memory that an AF_XDP socket shares with the kernel, cut into frames.
#pragma once

#include <cstddef>
#include <cstdint>

#include "xdp/base/result.h"

namespace tarpon::xdp {

/// Size of the kernel's chunks. The kernel refuses chunks larger than a page, even on hugepages.
inline constexpr std::uint32_t kFrameBytes = 4096;

/// Pages of memory, zeroed, unmapped on destruction. Move-only.
class Umem {
 public:
  /// Maps `frames` x kFrameBytes, on hugepages when the machine has enough free ones. Errors: io.
  static Result<Umem> map(std::uint32_t frames);

  Umem(Umem&& other) noexcept;
  Umem& operator=(Umem&& other) noexcept;
  ~Umem();

  std::byte* data() const { return data_; }
  std::uint32_t frames() const { return frames_; }
  std::size_t bytes() const { return std::size_t{frames_} * kFrameBytes; }
  bool huge_pages() const { return huge_; }

  std::byte* frame(std::uint32_t index) const { return data_ + std::size_t{index} * kFrameBytes; }

 private:
  Umem(std::byte* data, std::size_t mapped, std::uint32_t frames, bool huge)
      : data_(data), mapped_(mapped), frames_(frames), huge_(huge) {}

  std::byte* data_ = nullptr;
  std::size_t mapped_ = 0;
  std::uint32_t frames_ = 0;
  bool huge_ = false;
};

}  // namespace tarpon::xdp
