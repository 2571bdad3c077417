// NumPy .npy files of float32 and float64: what the tool reads as input and leaves as output.
//
// This reader is our own and strict: xtensor's loader accepts truncated files, refuses headers of
// 128 to 255 bytes and allocates what a header promises (tests use it as an independent reader).
// Calls block on the file system and may come from any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/cli/files/whole_file.h"
#include "xdp/base/result.h"

namespace tarpon {

enum class NpyType { float32, float64 };

std::size_t npy_type_bytes(NpyType type);
std::string_view npy_type_name(NpyType type);

/// An array in C order, little-endian. An empty shape is a scalar.
struct NpyArray {
  NpyType type = NpyType::float32;
  std::vector<std::size_t> shape;
  std::vector<std::byte> data;

  std::size_t elements() const { return data.size() / npy_type_bytes(type); }
};

/// Reads the whole file (format versions 1 to 3). Errors name the file and what is wrong with it:
/// truncated, bytes after the data, Fortran order in two or more dimensions, big-endian, other
/// element types. Allocates no more memory than the file's size requires.
Result<NpyArray> read_npy(const std::string& path);

/// Checks before long work whether write_npy() can succeed.
Result<void> check_npy_output(const std::string& path);

/// Writes `data` to a new file, which becomes or replaces the regular file `path` when the caller
/// commits it. Until then nothing in the directory changes.
/// REQUIRES: data.size() == the shape's product x npy_type_bytes(type).
Result<WholeFile> write_npy(const std::string& path, NpyType type,
                            const std::vector<std::size_t>& shape, std::span<const std::byte> data);

}  // namespace tarpon
