#include "collectives/flight_events.h"

namespace tarpon {

void record_submitted(Recorder* recorder, const PendingCall& call, Time submitted) {
  if (recorder == nullptr) return;
  const AllreduceArguments& arguments = call.arguments;
  const AdditionOrder order =
      call.report.mode == Mode::bounded ? AdditionOrder::any : arguments.order;
  Record record{.time = submitted,
                .kind = RecordKind::submitted,
                .stage = static_cast<std::uint8_t>(static_cast<unsigned>(arguments.type) << 4 |
                                                   static_cast<unsigned>(arguments.function)),
                .detail = static_cast<std::uint8_t>(static_cast<unsigned>(call.report.mode) << 4 |
                                                    static_cast<unsigned>(order)),
                .tag = call.report.tag,
                .operation = call.report.operation};
  record.set_mask(arguments.count);
  recorder->write(record);
}

OperationSignature submitted_signature(const Record& record) {
  OperationSignature signature;
  signature.type = static_cast<DataType>(record.stage >> 4);
  signature.function = static_cast<ReduceOp>(record.stage & 15);
  signature.mode = static_cast<Mode>(record.detail >> 4);
  signature.order = static_cast<AdditionOrder>(record.detail & 15);
  signature.count = record.mask();
  return signature;
}

void record_ended(Recorder* recorder, const Report& report, Time now) {
  if (recorder == nullptr) return;
  std::uint64_t named = 0;
  for (const Rank rank : report.late_ranks) named |= 1ull << rank;
  for (const Rank rank : report.blamed) named |= 1ull << rank;
  Record record{.time = now,
                .kind = RecordKind::ended,
                .detail = static_cast<std::uint8_t>(report.status),
                .tag = report.tag,
                .operation = report.operation};
  record.set_mask(named);
  recorder->write(record);
  if (report.status != Status::complete) recorder->note_incident();
}

}  // namespace tarpon
