// The options that shape a testbed, as users write them.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "tools/cli/option_table.h"
#include "tools/namespaces/testbed.h"
#include "xdp/base/result.h"

namespace tarpon {

/// RATE[/BURST[/LIMIT]], as "2gbit/128K/400K"; missing parts have the defaults of TestbedRate.
Result<TestbedRate> parse_testbed_rate(std::string_view text);

/// RATE[/BURST], as "1gbit/64K"; missing parts have the defaults of TestbedLimit.
Result<TestbedLimit> parse_testbed_limit(std::string_view text);

/// SHARE[/PACKETS], as "1%/8": the bursts of a TestbedLoss.
Result<TestbedLoss> parse_burst_loss(std::string_view text);

/// --mtu, --rate, --rate-of, --uplink, --loss, --burst-loss, --police, --police-of, --flow-limit,
/// --tcp-congestion, into this group. The caller sets ranks and seed.
void add_shape_options(cli::OptionTable& table, const std::string& group, TestbedOptions& options);

/// Whether any of them was given, --mtu with another value than its default.
bool is_shaped(const TestbedOptions& options);

}  // namespace tarpon
