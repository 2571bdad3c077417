#include "tools/scale/schedule_run.h"

#include <algorithm>

namespace tarpon::scale {
namespace {

constexpr std::uint32_t kStageShift = 28;

}  // namespace

ScheduleRun::ScheduleRun(Algorithm algorithm, std::uint32_t ranks, std::uint64_t bytes,
                         ReliableFlows& flows, Senders& senders)
    : whole_messages_(algorithm == Algorithm::halving_doubling), flows_(flows), senders_(senders) {
  states_.reserve(ranks);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    states_.push_back(state_of(schedule_for(algorithm, ranks, static_cast<Rank>(rank), bytes)));
  }
  flows_.on_delivered([this](Time now, Rank from, Rank to, std::uint32_t step) {
    on_delivered(now, from, to, step);
  });
  flows_.on_sent([this](Time now, Rank from, std::uint32_t step) {
    State& state = states_[from];
    if ((state.round_stages >> (step >> kStageShift) & 1) == 0) return;
    state.sends_by_round = false;
    send_next_round(now, state, from);
  });
  flows_.on_signalled([this](Time now, Rank from, Rank to, std::uint32_t round) {
    states_[to].cleared[from] = round + 1;
    send_next_round(now, states_[to], to);
  });
}

ScheduleRun::State ScheduleRun::state_of(const Schedule& schedule) {
  State state;
  Chunk next;
  for (const Schedule::Chunk& chunk : schedule.chunks) {
    next.last_version = chunk.elements.count > 0 ? chunk.last_version() : 0;
    state.chunks.push_back(next);
    next.first_made += next.last_version;
  }
  state.chunks.push_back(next);
  state.made_by.assign(next.first_made, kNone);
  for (std::size_t i = 0; i < schedule.stages.size(); ++i) {
    const auto stage = static_cast<std::uint8_t>(i);
    if (schedule.stages[i].in_rounds) state.round_stages |= 1u << i;
    for (const Schedule::Message& message : schedule.stages[i].sends) {
      std::uint32_t step = static_cast<std::uint32_t>(i) << kStageShift;
      const auto number = static_cast<std::uint32_t>(state.unsent.size());
      state.unsent.push_back({.pieces = message.piece_count});
      for (const Schedule::Piece& piece : schedule.pieces_of(message)) {
        state.sends.push_back(
            {.chunk = piece.chunk,
             .version = piece.version,
             .to = message.peer,
             .step = step++,
             .round = schedule.stages[i].in_rounds ? piece.round : kNone,
             .message = number,
             .bytes = schedule.chunks[piece.chunk].elements.count * sizeof(float)});
      }
    }
    for (const Schedule::Message& message : schedule.stages[i].receives) {
      state.messages.push_back({stage, message.peer,
                                static_cast<std::uint32_t>(state.received.size()),
                                message.piece_count});
      for (const Schedule::Piece& piece : schedule.pieces_of(message)) {
        state.made_by[state.chunks[piece.chunk].first_made + piece.version - 1] =
            static_cast<std::uint32_t>(state.received.size());
        if (schedule.stages[i].in_rounds) {
          state.rounds.push_back(static_cast<std::uint32_t>(state.received.size()));
        }
        state.received.push_back({piece.chunk, piece.version, message.peer, piece.round});
      }
    }
  }
  std::sort(state.messages.begin(), state.messages.end(),
            [](const Message& a, const Message& b) { return a.key() < b.key(); });
  std::stable_sort(state.rounds.begin(), state.rounds.end(), [&](std::uint32_t a, std::uint32_t b) {
    return state.received[a].round < state.received[b].round;
  });
  for (std::uint32_t place = 0; place < state.sends.size(); ++place) {
    if (state.sends[place].version > 0) state.sums.push_back(place);
  }
  std::stable_sort(state.sums.begin(), state.sums.end(), [&](std::uint32_t a, std::uint32_t b) {
    const Sent &x = state.sends[a], &y = state.sends[b];
    return std::pair(x.chunk, x.version) < std::pair(y.chunk, y.version);
  });
  std::uint32_t at = 0;
  for (std::uint32_t chunk = 0; chunk < state.chunks.size(); ++chunk) {
    while (at < state.sums.size() && state.sends[state.sums[at]].chunk < chunk) ++at;
    state.chunks[chunk].first_sent = at;
  }
  return state;
}

void ScheduleRun::begin(Time now, State& state, Rank rank) {
  state.versions.assign(state.chunks.size() - 1, 0);
  state.came.assign(state.received.size(), false);
  state.next_sum.clear();
  state.unfinished = 0;
  state.to_send = {};
  for (Whole& whole : state.unsent) whole.ready = 0, whole.bytes = 0;
  state.sends_by_round = false;
  state.next_round = 0;
  if (state.round_stages != 0) state.cleared.assign(states_.size(), 0);
  for (std::size_t chunk = 0; chunk + 1 < state.chunks.size(); ++chunk) {
    state.next_sum.push_back(state.chunks[chunk].first_sent);
    if (state.chunks[chunk].last_version > 0) ++state.unfinished;
  }
  for (std::uint32_t place = 0; place < state.sends.size(); ++place) {
    if (state.sends[place].version == 0) send(now, state, rank, place);
  }
  ask_for_next_round(now, state, rank);
}

void ScheduleRun::send(Time now, State& state, Rank rank, std::uint32_t place) {
  const Sent& sent = state.sends[place];
  if (whole_messages_) {
    Whole& whole = state.unsent[sent.message];
    whole.bytes += sent.bytes;
    if (++whole.ready < whole.pieces) return;
    const std::uint32_t stage = sent.step >> kStageShift << kStageShift;
    return flows_.send(now, rank, sent.to, whole.bytes, stage);
  }
  if (sent.round == kNone) return flows_.send(now, rank, sent.to, sent.bytes, sent.step);
  state.to_send.emplace(sent.round, place);
  send_next_round(now, state, rank);
}

void ScheduleRun::send_next_round(Time now, State& state, Rank rank) {
  if (state.sends_by_round || state.to_send.empty()) return;
  const auto [round, place] = state.to_send.top();
  const Sent& sent = state.sends[place];
  if (state.cleared[sent.to] <= round) return;
  state.to_send.pop();
  state.sends_by_round = true;
  flows_.send(now, rank, sent.to, sent.bytes, sent.step);
}

/// Tells the sender of the next piece that all pieces of earlier rounds have come.
void ScheduleRun::ask_for_next_round(Time now, State& state, Rank rank) {
  if (state.next_round == state.rounds.size()) return;
  const Received& piece = state.received[state.rounds[state.next_round]];
  flows_.signal(std::max(now, state.begun), rank, piece.from, piece.round);
}

void ScheduleRun::on_delivered(Time now, Rank from, Rank to, std::uint32_t step) {
  State& state = states_[to];
  const std::pair key(static_cast<std::uint8_t>(step >> kStageShift), from);
  const auto message =
      std::lower_bound(state.messages.begin(), state.messages.end(), key,
                       [](const Message& one, const auto& wanted) { return one.key() < wanted; });
  const std::uint32_t place = step & ((1u << kStageShift) - 1);
  const std::uint32_t first = message->first + place;
  const std::uint32_t end = whole_messages_ ? message->first + message->count : first + 1;
  for (std::uint32_t piece = first; piece < end; ++piece) state.came[piece] = true;
  for (std::uint32_t piece = first; piece < end; ++piece) {
    raise(now, state, state.received[piece].chunk);
  }
  std::sort(due_.begin(), due_.end());  // earlier stages first, as the library sends
  for (const std::uint32_t one : due_) send(now, state, to, one);
  due_.clear();
  if (state.round_stages == 0) return;
  const std::uint32_t before = state.next_round;
  std::uint32_t& next = state.next_round;
  while (next < state.rounds.size() && state.came[state.rounds[next]]) ++next;
  if (next > before) ask_for_next_round(now, state, to);
  send_next_round(now, state, to);
}

/// Makes the versions of a chunk whose pieces have come. A piece that came early counts once the
/// versions before it are there.
void ScheduleRun::raise(Time now, State& state, std::uint32_t index) {
  const Chunk& chunk = state.chunks[index];
  std::uint32_t& version = state.versions[index];
  if (version == chunk.last_version) return;
  while (version < chunk.last_version) {
    if (!state.came[state.made_by[chunk.first_made + version]]) return;
    ++version;
    std::uint32_t& next = state.next_sum[index];
    for (; next < state.chunks[index + 1].first_sent; ++next) {
      if (state.sends[state.sums[next]].version > version) break;
      due_.push_back(state.sums[next]);
    }
  }
  if (--state.unfinished == 0) finished_ = std::max(finished_, now);
}

ScheduleRun::Outcome ScheduleRun::operate(Time start, const std::vector<Episode>& episodes) {
  senders_.begin(start, episodes);
  finished_ = start;
  for (std::uint32_t rank = 0; rank < states_.size(); ++rank) {
    // A straggler has no result before it begins, whatever the others wait for.
    states_[rank].begun = episodes[rank].late_start ? start + episodes[rank].end() : start;
    finished_ = std::max(finished_, states_[rank].begun);
    begin(start, states_[rank], static_cast<Rank>(rank));
  }
  const Time idle = flows_.run(start);
  return {finished_ - start, std::max(idle, finished_)};
}

}  // namespace tarpon::scale
