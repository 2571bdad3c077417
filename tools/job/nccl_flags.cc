#include "tools/job/nccl_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace tarpon {
namespace {

struct NcclFlag {
  const char* names;
  std::vector<std::string> accepted;  // empty: none
  const char* why;                    // of a refusal
};

/// The flags of nccl-tests' common.cu that are not options of all our collectives.
std::vector<NcclFlag> nccl_flags() {
  return {
      {"-t,--nthreads", {"1"}, "a rank is a process: more ranks are --local-ranks P"},
      {"-g,--ngpus", {"0", "1"}, "a rank has no GPUs: more ranks are --local-ranks P"},
      {"-m,--agg_iters", {"1"}, "calls are not aggregated"},
      {"-p,--parallel_init", {"0"}, "ranks always start in parallel, as processes"},
      {"-o,--op", {"sum"}, "this collective reduces nothing"},
      {"-r,--root", {"0", "-1"}, "this collective has no root"},
      {"-z,--blocking", {"", "0", "1"}, "a call always returns when its result is there"},
      {"-y,--stream_null", {"0"}, "there are no CUDA streams"},
      {"-G,--cudagraph", {"0"}, "there are no CUDA graphs"},
      {"-C,--report_cputime", {"0"}, "cpu_s of --json has the processor time"},
      {"-S,--report_timestamps", {"0"}, "the table has no timestamps"},
      {"-a,--average", {"", "1", "3"}, "times are means of the slowest rank; --json has all"},
      {"-R,--local_register", {"0"}, "there is no GPU memory to register"},
      {"-x,--cta_policy", {"0"}, "there are no CTAs"},
      {"-D,--device_implementation", {"0"}, "there are no device kernels"},
      {"-V,--device_cta_count", {}, "there are no CTAs"},
      {"-M,--memory", {"0"}, "--json has max_rss_kib"},
      {"-F,--output_file", {}, "write the results with --json FILE"},
  };
}

std::string refusal(const NcclFlag& flag, const std::string& value) {
  std::vector<std::string> values;
  std::copy_if(flag.accepted.begin(), flag.accepted.end(), std::back_inserter(values),
               [](const std::string& one) { return !one.empty(); });
  const std::string or_give =
      values.empty() ? "" : fmt::format(", or give {}", fmt::join(values, " or "));
  return fmt::format("{} {}: a flag of nccl-tests without effect here: {}; leave it out{}",
                     std::string(flag.names, 2), value, flag.why, or_give);
}

}  // namespace

void add_nccl_flags(cli::OptionTable& table) {
  for (const NcclFlag& flag : nccl_flags()) {
    if (table.find(std::string_view(flag.names).substr(0, 2)) != nullptr) continue;
    cli::Value value;
    value.notation = "N";
    value.bare = !flag.accepted.empty() && flag.accepted.front().empty();
    value.errors_name_it = true;
    value.read = [flag](const std::string& word) -> Result<void> {
      const bool good =
          std::find(flag.accepted.begin(), flag.accepted.end(), word) != flag.accepted.end();
      if (good) return {};
      return fail(Error::Code::invalid_argument, refusal(flag, word));
    };
    table.add("", {{flag.names, std::move(value), flag.why}});
  }
}

}  // namespace tarpon
