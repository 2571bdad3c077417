// Sends hostile packets to one rank of a job, class by class, and prints as JSON how many of each.
//
// Usage: hostile_sender --interface IF --mac MAC --to ADDR:PORT --from ADDR:PORT --job HEX
// [options]
// --from is the address of the rank in whose name packets go (--sender); --mac that of the attacked
// rank's interface. Run it as root in a network namespace on the job's network, never on a network
// of others. Classes that a rank believes today (forged ABORT, READY, CREDIT, early DATA, ...) go
// out with --stateful alone: they may end the job.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/hostile/hostile_frames.h"
#include "transport/ports/udp_socket.h"

namespace tarpon::hostile {
namespace {

struct Options {
  std::string interface;
  std::string mac;
  std::string to;
  std::string from;
  std::string job;
  std::string integrity = "udp";
  std::uint16_t receiver = 0;
  std::uint16_t sender = 1;
  std::uint64_t count = 200;
  double per_second = 10'000;
  std::uint64_t seed = 1;
  bool stateful = false;
};

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "hostile_sender: %s\n", what.c_str());
  std::exit(1);
}

sockaddr_in address_of(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) die("'" + text + "': give ADDRESS:PORT");
  const int port = std::atoi(text.c_str() + colon + 1);
  const auto address = ipv4_address(text.substr(0, colon), static_cast<std::uint16_t>(port));
  if (!address) die(address.error().message);
  return *address;
}

Target target_of(const Options& options) {
  Target target;
  target.interface = options.interface;
  auto& mac = target.mac;
  if (std::sscanf(options.mac.c_str(), "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", &mac[0], &mac[1], &mac[2],
                  &mac[3], &mac[4], &mac[5]) != 6) {
    die("'" + options.mac + "': give a MAC such as 02:00:00:00:00:01");
  }
  target.address = address_of(options.to);
  target.spoofed = address_of(options.from);
  target.receiver = options.receiver;
  target.sender = options.sender;
  target.job = static_cast<std::uint32_t>(std::stoul(options.job, nullptr, 16));
  target.integrity = options.integrity == "crc32c" ? TARPON_INTEGRITY_CRC32C
                     : options.integrity == "none" ? TARPON_INTEGRITY_NONE
                                                   : TARPON_INTEGRITY_UDP;
  return target;
}

int run(const Options& options) {
  auto sender = HostileSender::open(target_of(options));
  if (!sender) die(sender.error().message);
  Random random(options.seed);
  nlohmann::json sent = nlohmann::json::object();
  for (const HostileClass& one : classes()) {
    if (one.group == Group::stateful && !options.stateful) continue;
    const std::uint64_t count = sender->send(one, options.count, options.per_second, random);
    sent[std::string(one.name)] = {{"sent", count}, {"counter", std::string(one.counter)}};
  }
  std::printf("%s\n", sent.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace tarpon::hostile

int main(int argc, char** argv) {
  tarpon::hostile::Options options;
  CLI::App app("Sends hostile packets to one rank of a job.");
  app.add_option("--interface", options.interface, "to send from")->required();
  app.add_option("--mac", options.mac, "of the attacked rank")->required();
  app.add_option("--to", options.to, "ADDRESS:PORT of the attacked rank")->required();
  app.add_option("--from", options.from, "ADDRESS:PORT of another rank")->required();
  app.add_option("--job", options.job, "the job's cookie, hexadecimal")->required();
  app.add_option("--integrity", options.integrity, "of the job")
      ->check(CLI::IsMember({"udp", "crc32c", "none"}));
  app.add_option("--receiver", options.receiver, "rank that is attacked");
  app.add_option("--sender", options.sender, "rank of --from");
  app.add_option("--count", options.count, "packets of each class");
  app.add_option("--rate", options.per_second, "packets a second")->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "of random contents");
  app.add_flag("--stateful", options.stateful, "classes too that a rank believes");
  CLI11_PARSE(app, argc, argv);
  return tarpon::hostile::run(options);
}
