#include "collectives/reserved_tags.h"

#include <fmt/format.h>

namespace tarpon {

std::string reserved_name(std::uint32_t tag) {
  if (tag < kFirstReservedTag) return "";
  if (const std::optional<PairTag> pair = pair_tag(tag)) {
    return fmt::format("messages of tag {} from rank {} to rank {}, message", pair->tag,
                       pair->sender, pair->receiver);
  }
  if (tag == kBarrierTag) return "barrier";
  if (tag >= kFirstExchangeTag && tag < kFirstExchangeTag + kLearningTags) {
    return fmt::format("measurements of tag {}, exchange", tag - kFirstExchangeTag);
  }
  return fmt::format("reserved tag {}", tag);
}

}  // namespace tarpon
