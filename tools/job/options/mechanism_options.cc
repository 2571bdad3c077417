#include "tools/job/options/mechanism_options.h"

namespace tarpon {

using cli::Choices;
using cli::Scope;

Mechanisms MechanismOptions::settle() const {
  Mechanisms result = optireduce ? Mechanisms::optireduce() : Mechanisms{};
  if (inflow) result.inflow = *inflow;
  if (sending) result.sending = *sending;
  if (rescale) result.rescale = *rescale;
  if (codec) result.codec = *codec;
  for (const std::string& word : without) result.take_out(word);
  return result;
}

void add_mechanism_options(cli::OptionTable& table, MechanismOptions& options) {
  const Mechanisms usual;
  const auto usually = [](cli::Value value, std::string_view name) {
    return otherwise(std::move(value), std::string(name));
  };
  const Choices<bool> profiles{{"optireduce", true}, {"tarpon", false}};
  const Choices<InflowRule> inflows{{"incast", InflowRule::incast}, {"window", InflowRule::window}};
  const Choices<SendRule> sendings{{"credit", SendRule::credit}, {"timely", SendRule::timely}};
  const Choices<Rescale> rescales{{"count", Rescale::count}, {"none", Rescale::none}};
  const Choices<CodecRule> codecs{
      {"auto", CodecRule::automatic}, {"off", CodecRule::off}, {"on", CodecRule::on}};
  table.add(
      "Mechanisms, for experiments",
      {{"--profile", cli::choice(options.optireduce, profiles),
        "where the following start; optireduce: as published: inflow incast, sending timely, bound "
        "optireduce, rescale none, without repair, scatter-repair, retention and nonfinite",
        Scope::job},
       {"--inflow", usually(cli::choice(options.inflow, inflows), name(usual.inflow)),
        "what a receiver lets come; window: adaptive credit; incast: so many senders at once",
        Scope::job},
       {"--sending", usually(cli::choice(options.sending, sendings), name(usual.sending)),
        "what a sender obeys; timely: a rate per peer by round trips as well", Scope::job},
       {"--rescale", usually(cli::choice(options.rescale, rescales), name(usual.rescale)),
        "bounded mode, sums that lack contributions; count: times N / c; none: as they are",
        Scope::job},
       {"--codec", usually(cli::choice(options.codec, codecs), name(usual.codec)),
        "bounded mode, float32: send Hadamard coefficients, so that losses cost all elements "
        "alike; auto: on above 2 % of loss and off below 1 %, whatever the target; "
        "other types, half precision too, are never coded",
        Scope::job},
       {"--without",
        cli::words(options.without, "NAME,...", cli::Times::list,
                   {"repair", "scatter-repair", "retention", "x-loop", "nonfinite"}),
        "mechanisms to take out: repair, scatter-repair, retention, x-loop, nonfinite",
        Scope::job}});
}

}  // namespace tarpon
