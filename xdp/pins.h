// The BPF file system, where a pinned link or program outlives its process; and our directories in
// it: one an interface, with the link and the maps of the program that an administrator loaded.
//
// Any thread. Nobody else's files are changed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "xdp/result.h"

namespace tarpon::xdp {

inline constexpr const char* kBpfFileSystem = "/sys/fs/bpf";
inline constexpr std::string_view kLinkPin = "link";

bool bpf_file_system_mounted();

/// Whether a file system that this process mounts would go with it: it has a mount namespace of its
/// own, as below `ip netns exec`.
bool mounts_go_with_this_process();

/// Mounts it at kBpfFileSystem where it is not. Errors: permission; unavailable where
/// mounts_go_with_this_process(), io.
Result<void> mount_bpf_file_system();

/// kBpfFileSystem/tarpon
std::string pin_root();
/// Of this network namespace: below pin_root(), by namespace and name.
std::string default_pin_directory(unsigned interface);
/// Whether `directory` lies below pin_root() and belongs to this network namespace.
bool is_of_this_namespace(const std::string& directory);

/// Whether `directory`, or where it would be made, lies on a BPF file system; changes nothing.
/// Errors: invalid_argument.
Result<void> check_pin_directory(const std::string& directory);

/// Makes a directory and those above it. Errors: invalid_argument (not on a BPF file system),
/// permission, io.
Result<void> make_pin_directory(const std::string& directory);

/// Removes the files that we make there, then the directory and pin_root() when they are empty.
/// Nothing when it is not on a BPF file system: ordinary files may have the same names.
void remove_pin_directory(const std::string& directory);

/// A pinned link or program, whoever's it is.
struct Pin {
  std::string path;
  std::uint32_t program = 0;  // id
  std::uint32_t link = 0;     // id; 0: the program itself is pinned
  unsigned interface = 0;     // of the link; 0: it is gone, or the link is of another kind
  bool ours = false;          // our program
};

/// Whether a link is pinned in `directory` as ours are; true when that cannot be told.
bool holds_link_pin(const std::string& directory);

/// Every one on the mounted BPF file systems, as far as we may open them, at most six directories
/// deep.
std::vector<Pin> find_pins();

}  // namespace tarpon::xdp
