#include "tools/mechanism_options.h"

#include <fmt/format.h>

#include <map>

#include "tools/job_options.h"
#include "tools/option_kinds.h"

namespace tarpon {

Result<Mechanisms> MechanismOptions::settle() const {
  Mechanisms result = optireduce ? Mechanisms::optireduce() : Mechanisms{};
  if (inflow) result.inflow = *inflow;
  if (sending) result.sending = *sending;
  if (rescale) result.rescale = *rescale;
  if (codec) result.codec = *codec;
  for (const std::string& word : without) {
    if (result.take_out(word)) continue;
    return fail(Error::Code::invalid_argument,
                fmt::format("--without: \"{}\" is not one of rotation, repair, scatter-repair, "
                            "retention, x-loop, nonfinite",
                            word));
  }
  return result;
}

void add_mechanism_options(CLI::App& app, MechanismOptions& options) {
  const std::string group = "Mechanisms, for experiments";
  add_choice(
      app, "--profile", options.optireduce,
      std::map<std::string, bool>{{"tarpon", false}, {"optireduce", true}},
      "where the following start: tarpon, or optireduce (as published: inflow incast, "
      "sending timely, bound optireduce, rescale none, without repair, scatter-repair, retention "
      "and nonfinite)")
      ->default_str("tarpon")
      ->group(group);
  add_choice(app, "--inflow", options.inflow,
             std::map<std::string, InflowRule>{{"window", InflowRule::window},
                                               {"incast", InflowRule::incast},
                                               {"buffers", InflowRule::buffers}},
             "what a receiver lets come: window (adaptive credit), incast (so many senders at "
             "once), buffers (what they hold)")
      ->group(group);
  add_choice(
      app, "--sending", options.sending,
      std::map<std::string, SendRule>{{"credit", SendRule::credit}, {"timely", SendRule::timely}},
      "what a sender obeys: credit, or timely (a rate per peer by round trips as well)")
      ->group(group);
  add_choice(app, "--rescale", options.rescale,
             std::map<std::string, Rescale>{
                 {"count", Rescale::count}, {"inverse", Rescale::inverse}, {"none", Rescale::none}},
             "bounded mode, sums that lack contributions: count (N / c), inverse (remote ones by "
             "1 / (1 - their loss)), none")
      ->group(group);
  add_choice(
      app, "--codec", options.codec,
      std::map<std::string, CodecRule>{
          {"auto", CodecRule::automatic}, {"on", CodecRule::on}, {"off", CodecRule::off}},
      "bounded mode, float32: send Hadamard coefficients, so that losses cost all elements "
      "alike: auto (on from --loss-target 0.5% on; else on above 2 % of loss, off below 1 %), on, "
      "off")
      ->default_str("auto")
      ->group(group);
  app.add_option("--without", options.without,
                 "mechanisms to take out: rotation, repair, scatter-repair, retention, x-loop, "
                 "nonfinite")
      ->delimiter(',')
      ->type_name("")
      ->group(group);
}

}  // namespace tarpon
