// What counts as a secret, and where it may come from.
#include "collectives/job_secret.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/rendezvous_job.h"

namespace tarpon::job_secret_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class JobSecretTest : public testing::Test {
 protected:
  std::string write(const std::string& content, mode_t mode = 0600) {
    std::ofstream(path_) << content;
    EXPECT_EQ(chmod(path_.c_str(), mode), 0);
    return path_;
  }
  static std::string text(const JobSecret& secret) {
    return {reinterpret_cast<const char*>(secret.bytes().data()), secret.bytes().size()};
  }
  static std::size_t write_all(int descriptor, const std::string& content) {
    return static_cast<std::size_t>(::write(descriptor, content.data(), content.size()));
  }
  std::string refusal(const std::string& path) {
    const auto secret = JobSecret::read_file(path);
    return secret ? "accepted" : secret.error().message;
  }

  const testing_support::Directory directory_;
  const std::string path_ = directory_.file();
};

TEST_F(JobSecretTest, read_file__takes_32_to_4096_bytes__but_no_newline_at_the_end) {
  for (const std::size_t size : {32u, 64u, 4096u}) {
    const std::string content(size, 'x');
    for (const char* end : {"", "\n", "\r\n"}) {
      const auto secret = JobSecret::read_file(write(content + end));
      ASSERT_TRUE(secret) << secret.error().message;
      EXPECT_EQ(text(**secret), content);
    }
  }
}

TEST_F(JobSecretTest, read_file__refuses__with_one_line_and_a_remedy) {
  EXPECT_THAT(refusal(write(std::string(31, 'x') + "\n")),
              AllOf(HasSubstr(path_), HasSubstr("has 31 bytes: a secret has 32 to 4096"),
                    HasSubstr("openssl rand -hex 32")));
  EXPECT_THAT(refusal(write(std::string(4097, 'x'))), HasSubstr("has more than 4096 bytes"));
  EXPECT_THAT(refusal(write("")), HasSubstr("has 0 bytes"));
  for (const mode_t mode : {0640u, 0604u, 0620u, 0602u, 0601u}) {
    EXPECT_THAT(refusal(write(std::string(32, 'x'), mode)),
                AllOf(HasSubstr("is open to other users"), HasSubstr("chmod 600 " + path_)));
  }
  EXPECT_THAT(refusal(directory_.file() + ".missing"),
              AllOf(HasSubstr("cannot be opened: No such file"), HasSubstr("openssl rand")));
  const std::string folder = directory_.file() + ".d";
  std::filesystem::create_directory(folder);
  EXPECT_THAT(refusal(folder), AllOf(HasSubstr("is no regular file"), HasSubstr("openssl rand")));
  EXPECT_THAT(refusal(""), HasSubstr("the name of the secret file is empty"));
  const std::string link = directory_.file() + ".link";
  std::filesystem::create_symlink(write(std::string(32, 'x')), link);
  EXPECT_THAT(refusal(link), HasSubstr("is a symbolic link"));
  const std::string fifo = directory_.file() + ".fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(refusal(fifo), HasSubstr("is no regular file"));
}

TEST_F(JobSecretTest, read_file__refuses_a_file_of_another_user) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to give a file to another user";
  write(std::string(32, 'x'));
  ASSERT_EQ(chown(path_.c_str(), 1234, 0), 0);
  EXPECT_THAT(refusal(path_), HasSubstr("belongs to user 1234"));
}

TEST_F(JobSecretTest, read_file__follows_the_link_of_a_descriptor__and_checks_its_file) {
  const std::string content(32, 'd');
  const int descriptor = memfd_create("test", MFD_CLOEXEC);
  ASSERT_EQ(write_all(descriptor, content), content.size());
  ASSERT_EQ(fchmod(descriptor, 0600), 0);
  const std::string place = "/fd/" + std::to_string(descriptor);
  for (const std::string& owner : {std::string("self"), std::to_string(getpid())}) {
    const auto secret = JobSecret::read_file("/proc/" + owner + place);
    ASSERT_TRUE(secret) << secret.error().message;
    EXPECT_EQ(text(**secret), content);
  }
  ASSERT_EQ(fchmod(descriptor, 0644), 0);
  EXPECT_THAT(refusal("/proc/self" + place), HasSubstr("is open to other users"));
  // Another process may have its number by now.
  write(content);
  ASSERT_EQ(chmod(path_.c_str(), 0600), 0);
  const int named = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  const std::string of_named = "/fd/" + std::to_string(named);
  EXPECT_TRUE(JobSecret::read_file("/proc/self" + of_named));
  EXPECT_THAT(refusal("/proc/" + std::to_string(getpid()) + of_named),
              HasSubstr("is a file with a name: give that name"));
  close(named);
  // Other links below /proc, and paths that look like it, are links as all others.
  EXPECT_THAT(refusal("/proc/self/exe"), HasSubstr("is a symbolic link"));
  EXPECT_THAT(refusal("/proc/self/../self" + place), HasSubstr("is a symbolic link"));
  EXPECT_THAT(refusal("/proc/self/fd/999999"), HasSubstr("cannot be opened: No such file"));
  close(descriptor);
}

TEST_F(JobSecretTest, read_descriptor__reads_a_file_from_its_begin__each_time) {
  const std::string content(40, 'p');
  write(content);
  const int file = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  const int twin = dup(file);
  for (const int descriptor : {file, twin}) {
    const auto secret = JobSecret::read_descriptor(descriptor);
    ASSERT_TRUE(secret) << secret.error().message;
    EXPECT_EQ(text(**secret), content);
  }
  close(twin);
  for (const int closed : {twin, -1}) {
    const auto none = JobSecret::read_descriptor(closed);
    ASSERT_FALSE(none);
    EXPECT_THAT(none.error().message, HasSubstr("is not open in this process"));
  }
  ASSERT_EQ(chmod(path_.c_str(), 0644), 0);
  const auto open_to_all = JobSecret::read_descriptor(file);
  ASSERT_FALSE(open_to_all);
  EXPECT_THAT(open_to_all.error().message, HasSubstr("is open to other users (mode 0644)"));
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const auto piped = JobSecret::read_descriptor(ends[0]);
  ASSERT_FALSE(piped);
  EXPECT_THAT(piped.error().message, HasSubstr("is no file"));
  for (const int end : {ends[0], ends[1], file}) close(end);
}

TEST_F(JobSecretTest, random__differs) {
  const auto one = JobSecret::random(), other = JobSecret::random();
  ASSERT_TRUE(one && other);
  EXPECT_NE(text(**one), text(**other));
}

}  // namespace
}  // namespace tarpon::job_secret_test
