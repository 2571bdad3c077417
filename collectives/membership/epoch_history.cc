#include "collectives/membership/epoch_history.h"

#include <algorithm>

#include "transport/endpoint.h"

namespace tarpon {
namespace {

/// Whether `number` is not before `from`. Numbers of operations wrap.
bool reached(std::uint32_t number, std::uint32_t from) {
  return static_cast<std::int32_t>(number - from) >= 0;
}

EpochRecord::Start* find(EpochRecord& record, std::uint32_t tag) {
  const auto found = std::find_if(record.starts.begin(), record.starts.end(),
                                  [tag](const EpochRecord::Start& one) { return one.tag == tag; });
  return found == record.starts.end() ? nullptr : &*found;
}

}  // namespace

EpochHistory::EpochHistory(bool coded) {
  records_.push_back({{{0, coded}, {}}, true});
}

EpochSetting EpochHistory::at(std::uint32_t tag, std::uint32_t number) const {
  for (auto known = records_.rbegin(); known != records_.rend() - 1; ++known) {
    const auto start =
        std::find_if(known->record.starts.begin(), known->record.starts.end(),
                     [tag](const EpochRecord::Start& one) { return one.tag == tag; });
    const bool listed = start != known->record.starts.end();
    if (listed ? reached(number, start->from) : known->decided) return known->record.setting;
  }
  return records_.front().record.setting;
}

void EpochHistory::decided(const EpochRecord& record) {
  const std::uint16_t number = record.setting.number;
  const bool old = std::any_of(records_.begin(), records_.end(), [&](const Known& known) {
    return known.decided && !later_epoch(number, known.record.setting.number);
  });
  if (old) return;
  // A record of this epoch that seen() made is replaced; records of later epochs stay behind it.
  const auto place = std::find_if(records_.begin(), records_.end(), [&](const Known& known) {
    return !later_epoch(number, known.record.setting.number);
  });
  if (place != records_.end() && place->record.setting.number == number) {
    *place = {record, true};
    return;
  }
  records_.insert(place, {record, true});
  forget_oldest();
}

/// Drops a record when there are too many: the oldest one, if the next one is decided and so can
/// apply to all other operations, else the next one.
void EpochHistory::forget_oldest() {
  if (records_.size() <= kKept) return;
  records_.erase(records_[1].decided ? records_.begin() : records_.begin() + 1);
}

void EpochHistory::seen(std::uint32_t tag, std::uint32_t number, EpochSetting setting) {
  if (!later_epoch(setting.number, at(tag, number).number)) return;
  const auto known = std::find_if(records_.begin(), records_.end(), [&](const Known& one) {
    return one.record.setting.number == setting.number;
  });
  if (known == records_.end()) {
    const auto place = std::find_if(records_.begin(), records_.end(), [&](const Known& one) {
      return later_epoch(one.record.setting.number, setting.number);
    });
    records_.insert(place, {{setting, {{tag, number}}}, false});
    forget_oldest();
    return;
  }
  EpochRecord::Start* const start = find(known->record, tag);
  if (start == nullptr) {
    if (known->decided) return;
    std::vector<EpochRecord::Start>& starts = known->record.starts;
    if (starts.size() == kMostSeen) starts.erase(starts.begin());
    starts.push_back({tag, number});
  } else if (!reached(number, start->from)) {
    start->from = number;
  }
}

}  // namespace tarpon
