#include "collectives/environment/environment_options.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <utility>

#include "collectives/environment/probability.h"
#include "transport/clock.h"
#include "transport/integrity.h"

namespace tarpon {
namespace {

Result<Datapath> parse_datapath(const std::string& text) {
  for (const Datapath each :
       {Datapath::automatic, Datapath::xdp, Datapath::uring, Datapath::mmsg}) {
    if (text == name(each)) return each;
  }
  return fail(Error::Code::invalid_argument,
              fmt::format("TARPON_DATAPATH={}: use auto, xdp, uring or mmsg", text));
}

Result<CodecRule> parse_codec(const std::string& text) {
  for (const CodecRule each : {CodecRule::automatic, CodecRule::on, CodecRule::off}) {
    if (text == name(each)) return each;
  }
  return fail(Error::Code::invalid_argument,
              fmt::format("TARPON_CODEC={}: use auto, on or off", text));
}

Result<double> parse_loss_target(const std::string& text) {
  const auto share = parse_probability(text);
  if (!share) {
    return fail(Error::Code::invalid_argument,
                fmt::format("TARPON_LOSS_TARGET: {}", share.error().message));
  }
  if (*share <= 0 || *share >= 1) {
    return fail(Error::Code::invalid_argument,
                fmt::format("TARPON_LOSS_TARGET={}: give a share above 0% and below 100%, such as "
                            "0.1%",
                            text));
  }
  return *share;
}

Result<bool> parse_rotation(const std::string& text) {
  if (text == "rotating" || text == "fixed") return text == "rotating";
  return fail(Error::Code::invalid_argument,
              fmt::format("TARPON_ORDER={}: use rotating or fixed", text));
}

Result<bool> parse_switch(const char* variable, const std::string& text) {
  if (text == "on" || text == "off") return text == "on";
  return fail(Error::Code::invalid_argument, fmt::format("{}={}: use on or off", variable, text));
}

Result<bool> parse_shares(const std::string& text) {
  if (text == "auto" || text == "even") return text == "auto";
  return fail(Error::Code::invalid_argument,
              fmt::format("TARPON_SHARES={}: use even or auto", text));
}

Result<std::uint32_t> parse_lanes(const std::string& text) {
  if (text == "auto") return 0;
  if (text.size() == 1 && text[0] >= '1' &&
      text[0] <= '0' + static_cast<int>(CommunicatorOptions::kMaxLanes)) {
    return static_cast<std::uint32_t>(text[0] - '0');
  }
  return fail(Error::Code::invalid_argument, fmt::format("TARPON_LANES={}: use auto, or 1 to {}",
                                                         text, CommunicatorOptions::kMaxLanes));
}

Result<tarpon_integrity> parse_integrity(const std::string& text) {
  for (const tarpon_integrity each : {TARPON_INTEGRITY_KEYED, TARPON_INTEGRITY_SEALED}) {
    if (text == name(each)) return each;
  }
  return fail(Error::Code::invalid_argument,
              fmt::format("TARPON_INTEGRITY={}: use keyed or sealed", text));
}

/// "500ms", "30s", "2m", "1h".
Result<Duration> parse_timeout(const std::string& text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"ms", 1e6}, {"s", 1e9}, {"m", 6e10}, {"h", 3.6e12}};
  constexpr double kLongest = 1e18;  // ns
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  for (const auto& [unit, factor] : kUnits) {
    const double value = number * factor;
    if (error != std::errc() || unit != end || !(value >= 1 && value <= kLongest)) continue;
    return Duration(static_cast<Duration::rep>(value));
  }
  return fail(
      Error::Code::invalid_argument,
      fmt::format("TARPON_RENDEZVOUS_TIMEOUT={}: give a duration above 0, such as 90s or 5m",
                  text));
}

}  // namespace

Result<EnvironmentSettings> read_settings(const Environment& environment) {
  EnvironmentSettings settings;
  if (const auto text = environment("TARPON_DATAPATH")) {
    const auto datapath = parse_datapath(*text);
    if (!datapath) return fail(datapath.error());
    settings.datapath = *datapath;
  }
  if (const auto text = environment("TARPON_CODEC")) {
    const auto codec = parse_codec(*text);
    if (!codec) return fail(codec.error());
    settings.codec = *codec;
  }
  if (const auto text = environment("TARPON_LOSS_TARGET")) {
    const auto share = parse_loss_target(*text);
    if (!share) return fail(share.error());
    settings.loss_target = *share;
  }
  if (const auto text = environment("TARPON_ORDER")) {
    const auto rotation = parse_rotation(*text);
    if (!rotation) return fail(rotation.error());
    settings.rotation = *rotation;
  }
  if (const auto text = environment("TARPON_MULTICAST")) {
    const auto multicast = parse_switch("TARPON_MULTICAST", *text);
    if (!multicast) return fail(multicast.error());
    settings.multicast = *multicast;
  }
  if (const auto text = environment("TARPON_HOSTS")) {
    const auto hosts = parse_switch("TARPON_HOSTS", *text);
    if (!hosts) return fail(hosts.error());
    settings.hosts = *hosts;
  }
  if (const auto text = environment("TARPON_LANES")) {
    const auto lanes = parse_lanes(*text);
    if (!lanes) return fail(lanes.error());
    settings.lanes = *lanes;
  }
  if (const auto text = environment("TARPON_SHARES")) {
    const auto learn_shares = parse_shares(*text);
    if (!learn_shares) return fail(learn_shares.error());
    settings.learn_shares = *learn_shares;
  }
  settings.flight = environment("TARPON_FLIGHT");
  if (const auto text = environment("TARPON_RENDEZVOUS_TIMEOUT")) {
    const auto timeout = parse_timeout(*text);
    if (!timeout) return fail(timeout.error());
    settings.rendezvous_timeout = *timeout;
  }
  if (const auto text = environment("TARPON_PORTS")) {
    const auto ports = parse_port_range(*text);
    if (!ports) return fail(ports.error().code, "TARPON_PORTS: " + ports.error().message);
    settings.ports = *ports;
  }
  if (const auto text = environment("TARPON_INTEGRITY")) {
    const auto integrity = parse_integrity(*text);
    if (!integrity) return fail(integrity.error());
    settings.integrity = *integrity;
  }
  return settings;
}

Result<std::shared_ptr<const JobSecret>> read_secret(const Environment& environment) {
  const auto file = environment("TARPON_SECRET_FILE");
  const auto descriptor = environment("TARPON_SECRET_FD");
  if (file && descriptor) {
    return fail(Error::Code::invalid_argument,
                "TARPON_SECRET_FILE and TARPON_SECRET_FD are both set: keep one");
  }
  if (file) return JobSecret::read_file(*file);
  if (!descriptor) return nullptr;
  int number = -1;
  const auto [end, error] =
      std::from_chars(descriptor->data(), descriptor->data() + descriptor->size(), number);
  if (error != std::errc() || end != descriptor->data() + descriptor->size() || number < 0) {
    return fail(
        Error::Code::invalid_argument,
        fmt::format("TARPON_SECRET_FD={}: give the number of an open descriptor", *descriptor));
  }
  return JobSecret::read_descriptor(number);
}

Result<FoundOptions> find_options(const JobPlace& place, InterfaceRequest wish,
                                  const Environment& environment) {
  const auto settings = read_settings(environment);
  if (!settings) return fail(settings.error());
  auto secret = read_secret(environment);
  if (!secret) return fail(secret.error());
  auto rendezvous = find_rendezvous(place, environment);
  if (!rendezvous) return fail(rendezvous.error());
  wish.host = rendezvous_host(*rendezvous);
  wish.all_local = place.all_local();
  const Duration timeout = place.rendezvous_timeout.value_or(
      settings->rendezvous_timeout.value_or(usual_rendezvous_timeout(place)));
  wish.host_until = after(monotonic_now(), timeout);
  wish.observer = place.observer;
  const auto chosen = choose_interface(std::move(wish), environment);
  if (!chosen) {
    remove_rendezvous(*rendezvous);
    return fail(chosen.error());
  }
  FoundOptions found{
      CommunicatorOptions::for_rank(place.rank, place.world_size, *std::move(rendezvous)),
      chosen->reason};
  CommunicatorOptions& options = found.options;
  options.rendezvous.listen_address = chosen->interface.address;
  options.rendezvous.timeout = timeout;
  options.rendezvous.observer = place.observer;
  options.rendezvous.secret = *std::move(secret);
  options.integrity = settings->integrity.value_or(options.integrity);
  options.address = chosen->interface.address;
  options.interface = chosen->interface.name;
  options.driver = chosen->interface.driver;
  options.mtu = static_cast<std::uint32_t>(chosen->interface.mtu);
  options.datapath = settings->datapath.value_or(options.datapath);
  options.mechanisms.codec = settings->codec.value_or(options.mechanisms.codec);
  options.mechanisms.loss_target = settings->loss_target.value_or(options.mechanisms.loss_target);
  options.ports = settings->ports.value_or(options.ports);
  options.mechanisms.rotation = settings->rotation.value_or(options.mechanisms.rotation);
  options.multicast = settings->multicast.value_or(options.multicast);
  options.hosts = settings->hosts.value_or(options.hosts);
  options.lanes = settings->lanes.value_or(options.lanes);
  options.learn_shares = settings->learn_shares.value_or(options.learn_shares);
  if (settings->flight) {
    options.flight = {.directory = *settings->flight, .signals = FlightSignals::unhandled};
  }
  return found;
}

Result<CommunicatorOptions> find_options(const LaunchFlags& flags, InterfaceRequest wish,
                                         const Environment& environment) {
  auto place = find_job_place(flags, environment);
  if (!place) return fail(place.error());
  if (!*place) {
    const std::string half = half_set_launcher(environment);
    return fail(
        Error::Code::invalid_argument,
        fmt::format("{}: start it with torchrun, mpirun or srun, or set RANK, WORLD_SIZE and "
                    "TARPON_RENDEZVOUS=HOST:PORT",
                    half.empty() ? "no variable says which rank this process is" : half));
  }
  auto found = find_options(**place, std::move(wish), environment);
  if (!found) return fail(found.error());
  return std::move(found->options);
}

CommunicatorOptions CommunicatorOptions::for_rank(Rank rank, std::uint32_t world_size,
                                                  std::string rendezvous) {
  CommunicatorOptions options;
  options.rendezvous.rank = rank;
  options.rendezvous.world_size = world_size;
  options.rendezvous.address = std::move(rendezvous);
  return options;
}

Result<CommunicatorOptions> CommunicatorOptions::from_environment() {
  return find_options(LaunchFlags(), InterfaceRequest(), process_environment());
}

}  // namespace tarpon
