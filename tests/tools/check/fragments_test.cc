// The kernel's count of packets that it cut into fragments.
#include "tools/check/fragments.h"

#include <gtest/gtest.h>

#include <sstream>

namespace tarpon::fragments_test {
namespace {

TEST(Fragments, count__stands_below_its_name) {
  std::istringstream snmp(
      "Ip: Forwarding DefaultTTL ReasmFails FragOKs FragFails FragCreates\n"
      "Ip: 1 64 3 41 5 82\n"
      "Icmp: InMsgs\nIcmp: 9\n");
  EXPECT_EQ(fragmented_packets(snmp), 41u);
}

TEST(Fragments, nothing__where_the_file_does_not_say) {
  for (const char* text :
       {"", "Ip: Forwarding\nIp: 1\n", "Ip: FragOKs\n", "Ip: FragOKs\nIp: x\n"}) {
    std::istringstream snmp(text);
    EXPECT_EQ(fragmented_packets(snmp), 0u) << text;
  }
}

}  // namespace
}  // namespace tarpon::fragments_test
