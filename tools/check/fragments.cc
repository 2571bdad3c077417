#include "tools/check/fragments.h"

#include <fstream>
#include <sstream>
#include <string>

namespace tarpon {

std::uint64_t fragmented_packets(std::istream& snmp) {
  // "Ip: NAME NAME ..." and then "Ip: VALUE VALUE ...".
  std::string names, values;
  for (std::string line; std::getline(snmp, line);) {
    if (!line.starts_with("Ip: ")) continue;
    (names.empty() ? names : values) = line;
  }
  std::istringstream name_words(names), value_words(values);
  for (std::string name, value; name_words >> name && value_words >> value;) {
    if (name != "FragOKs") continue;
    std::uint64_t count = 0;
    std::istringstream(value) >> count;
    return count;
  }
  return 0;
}

std::uint64_t fragmented_packets() {
  std::ifstream snmp("/proc/thread-self/net/snmp");
  return fragmented_packets(snmp);
}

}  // namespace tarpon
