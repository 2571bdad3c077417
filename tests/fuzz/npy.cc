// .npy files, which come from anywhere.
#include "tools/collective/npy.h"

#include <sys/mman.h>
#include <unistd.h>

#include <limits>

#include "tests/fuzz/fuzz.h"

using namespace tarpon;
using fuzz::require;

namespace {

/// A file in memory; made once, since a system call costs more than the parser.
const FileDescriptor& scratch_file() {
  static const FileDescriptor file(::memfd_create("tarpon-fuzz", MFD_CLOEXEC));
  require(static_cast<bool>(file), "memfd_create works");
  return file;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const FileDescriptor& file = scratch_file();
  require(::ftruncate(file.get(), 0) == 0, "ftruncate works");
  require(::pwrite(file.get(), data, size, 0) == static_cast<ssize_t>(size), "pwrite works");
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  const auto array = read_npy(path);
  if (!array) {
    require(array.error().message.starts_with(path), "a refusal names the file");
    require(array.error().message.size() < 70'000, "a refusal does not grow without limit");
    return 0;
  }
  require(array->data.size() <= size, "no more is read than the file holds");
  std::size_t count = 1;
  for (const std::size_t extent : array->shape) count *= extent;
  require(count == array->elements(), "the shape describes the data");
  return 0;
}
