#include "tools/cli/wrapped_text.h"

#include <gtest/gtest.h>

namespace tarpon::wrapped_text_test {
namespace {

TEST(WrappedText, wrapped__breaks_at_blanks) {
  EXPECT_EQ(wrapped("# a bc def", "#  ", 20), "# a bc def");
  EXPECT_EQ(wrapped("# a bc def", "#  ", 10), "# a bc def");
  EXPECT_EQ(wrapped("# a bc def", "#  ", 9), "# a bc\n#  def");
  EXPECT_EQ(wrapped("# a bc def gh", "#  ", 7), "# a bc\n#  def\n#  gh");
}

TEST(WrappedText, wrapped__keeps_long_words_whole) {
  EXPECT_EQ(wrapped("abcdefghij kl", "  ", 4), "abcdefghij\n  kl");
  EXPECT_EQ(wrapped("abcdefghij", "  ", 4), "abcdefghij");
  EXPECT_EQ(wrapped("    abcdef", "  ", 6), "    abcdef");
  EXPECT_EQ(wrapped("", "  ", 6), "");
}

}  // namespace
}  // namespace tarpon::wrapped_text_test
