// .npy files, which come from anywhere.
#include "tools/collective/npy.h"

#include <limits>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scratch_file.h"

using namespace tarpon;
using fuzz::require;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string path = fuzz::path_of_file(data, size);
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
