// Our .npy files against an independent reader and writer.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <span>
#include <xtensor/xnpy.hpp>

#include "tools/collective/npy.h"

namespace tarpon {
namespace {

/// A name of this test's own, removed with it.
struct TemporaryPath {
  std::string path = ::testing::TempDir() + "tarpon-npy-" + std::to_string(::getpid()) + ".npy";
  TemporaryPath() = default;
  TemporaryPath(const TemporaryPath&) = delete;
  ~TemporaryPath() { ::unlink(path.c_str()); }
};

TEST(NpyXtensor, xtensor_reads_what_we_write) {
  const TemporaryPath file;
  const std::vector<float> values = {1.5f, -2, 3, 4, 5, 6};
  auto ours = write_npy(file.path, NpyType::float32, {2, 3}, std::as_bytes(std::span(values)));
  ASSERT_TRUE(ours && ours->commit());
  const auto array = xt::load_npy<float>(file.path);
  EXPECT_EQ(std::vector<std::size_t>(array.shape().begin(), array.shape().end()),
            (std::vector<std::size_t>{2, 3}));
  EXPECT_EQ(std::vector<float>(array.begin(), array.end()), values);
}

TEST(NpyXtensor, we_read_what_xtensor_writes) {
  const TemporaryPath file;
  const xt::xarray<double> array = {{1.5, -2}, {3, 4}, {5, 6}};
  xt::dump_npy(file.path, array);
  const auto read = read_npy(file.path);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->type, NpyType::float64);
  EXPECT_EQ(read->shape, (std::vector<std::size_t>{3, 2}));
  EXPECT_EQ(std::memcmp(read->data.data(), array.data(), read->data.size()), 0);
}

}  // namespace
}  // namespace tarpon
