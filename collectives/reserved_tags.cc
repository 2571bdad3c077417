#include "collectives/reserved_tags.h"

#include <fmt/format.h>

namespace tarpon {

std::string reserved_name(std::uint32_t tag) {
  if (tag < kFirstReservedTag) return "";
  if (tag == kBarrierTag) return "barrier";
  if (tag < kFirstExchangeTag + kLearningTags) {
    return fmt::format("measurements of tag {}, exchange", tag - kFirstExchangeTag);
  }
  return fmt::format("reserved tag {}", tag);
}

}  // namespace tarpon
