#include "transport/recorder.h"

namespace tarpon {

std::string_view record_kind_name(RecordKind kind) {
  switch (kind) {
    case RecordKind::none:
      return "none";
    case RecordKind::submitted:
      return "submitted";
    case RecordKind::opened:
      return "opened";
    case RecordKind::first_packet:
      return "first_packet";
    case RecordKind::stage_closed:
      return "stage_closed";
    case RecordKind::acknowledged:
      return "acknowledged";
    case RecordKind::repair_out:
      return "repair_out";
    case RecordKind::repair_in:
      return "repair_in";
    case RecordKind::credit:
      return "credit";
    case RecordKind::ready_out:
      return "ready_out";
    case RecordKind::ready_in:
      return "ready_in";
    case RecordKind::closed_out:
      return "closed_out";
    case RecordKind::closed_in:
      return "closed_in";
    case RecordKind::abort_out:
      return "abort_out";
    case RecordKind::abort_in:
      return "abort_in";
    case RecordKind::mismatch:
      return "mismatch";
    case RecordKind::late:
      return "late";
    case RecordKind::deadline:
      return "deadline";
    case RecordKind::ended:
      return "ended";
    case RecordKind::epoch:
      return "epoch";
    case RecordKind::nonfinite:
      return "nonfinite";
    case RecordKind::lacked:
      return "lacked";
    case RecordKind::pause:
      return "pause";
    case RecordKind::silence:
      return "silence";
    case RecordKind::standing:
      return "standing";
    case RecordKind::port_failed:
      return "port_failed";
    case RecordKind::send_refused:
      return "send_refused";
    case RecordKind::count:
      break;
  }
  return "?";
}

Record unpack(const RecordWords& words, std::uint64_t written) {
  Record record;
  record.time = Time(Duration(static_cast<Duration::rep>(words[0])));
  record.tag = static_cast<std::uint32_t>(words[1]);
  record.operation = static_cast<std::uint32_t>(words[1] >> 32);
  record.kind = static_cast<RecordKind>(words[2] & 0xff);
  record.stage = static_cast<std::uint8_t>(words[2] >> 8);
  record.peer = static_cast<std::uint8_t>(words[2] >> 16);
  record.detail = static_cast<std::uint8_t>(words[2] >> 24);
  record.value = static_cast<std::uint32_t>(words[2] >> 32);
  record.extra = static_cast<std::uint32_t>(words[3] >> 32);
  const auto behind = static_cast<std::uint32_t>(written) - static_cast<std::uint32_t>(words[3]);
  record.number = written - behind - 1;
  return record;
}

}  // namespace tarpon
