// main() of the test programs. A program holds the tests of several sources, and has a link for
// each of them: called by the name of a source it runs the tests of that source alone. It ends with
// 77, which ctest shows as skipped, if tests were skipped and none failed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace {

constexpr int kSkipped = 77;

/// Returns the names of all tests outside of `source` in the form of --gtest_filter; empty if the
/// program has no source of that name.
std::string tests_outside(const std::string& source) {
  const testing::UnitTest& program = *testing::UnitTest::GetInstance();
  std::string outside;
  bool known = false;
  for (int i = 0; i < program.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *program.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      if (std::filesystem::path(test.file()).stem() == source) {
        known = true;
      } else {
        outside += std::string(":") + suite.name() + "." + test.name();
      }
    }
  }
  return known ? outside : "";
}

/// Takes all other tests than those of `source` out of what --gtest_filter names.
void run_only(const std::string& source) {
  const std::string outside = tests_outside(source);
  if (outside.empty()) return;
  std::string filter = GTEST_FLAG_GET(filter);
  if (filter.find('-') == std::string::npos) filter += '-';
  GTEST_FLAG_SET(filter, filter + outside);
}

}  // namespace

int main(int count, char** arguments) {
  testing::InitGoogleMock(&count, arguments);
  run_only(std::filesystem::path(arguments[0]).filename());
  const int code = RUN_ALL_TESTS();
  const bool skipped = testing::UnitTest::GetInstance()->skipped_test_count() > 0;
  return code == 0 && skipped ? kSkipped : code;
}
