#include "tools/system/shared_object.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>

#include "xdp/base/file_descriptor.h"

namespace tarpon {
namespace {

// A file that claims more of them is broken.
constexpr std::size_t kMostHeaders = 4096;
constexpr std::size_t kMostEntries = 65536;
constexpr std::size_t kLongestName = 256;

template <typename T>
bool read_at(const FileDescriptor& file, std::uint64_t offset, T* items, std::size_t count) {
  const std::size_t bytes = count * sizeof(T);
  const ssize_t got = ::pread(file.get(), items, bytes, static_cast<off_t>(offset));
  return got >= 0 && static_cast<std::size_t>(got) == bytes;
}

bool is_ours(const Elf64_Ehdr& header) {
  constexpr unsigned char kOrder =
      std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB;
  return std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
         header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_ident[EI_DATA] == kOrder &&
         header.e_phentsize == sizeof(Elf64_Phdr) && header.e_phnum <= kMostHeaders;
}

/// Where `address` of the loaded object lies in the file.
std::optional<std::uint64_t> offset_of(const std::vector<Elf64_Phdr>& segments,
                                       std::uint64_t address) {
  for (const Elf64_Phdr& segment : segments) {
    const bool inside = segment.p_type == PT_LOAD && address >= segment.p_vaddr &&
                        address - segment.p_vaddr < segment.p_filesz;
    if (inside) return segment.p_offset + (address - segment.p_vaddr);
  }
  return std::nullopt;
}

std::string name_at(const FileDescriptor& file, std::uint64_t offset) {
  std::array<char, kLongestName> text{};
  const ssize_t got = ::pread(file.get(), text.data(), text.size() - 1, static_cast<off_t>(offset));
  return got > 0 ? std::string(text.data()) : std::string();
}

}  // namespace

Result<std::vector<std::string>> needed_libraries(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return fail_system(errno, path);
  const auto broken = [&] {
    return fail(Error::Code::invalid_argument,
                fmt::format("{}: not a shared object of this machine", path));
  };
  Elf64_Ehdr header{};
  if (!read_at(file, 0, &header, 1) || !is_ours(header)) return broken();
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  if (!read_at(file, header.e_phoff, segments.data(), segments.size())) return broken();

  std::vector<Elf64_Dyn> entries;
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type != PT_DYNAMIC) continue;
    entries.resize(segment.p_filesz / sizeof(Elf64_Dyn));
    if (entries.size() > kMostEntries) return broken();
    if (!read_at(file, segment.p_offset, entries.data(), entries.size())) return broken();
  }
  std::optional<std::uint64_t> names;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag == DT_STRTAB) names = offset_of(segments, entry.d_un.d_ptr);
  }
  std::vector<std::string> needed;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag != DT_NEEDED) continue;
    if (!names) return broken();
    needed.push_back(name_at(file, *names + entry.d_un.d_val));
  }
  return needed;
}

}  // namespace tarpon
