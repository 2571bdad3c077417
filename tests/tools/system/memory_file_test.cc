#include "tools/system/memory_file.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

namespace tarpon::memory_file_test {
namespace {

TEST(MemoryFile, processes_write_at_once__nothing_is_written_over) {
  constexpr int kLines = 50'000;  // longer than a process takes to start: they overlap
  const FileDescriptor file = make_memory_file();
  ASSERT_TRUE(file);
  std::vector<pid_t> writers;
  for (int writer = 0; writer < 2; ++writer) {
    writers.push_back(::fork());
    if (writers.back() != 0) continue;
    for (int line = 0; line < kLines; ++line) {
      if (::write(file.get(), "a line\n", 7) != 7) ::_exit(1);
    }
    ::_exit(0);
  }
  for (const pid_t writer : writers) {
    int status = -1;
    ASSERT_EQ(::waitpid(writer, &status, 0), writer);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(memory_file_content(file).value().size(), writers.size() * kLines * 7);
}

}  // namespace
}  // namespace tarpon::memory_file_test
