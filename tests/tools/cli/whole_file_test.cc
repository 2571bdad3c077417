// Files that appear whole or not at all, whatever happens to their writer.
#include "tools/cli/files/whole_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

namespace tarpon::whole_file_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class WholeFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = (fs::temp_directory_path() / "tarpon-whole-XXXXXX").string();
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string path() const { return directory_ + "/a"; }

  std::string content() const {
    std::ifstream file(path());
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  Result<void> put(std::string_view text) const {
    auto file = WholeFile::create(path());
    if (!file) return fail(file.error());
    if (auto written = file->write(std::as_bytes(std::span(text))); !written) return written;
    return file->commit();
  }

  std::string directory_;
};

/// Runs `body` in a child; its exit code, or 128 + the signal that ended it.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// From here on, open() of a nameless file fails in this process, as on a file system without it.
bool forbid_nameless_files() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_TMPFILE & ~O_DIRECTORY, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST_F(WholeFiles, commit__new_and_again) {
  ASSERT_TRUE(put("one"));
  EXPECT_EQ(content(), "one");
  ASSERT_TRUE(put("two"));
  EXPECT_EQ(content(), "two");
  EXPECT_THAT(names(), ElementsAre("a"));
}

TEST_F(WholeFiles, commit__in_the_working_directory) {
  const int code = in_child([&] {
    if (::chdir(directory_.c_str()) != 0) return 1;
    auto file = WholeFile::create("a");
    return file && file->commit() ? 0 : 2;
  });
  EXPECT_EQ(code, 0);
  EXPECT_THAT(names(), ElementsAre("a"));
}

TEST_F(WholeFiles, killed_writer__leaves_nothing) {
  const auto killed = [&] {
    auto file = WholeFile::create(path());
    if (!file || !file->write(std::as_bytes(std::span("half", 4)))) return 1;
    ::raise(SIGKILL);
    return 2;
  };
  EXPECT_EQ(in_child(killed), 128 + SIGKILL);
  EXPECT_THAT(names(), IsEmpty());
  ASSERT_TRUE(put("old"));
  EXPECT_EQ(in_child(killed), 128 + SIGKILL);
  EXPECT_EQ(content(), "old");
  EXPECT_THAT(names(), ElementsAre("a"));
}

TEST_F(WholeFiles, no_commit__keeps_what_was_there) {
  ASSERT_TRUE(put("old"));
  {
    auto file = WholeFile::create(path());
    ASSERT_TRUE(file);
    const WholeFile moved = std::move(*file);
  }
  EXPECT_EQ(content(), "old");
  EXPECT_THAT(names(), ElementsAre("a"));
}

TEST_F(WholeFiles, no_nameless_files__a_temporary_name) {
  const int code = in_child([&] {
    if (!forbid_nameless_files()) return 77;
    if (!put("one") || !put("two")) return 1;
    auto file = WholeFile::create(path());
    if (!file || names().size() != 2) return 2;
    file = fail(Error::Code::io, "gone");
    return names().size() == 1 ? 0 : 3;
  });
  if (code == 77) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(code, 0);
  EXPECT_EQ(content(), "two");
}

TEST_F(WholeFiles, replaced_file__keeps_its_permissions_and_owner) {
  constexpr uid_t kOther = 4711;
  ASSERT_TRUE(put("old"));
  ASSERT_EQ(::chmod(path().c_str(), 0640), 0);
  const bool gives_away = ::chown(path().c_str(), kOther, kOther) == 0;
  const auto kept = [&] {
    struct stat now {};
    return ::stat(path().c_str(), &now) == 0 && (now.st_mode & 07777) == 0640 &&
           (!gives_away || now.st_uid == kOther);
  };
  ASSERT_TRUE(put("new"));
  EXPECT_EQ(content(), "new");
  EXPECT_TRUE(kept());
  const int code = in_child([&] { return !forbid_nameless_files() ? 77 : put("newer") ? 0 : 1; });
  if (code == 77) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(code, 0);
  EXPECT_EQ(content(), "newer");
  EXPECT_TRUE(kept());
}

TEST_F(WholeFiles, link__stays_and_its_target_is_made) {
  fs::create_symlink("b", path());
  fs::create_symlink(directory_ + "/c", directory_ + "/b");
  for (const char* text : {"one", "two"}) {
    ASSERT_TRUE(WholeFile::check(path()));
    ASSERT_TRUE(put(text));
    EXPECT_TRUE(fs::is_symlink(path()));
    EXPECT_TRUE(fs::is_symlink(directory_ + "/b"));
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(directory_ + "/c")));
    EXPECT_EQ(content(), text);
  }
  fs::remove(directory_ + "/c");
  fs::create_symlink("a", directory_ + "/c");
  EXPECT_THAT(put("round").error().message, HasSubstr("Too many levels of symbolic links"));
}

TEST_F(WholeFiles, link_to_a_descriptor__written_straight) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const int file = ::open((directory_ + "/log").c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(::write(file, "log,", 4), 4);
  for (const int fd : {pipe[1], file}) {
    fs::remove(path());
    fs::create_symlink("/proc/self/fd/" + std::to_string(fd), path());
    EXPECT_TRUE(WholeFile::is_direct(path()));
    EXPECT_TRUE(WholeFile::check(path()));
    ASSERT_TRUE(put("text"));
    EXPECT_TRUE(fs::is_symlink(path()));
  }
  std::array<char, 16> got{};
  EXPECT_EQ(::read(pipe[0], got.data(), got.size()), 4);
  EXPECT_STREQ(got.data(), "text");
  EXPECT_EQ(::pread(file, got.data(), got.size(), 0), 8);
  EXPECT_STREQ(got.data(), "log,text");
  for (const int fd : {pipe[0], pipe[1], file}) ::close(fd);
}

/// Links of other users; only root can make them.
class ForeignLinks : public WholeFiles {
 protected:
  void SetUp() override {
    WholeFiles::SetUp();
    if (::geteuid() != 0) GTEST_SKIP() << "only root can make links that belong to others";
    ASSERT_EQ(::chmod(directory_.c_str(), 01777), 0);  // like /tmp
    std::ofstream(directory_ + "/target") << "precious";
  }
  void plant(const std::string& target, const std::string& name, uid_t owner) const {
    fs::create_symlink(target, directory_ + "/" + name);
    ASSERT_EQ(::lchown((directory_ + "/" + name).c_str(), owner, owner), 0);
  }
  std::string precious() const {
    std::ifstream file(directory_ + "/target");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  static constexpr uid_t kNobody = 65534;
};

TEST_F(ForeignLinks, file__a_strangers_link_is_refused) {
  plant("target", "a", kNobody);
  const auto done = put("new");
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Error::Code::permission);
  EXPECT_THAT(done.error().message,
              HasSubstr("/a: the symbolic link \"a\" belongs to another user (65534)"));
  EXPECT_FALSE(WholeFile::check(path()));
  EXPECT_EQ(precious(), "precious");
}

TEST_F(ForeignLinks, file__a_strangers_link_behind_our_own_is_refused) {
  plant("b", "a", 0);
  plant("target", "b", kNobody);
  EXPECT_FALSE(put("new"));
  EXPECT_EQ(precious(), "precious");
}

TEST_F(ForeignLinks, file__our_own_link_works) {
  plant("target", "a", 0);
  ASSERT_TRUE(put("new"));
  EXPECT_EQ(precious(), "new");
  EXPECT_TRUE(fs::is_symlink(path()));
}

TEST_F(ForeignLinks, directory__a_strangers_link_is_refused) {
  fs::create_directory(directory_ + "/real");
  plant("real", "to", kNobody);
  EXPECT_FALSE(WholeFile::create(directory_ + "/to/file"));
  EXPECT_FALSE(open_stream(directory_ + "/to/file", "w"));
  EXPECT_FALSE(open_output_directory(directory_ + "/to"));
  EXPECT_TRUE(fs::is_empty(directory_ + "/real"));
}

TEST_F(ForeignLinks, directory__the_owners_link_in_a_private_directory_works) {
  fs::create_directories(directory_ + "/home/real");
  ASSERT_EQ(::lchown((directory_ + "/home").c_str(), kNobody, kNobody), 0);
  plant("real", "home/to", kNobody);
  const auto file = WholeFile::create(directory_ + "/home/to/file");
  EXPECT_TRUE(file) << file.error().message;
}

TEST_F(ForeignLinks, stream__a_strangers_link_is_refused) {
  plant("target", "a", kNobody);
  EXPECT_FALSE(open_stream(path(), "a"));
  EXPECT_FALSE(open_stream(path(), "w"));
  EXPECT_EQ(precious(), "precious");
}

TEST_F(ForeignLinks, pipe__of_a_stranger_is_refused) {
  ASSERT_EQ(::mkfifo(path().c_str(), 0666), 0);
  ASSERT_EQ(::lchown(path().c_str(), kNobody, kNobody), 0);
  EXPECT_FALSE(put("new")) << "and does not wait for a reader";
}

TEST_F(ForeignLinks, link_planted_after_the_look__is_replaced) {
  auto file = WholeFile::create(path());
  ASSERT_TRUE(file);
  ASSERT_TRUE(file->write(std::as_bytes(std::span("new", 3))));
  plant("target", "a", kNobody);
  ASSERT_TRUE(file->commit());
  EXPECT_EQ(precious(), "precious");
  EXPECT_FALSE(fs::is_symlink(path()));
  EXPECT_EQ(content(), "new");
}

TEST_F(WholeFiles, stream__writes_and_appends) {
  for (const char* mode : {"w", "a", "a"}) {
    const auto stream = open_stream(path(), mode);
    ASSERT_TRUE(stream) << stream.error().message;
    std::fputs("x", *stream);
    std::fclose(*stream);
  }
  EXPECT_EQ(content(), "xxx");
}

TEST_F(WholeFiles, check__says_so_before) {
  EXPECT_TRUE(WholeFile::check(path()));
  EXPECT_THAT(names(), IsEmpty());
  EXPECT_TRUE(WholeFile::check("/dev/null"));
  EXPECT_THAT(WholeFile::check(directory_ + "/no/a").error().message, HasSubstr("No such file"));
  EXPECT_THAT(WholeFile::check(directory_).error().message, HasSubstr("Is a directory"));
}

}  // namespace
}  // namespace tarpon::whole_file_test
