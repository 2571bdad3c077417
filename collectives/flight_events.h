// What a call leaves in the flight recorder, beside what the endpoint records.
//
// `recorder` may be nullptr everywhere. As Recorder::write(): one thread at a time.
#pragma once

#include "collectives/allreduce.h"
#include "collectives/engine.h"
#include "collectives/signature.h"
#include "transport/recorder.h"

namespace tarpon {

/// RecordKind::submitted of `call`, whose number is known, at the time at which it was made.
void record_submitted(Recorder* recorder, const PendingCall& call, Time submitted);

/// RecordKind::ended. Every status but complete is an incident.
void record_ended(Recorder* recorder, const Report& report, Time now);

/// The arguments that a `submitted` record holds; slot bytes are not among them.
OperationSignature submitted_signature(const Record& record);

}  // namespace tarpon
