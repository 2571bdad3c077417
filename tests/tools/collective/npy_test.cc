// .npy files: what is read, what is refused and how it is said, and that writing is all or nothing.
#include "tools/collective/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

namespace tarpon::npy_test {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class Npy : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "tarpon-npy-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string path(const std::string& name = "a.npy") const { return directory_ / name; }

  void put(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

  /// A file with this dictionary as numpy pads it, and so many bytes of data.
  static std::string file(std::string dictionary, std::size_t data_bytes, char major = 1) {
    const std::size_t lead = major == 1 ? 10 : 12;
    dictionary.resize((lead + dictionary.size() + 64) / 64 * 64 - lead - 1, ' ');
    dictionary += '\n';
    std::string out = std::string("\x93NUMPY") + major + '\0';
    for (std::size_t i = 0; i < lead - 8; ++i) {
      out += static_cast<char>(dictionary.size() >> (8 * i) & 0xff);
    }
    return out + dictionary + std::string(data_bytes, '\0');
  }

  static std::string header(const std::string& element, const std::string& shape,
                            const std::string& fortran = "False") {
    return "{'descr': '" + element + "', 'fortran_order': " + fortran + ", 'shape': " + shape +
           ", }";
  }

  /// Writes `bytes`, reads them and returns the one line of the refusal.
  std::string refusal(const std::string& bytes) const {
    put(bytes);
    const auto read = read_npy(path());
    if (read) return "accepted";
    EXPECT_THAT(read.error().message, ::testing::StartsWith(path() + ": "));
    EXPECT_EQ(read.error().message.find('\n'), std::string::npos);
    return read.error().message;
  }

  std::vector<std::string> left() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory_))
      names.push_back(entry.path().filename());
    return names;
  }

  fs::path directory_;
};

std::vector<std::byte> random_bytes(std::size_t count) {
  std::mt19937 random(7);
  std::vector<std::byte> out(count);
  for (std::byte& each : out) each = static_cast<std::byte>(random());
  return out;
}

/// The whole file under its name.
Result<void> save(const std::string& path, NpyType type, const std::vector<std::size_t>& shape,
                  std::span<const std::byte> data) {
  auto file = write_npy(path, type, shape, data);
  if (!file) return fail(file.error());
  return file->commit();
}

TEST_F(Npy, round_trip__types_and_shapes) {
  for (const NpyType type : {NpyType::float32, NpyType::float64}) {
    for (const std::vector<std::size_t>& shape :
         std::vector<std::vector<std::size_t>>{{},
                                               {0},
                                               {1},
                                               {1000},
                                               {3, 5},
                                               {2, 0, 4},
                                               {1, 2, 3, 4, 5, 6, 7},
                                               std::vector<std::size_t>(32, 1)}) {
      std::size_t count = 1;
      for (const std::size_t extent : shape) count *= extent;
      const auto data = random_bytes(count * npy_type_bytes(type));
      ASSERT_TRUE(save(path(), type, shape, data));
      const auto read = read_npy(path());
      ASSERT_TRUE(read) << read.error().message;
      EXPECT_EQ(read->type, type);
      EXPECT_EQ(read->shape, shape);
      EXPECT_EQ(read->data, data);
      EXPECT_EQ(read->elements(), count);
    }
  }
  EXPECT_EQ(left(), std::vector<std::string>{"a.npy"});
}

TEST_F(Npy, write_npy__data_is_aligned_to_64_bytes) {
  for (std::size_t digits = 1, extent = 1; digits < 10; ++digits, extent *= 10) {
    const auto data = random_bytes(0);
    ASSERT_TRUE(save(path(), NpyType::float32, {0, extent}, data));
    EXPECT_EQ(fs::file_size(path()) % 64, 0u);
  }
}

TEST_F(Npy, read_npy__accepts_all_versions_long_headers_and_any_key_order) {
  for (const char major : {'\1', '\2', '\3'}) {
    put(file(header("<f4", "(2,)"), 8, major));
    EXPECT_TRUE(read_npy(path()));
  }
  // Header lengths whose low byte is above 127.
  put(file(header("<f4", "(2,)") + std::string(120, ' '), 8));
  EXPECT_TRUE(read_npy(path()));
  put(file("{\"shape\": (2, ), 'fortran_order':False, 'descr': '<f8'}", 16));
  EXPECT_TRUE(read_npy(path()));
  // One dimension is the same in both orders.
  put(file(header("<f4", "(2,)", "True"), 8));
  EXPECT_TRUE(read_npy(path()));
}

TEST_F(Npy, read_npy__truncated_and_trailing) {
  EXPECT_THAT(
      refusal(file(header("<f4", "(283978,)"), 800000)),
      HasSubstr("truncated: the header promises 283978 float32 values, the file holds 200000"));
  EXPECT_THAT(refusal(file(header("<f8", "(2,)"), 15)),
              HasSubstr("promises 2 float64 values, the file holds 1"));
  EXPECT_THAT(refusal(file(header("<f4", "(2,)"), 9)),
              HasSubstr("1 bytes follow the 2 float32 values"));
  const std::string whole = file(header("<f4", "(2,)"), 0);
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_NE(refusal(whole.substr(0, bytes)), "accepted") << bytes;
  }
  EXPECT_THAT(refusal(whole.substr(0, 9)), HasSubstr("truncated inside the header"));
  EXPECT_THAT(refusal(whole.substr(0, 60)), HasSubstr("truncated inside the header"));
}

TEST_F(Npy, read_npy__unsupported_contents) {
  EXPECT_THAT(refusal("PK\x03\x04 this is a zip"), HasSubstr("not a .npy file"));
  EXPECT_THAT(refusal(""), HasSubstr("not a .npy file"));
  EXPECT_THAT(refusal(file(header("<f4", "(2,)"), 8, 9)), HasSubstr("unknown .npy version 9"));
  EXPECT_THAT(refusal(file(header("<f4", "(2, 2)", "True"), 16)), HasSubstr("Fortran order"));
  EXPECT_THAT(refusal(file(header(">f4", "(2,)"), 8)), HasSubstr("big-endian"));
  EXPECT_THAT(refusal(file(header("|O", "(2,)"), 16)), HasSubstr("Python objects"));
  EXPECT_THAT(refusal(file(header("<i8", "(2,)"), 16)), HasSubstr("'<i8'"));
  EXPECT_THAT(
      refusal(file("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", 8)),
      HasSubstr("records"));
}

TEST_F(Npy, read_npy__hostile_headers) {
  for (const char* text :
       {"", "{", "}", "{}", "x", "{'descr'}", "{'descr': '<f4'}",
        "{'descr': '<f4', 'shape': (2,), }",
        "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (2,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), } x",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 2, }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999999999,), }",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}"}) {
    EXPECT_THAT(refusal(file(text, 8)), HasSubstr("cannot be read")) << text;
  }
  // Promises nobody can keep must not be allocated.
  EXPECT_THAT(refusal(file(header("<f4", "(999999999999999999,)"), 8)), HasSubstr("truncated"));
  EXPECT_THAT(refusal(file(header("<f4", "(999999999999999999, 999999999999999999)"), 8)),
              HasSubstr("more values than memory can address"));
  std::string huge = file(header("<f4", "(2,)"), 8, 2);
  huge[11] = '\x7f';
  EXPECT_THAT(refusal(huge), HasSubstr("the header claims"));
}

TEST_F(Npy, read_npy__random_damage_never_crashes) {
  constexpr unsigned kSeed = 3;
  std::mt19937 random(kSeed);
  const std::string good = file(header("<f4", "(4, 2)"), 32);
  for (int i = 0; i < 2000; ++i) {
    std::string bad = good;
    for (unsigned n = 1 + random() % 4; n > 0; --n)
      bad[random() % 80] = static_cast<char>(random());
    put(bad);
    const auto read = read_npy(path());
    EXPECT_TRUE(!read || read->data.size() == 32) << "seed " << kSeed;
  }
}

TEST_F(Npy, read_npy__not_a_regular_file) {
  EXPECT_THAT(read_npy(directory_).error().message, HasSubstr("not a regular file"));
  EXPECT_THAT(read_npy("/dev/zero").error().message, HasSubstr("not a regular file"));
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_THAT(read_npy(path("fifo")).error().message, HasSubstr("not a regular file"));
  EXPECT_THAT(read_npy(path("none")).error().message, HasSubstr("No such file"));
}

TEST_F(Npy, write_npy__refuses_what_it_cannot_replace) {
  const auto data = random_bytes(8);
  EXPECT_THAT(write_npy("/dev/full", NpyType::float32, {2}, data).error().message,
              HasSubstr("/dev/full: is not a regular file"));
  EXPECT_FALSE(write_npy(directory_, NpyType::float32, {2}, data));
  EXPECT_THAT(write_npy(path("no/a.npy"), NpyType::float32, {2}, data).error().message,
              HasSubstr("No such file"));
  EXPECT_THAT(write_npy(path(), NpyType::float32, {3}, data).error().message, HasSubstr("8 bytes"));
  EXPECT_FALSE(check_npy_output("/dev/full"));
  EXPECT_TRUE(check_npy_output(path()));
  EXPECT_TRUE(write_npy(path(), NpyType::float32, {2}, data)) << "not committed";
  EXPECT_TRUE(left().empty());
}

/// Runs `body` in a child; its exit code. Limits and mounts of the child end with it.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST_F(Npy, write_npy__failure_keeps_the_old_file_and_leaves_nothing) {
  ASSERT_TRUE(save(path(), NpyType::float32, {2}, random_bytes(8)));
  const int code = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{64 << 10, 64 << 10};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    const auto written = save(path(), NpyType::float32, {1 << 20}, random_bytes(4 << 20));
    if (written) return 2;
    return written.error().message.find("File too large") == std::string::npos ? 3 : 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(left(), std::vector<std::string>{"a.npy"});
  EXPECT_EQ(read_npy(path())->data, random_bytes(8));
}

TEST_F(Npy, write_npy__disk_full) {
  const int code = in_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", directory_.c_str(), "tmpfs", 0, "size=64k") != 0) {
      return 77;
    }
    const auto written = save(path(), NpyType::float32, {1 << 20}, random_bytes(4 << 20));
    if (written || written.error().system_errno != ENOSPC) return 2;
    if (written.error().message.find(path()) == std::string::npos) return 3;
    return left().empty() ? 0 : 4;
  });
  if (code == 77) GTEST_SKIP() << "mounting a small tmpfs needs root";
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace tarpon::npy_test
