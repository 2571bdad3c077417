#include "collectives/rank_info.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <sstream>

namespace tarpon {
namespace {

std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

template <typename T>
bool number(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string encode(const RankInfo& info) {
  return fmt::format(
      "host {}\nnetwork {}\naddress {}\nport {}\ninterface {}\ndriver {}\nmtu {}\ndatapath "
      "{}\ndatapath_reason "
      "{}\n"
      "queues {}\nmax_payload {}\nreceive_bytes {}\nchecksums {}\nerror {}\n",
      one_line(info.host), info.network, info.address, info.port, info.interface,
      one_line(info.driver), info.mtu, info.datapath, one_line(info.datapath_reason), info.queues,
      info.max_payload, info.receive_bytes, info.checksums ? 1 : 0, one_line(info.error));
}

Result<RankInfo> decode_rank_info(const std::string& text) {
  std::map<std::string, std::string> fields;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t space = line.find(' ');
    if (space != std::string::npos) fields[line.substr(0, space)] = line.substr(space + 1);
  }
  RankInfo info;
  int checksums = 0;
  const bool good =
      fields.size() == 14 && number(fields["port"], info.port) && number(fields["mtu"], info.mtu) &&
      number(fields["queues"], info.queues) && number(fields["max_payload"], info.max_payload) &&
      number(fields["receive_bytes"], info.receive_bytes) && number(fields["checksums"], checksums);
  if (!good) {
    return fail(Error::Code::mismatch, "a rank described itself in a form this version lacks");
  }
  info.host = fields["host"];
  info.network = fields["network"];
  info.address = fields["address"];
  info.interface = fields["interface"];
  info.driver = fields["driver"];
  info.datapath = fields["datapath"];
  info.datapath_reason = fields["datapath_reason"];
  info.checksums = checksums != 0;
  info.error = fields["error"];
  return info;
}

}  // namespace tarpon
