// Any datagrams into an endpoint, between any calls of its owner.
//
// An input is a script for rank 1 of 4: options, then commands that open and end operations, move
// the time, deliver packets and take packets out. After each command the promises of
// transport/endpoint.h are checked.
#include "transport/endpoint.h"

#include <deque>

#include "tests/fuzz/endpoint_packets.h"

namespace tarpon::fuzz {
namespace {

constexpr std::size_t kMaxCalls = 64;         // over a script
constexpr int kMaxCommands = 400;             // of a script
constexpr int kMaxPolls = 5000;               // until nothing is due at one time
constexpr int kMaxTicks = 64;                 // until nothing is due at one time
constexpr std::uint32_t kTags[] = {0, 7, 9};  // nothing is submitted on the last

EndpointOptions draw_options(Input& input) {
  const std::uint8_t bits = input.byte();
  EndpointOptions options;
  options.rank = kOwn;
  options.world_size = kRanks;
  options.job = kJob;
  options.integrity = (bits & 1) != 0 ? TARPON_INTEGRITY_CRC32C : TARPON_INTEGRITY_UDP;
  options.initial_credit = (bits & 2) != 0 ? 32 : 4;
  options.early_operations = (bits & 4) != 0 ? 64 : 2;
  options.inflow = static_cast<InflowRule>((bits >> 3 & 3) % 3);
  options.sending = (bits & 0x20) != 0 ? SendRule::timely : SendRule::credit;
  options.flows = (bits & 0x40) != 0 ? 2 : 1;
  options.retain_bytes = 4096;
  return options;
}

PortCapabilities draw_port(Input& input) {
  const std::uint8_t bits = input.byte();
  return {.name = "fuzz",
          .max_payload = kMaxPayload,
          .gathers = (bits & 1) != 0,
          .burst = (bits & 2) != 0 ? 4u : 1u,
          .flows = 2,
          .receive_bytes = ((bits & 4) != 0 ? 4u : 64u) * (kSlot + TARPON_HEADER_BYTES)};
}

std::uint64_t total_dropped(const EndpointCounters& counters) {
  std::uint64_t total = 0;
  for (const std::uint64_t count : counters.dropped) total += count;
  return total;
}

class Scene {
 public:
  explicit Scene(Input& input)
      : input_(input), options_(draw_options(input)), port_(draw_port(input)) {}

  void run() {
    for (int i = 0; i < kMaxCommands && !input_.empty(); ++i) {
      command();
      check();
    }
    finish();
  }

 private:
  void command() {
    switch (input_.below(16)) {
      case 0:
      case 1:
        return submit();
      case 2:
        return pass_time();
      case 3:
        poll(1 + input_.below(16));
        return;
      case 4:
        poll_all();
        return pass_time();
      case 5:
        return close();
      case 6:
        return change_peer();
      case 7:
        return advance();
      case 8:
        return deliver_raw();
      case 9:
      case 10:
        return deliver_train();
      case 11:
        return query();
      default:
        return deliver(draw_datagram(input_, draw_target(), options_.integrity));
    }
  }

  Call* draw_open() { return open_.empty() ? nullptr : open_[input_.byte() % open_.size()]; }

  /// Mostly an operation that is open, else one before or after those.
  Target draw_target() {
    const std::uint8_t how = input_.byte();
    Target target;
    if (how < 0xa0 && !open_.empty()) {
      const Call& call = *open_[how % open_.size()];
      target = {call.spec.tag, call.number, call.bytes, call.spec.epoch.number,
                call.spec.signature[0]};
    } else {
      target.tag = kTags[how % 3];
      target.number = endpoint_.tags().next_number(target.tag) +
                      static_cast<std::uint32_t>(static_cast<std::int8_t>(input_.byte()));
      target.bytes = 3 * kSlot;
      if (how == 0xff) target.number = input_.number<std::uint32_t>();
    }
    target.signature_hash = signature_hash_of(target.signature);
    return target;
  }

  void submit() {
    auto call = draw_call(input_);
    if (calls_.size() == kMaxCalls || !endpoint_.tags().can_submit(call->spec.tag)) return;
    const std::uint8_t patience = input_.byte();
    if (patience < 0x80) call->spec.deadline = now_ + patience * Duration(1ms);
    call->number = endpoint_.tags().next_number(call->spec.tag);
    calls_.push_back(std::move(call));
    Call& kept = *calls_.back();
    open_.push_back(&kept);
    // Parked packets are delivered inside submit(): the handle is known only afterwards.
    kept.handle = endpoint_.submit(kept.spec, now_);
    require(endpoint_.tags().next_number(kept.spec.tag) == kept.number + 1,
            "numbers are consecutive");
  }

  void pass_time() {
    constexpr Duration kSteps[] = {1us, 50us, 300us, 1ms, 5ms, 20ms, 200ms, 11s};
    now_ += kSteps[input_.below(8)];
    int ticks = 0;
    while (endpoint_.next_deadline() <= now_) {
      require(++ticks <= kMaxTicks, "on_timer() comes to an end");
      endpoint_.on_timer(now_);
    }
    take_events();
  }

  void poll_all() {
    for (int i = 0; poll(16) > 0; ++i) require(i < kMaxPolls, "poll_transmit() comes to an end");
  }

  std::size_t poll(std::size_t count) {
    std::array<TxPacket, 16> frames;
    for (std::size_t i = 0; i < count; ++i) {
      frames[i].header = frame_memory_[i].data();
      frames[i].room = frame_memory_[i].data() + TARPON_HEADER_BYTES;
    }
    const std::size_t used = endpoint_.poll_transmit(now_, std::span(frames).first(count));
    require(used <= count, "no more frames than given");
    for (std::size_t i = 0; i < used; ++i) check_frame(frames[i]);
    take_events();
    return used;
  }

  void check_frame(const TxPacket& frame) const {
    require(frame.peer < kRanks && frame.peer != kOwn, "packets go to other ranks");
    require((dead_ >> frame.peer & 1) == 0, "nothing is sent to a dead rank");
    require(frame.length <= kMaxPayload && frame.flow < port_.flows, "the port carries the packet");
    require(frame.length == 0 || frame.payload == frame.room || port_.gathers,
            "only a port that gathers is lent memory");
    require(frame.payload == frame.room ? frame.lender == kNoLender : frame.lender != kNoLender,
            "lent memory has a lender, and nothing else has one");
    tarpon_header header;
    std::memcpy(&header, frame.header, sizeof header);
    require(tarpon_check_header(&header, kJob, frame.length) == TARPON_HEADER_OK,
            "a packet passes the checks of its receiver");
    require(header.sender == kOwn, "a packet names its sender");
    if (header.type == TARPON_DATA) check_data(header, frame);
  }

  void check_data(const tarpon_header& header, const TxPacket& frame) const {
    const Call* call = find(header.tag, header.operation);
    require(call != nullptr, "DATA belongs to an operation that was submitted");
    require(header.slot < slots_in(call->bytes), "DATA lies within its message");
    require(frame.length == slot_length(call->bytes, header.slot), "DATA has its slot's length");
    const std::span<const std::byte> sent =
        sent_bytes(static_cast<std::uint8_t>(tarpon_stage(&header)));
    require(std::memcmp(frame.payload, sent.data() + std::size_t{header.slot} * kSlot,
                        frame.length) == 0,
            "DATA carries what the source holds");
  }

  const Call* find(std::uint32_t tag, std::uint32_t number) const {
    for (const auto& call : calls_) {
      if (call->spec.tag == tag && call->number == number) return call.get();
    }
    return nullptr;
  }

  /// Closes or aborts an open operation; closing may retain its last stage.
  void close() {
    Call* const call = draw_open();
    if (call == nullptr) return;
    const std::uint8_t how = input_.byte();
    std::erase(open_, call);
    call->end();
    if (how < 0x40) {
      endpoint_.abort(call->handle, how % TARPON_ABORT_END, 1ull << (how >> 4 & 3));
      return;
    }
    std::unique_ptr<Retained> retained;
    if (how < 0xa0 && endpoint_.tags().may_retain(call->bytes)) {
      retained = std::make_unique<Retained>();
      retained->stage = static_cast<std::uint8_t>(call->spec.stages.size() - 1);
      const std::span<const std::byte> sent = sent_bytes(retained->stage).first(call->bytes);
      retained->bytes.assign(sent.begin(), sent.end());
      retained->contributors.assign(slots_in(call->bytes), 1ull << kOwn);
    }
    endpoint_.close(call->handle, std::move(retained), how & ((1u << kRanks) - 1));
  }

  void change_peer() {
    const std::uint8_t how = input_.byte();
    const auto peer = static_cast<Rank>(how & 3);
    if (peer == kOwn) return;
    if (how >= 0xf0) {
      dead_ |= 1u << peer;
      endpoint_.peer_dead(peer, now_);
    }
  }

  void advance() {
    Call* const call = draw_open();
    if (call == nullptr) return;
    const auto stage = static_cast<std::uint8_t>(input_.byte() % call->spec.stages.size());
    endpoint_.advance(call->handle, stage, input_.byte());
  }

  void deliver_raw() {
    const auto source = static_cast<Rank>(input_.byte() % (kRanks + 1));
    const auto raw = input_.bytes(input_.byte());
    Datagram datagram{source < kRanks ? source : kUnknownRank, {}};
    append(datagram.bytes, raw.data(), raw.size());
    deliver(datagram);
  }

  /// Consecutive slots of one message, as an honest peer sends them.
  void deliver_train() {
    const Target target = draw_target();
    const Datagram first = draw_datagram(input_, target, options_.integrity);
    deliver(first);
    tarpon_header header;
    std::memcpy(&header, first.bytes.data(), sizeof header);
    if (header.type != TARPON_DATA) return;
    for (std::uint32_t more = input_.below(48); more > 0; --more) {
      if (++header.slot >= slots_in(target.bytes)) return;
      const std::vector<std::byte> payload(slot_length(target.bytes, header.slot));
      header.length = static_cast<std::uint16_t>(payload.size());
      if (options_.integrity == TARPON_INTEGRITY_CRC32C)
        header.check = packet_check(header, payload);
      Datagram next{first.source, {}};
      append(next.bytes, &header, sizeof header);
      append(next.bytes, payload.data(), payload.size());
      deliver(next);
    }
  }

  void deliver(const Datagram& datagram) {
    const EndpointCounters before = endpoint_.counters();
    // Of its own size, and at an odd address: receive buffers promise no alignment.
    std::vector<std::byte> copy(datagram.bytes.size() + 1);
    std::copy(datagram.bytes.begin(), datagram.bytes.end(), copy.begin() + 1);
    const RxPacket packet{copy.data() + 1, static_cast<std::uint32_t>(datagram.bytes.size()),
                          datagram.source};
    endpoint_.on_receive(now_, {&packet, 1});
    check_accounted(before);
  }

  /// One packet: dropped under one reason, or parked, or applied.
  void check_accounted(const EndpointCounters& before) const {
    const EndpointCounters& after = endpoint_.counters();
    require(after.packets_in == before.packets_in + 1, "a packet is counted");
    const std::uint64_t dropped = total_dropped(after) - total_dropped(before);
    const std::uint64_t control = after.control_in - before.control_in;
    const std::uint64_t parked = after.parked - before.parked;
    const std::uint64_t data = after.data_in - before.data_in;
    require(dropped + control + parked <= 1, "a packet is counted once");
    require(dropped + control + parked + data > 0, "no packet vanishes");
    require(data == 0 || dropped + control + parked == 0, "a packet is applied or counted");
  }

  void query() {
    Call* const call = draw_open();
    if (call == nullptr) return;
    for (std::uint8_t stage = 0; stage < call->spec.stages.size(); ++stage) {
      static_cast<void>(endpoint_.view(call->handle).sent(stage));
      static_cast<void>(endpoint_.view(call->handle).acknowledged(stage));
    }
    static_cast<void>(endpoint_.view(call->handle).marks().any());
    static_cast<void>(endpoint_.view(call->handle).in_doubt());
    static_cast<void>(endpoint_.view(call->handle).stage_time(0));
    static_cast<void>(endpoint_.view(call->handle).terms(0));
    static_cast<void>(endpoint_.tags().furthest(call->spec.tag));
    static_cast<void>(endpoint_.tags().lowest_open(call->spec.tag));
    require((endpoint_.tags().holding_back() >> kRanks) == 0, "ranks of the job hold back");
  }

  /// Not after every command: an operation may end while its events wait.
  void take_events() {
    Event event;
    while (endpoint_.poll_event(event)) check_event(event);
  }

  /// What holds between any two calls.
  void check() const {
    EndpointSnapshot snapshot;
    endpoint_.snapshot(snapshot);
    require(snapshot.open == open_.size(), "open operations are those that were not ended");
    for (const Call* call : open_) {
      for (std::uint8_t stage = 0; stage < call->spec.stages.size(); ++stage) {
        for (const ReceiveSpec& receive : call->spec.stages[stage].receives) {
          const MessageProgress progress =
              endpoint_.view(call->handle).progress(stage, receive.peer);
          require(progress.slots == slots_in(call->bytes), "a message keeps its length");
          require(progress.received <= progress.slots, "no more slots than the message has");
          require(progress.received >= call->sinks[stage]->delivered(receive.peer),
                  "what was delivered has arrived");
        }
      }
    }
  }

  void check_event(const Event& event) {
    if (event.kind == Event::Kind::silent || event.kind == Event::Kind::heard) {
      return require(event.peer < kRanks, "an event names a rank of the job");
    }
    Call* call = nullptr;
    for (Call* one : open_) {
      if (one->handle == event.operation) call = one;
    }
    require(call != nullptr, "an event names an open operation");
    require(event.peer < kRanks, "an event names a rank of the job");
    require(event.stage < call->spec.stages.size(), "an event names a stage of its operation");
    if (event.kind == Event::Kind::clock) return start_clock(*call, event.at);
    if (event.kind != Event::Kind::stage_closed) return;
    require((call->closed_stages >> event.stage & 1) == 0, "a stage closes once");
    call->closed_stages |= 1u << event.stage;
    call->sinks[event.stage]->end();
  }

  void start_clock(const Call& call, Time at) {
    require(at <= now_, "a clock has started");
    StageEnds ends;
    for (std::size_t i = 0; i < call.spec.stages.size(); ++i) ends.at[i] = at += call.bounds[i];
    const std::size_t last = call.spec.stages.size() - 1;
    ends.lateness.grace = call.bounds[0];
    ends.lateness.notice = call.bounds[last] / 2;
    if (last > 0) ends.lateness.late_after = ends.at[last - 1];
    endpoint_.set_ends(call.handle, ends, now_);
  }

  /// Everything ended and everybody dead: nothing may be left.
  void finish() {
    while (!open_.empty()) {
      Call* const call = open_.back();
      open_.pop_back();
      call->end();
      endpoint_.close(call->handle, nullptr);
    }
    take_events();
    check();
    poll_all();
    for (const Rank peer : {Rank{0}, Rank{2}, Rank{3}}) endpoint_.peer_dead(peer, now_);
    dead_ = (1u << kRanks) - 1;
    poll_all();
    take_events();
    require(endpoint_.memory().idle(), "an endpoint without operations and peers is idle");
  }

  Input& input_;
  const EndpointOptions options_;
  const PortCapabilities port_;
  Endpoint endpoint_{options_, port_};
  std::deque<std::unique_ptr<Call>> calls_;
  std::vector<Call*> open_;
  std::uint32_t dead_ = 0;  // bit r: rank r
  Time now_{1s};
  struct alignas(8) FrameMemory : std::array<std::byte, TARPON_HEADER_BYTES + kMaxPayload> {};
  std::array<FrameMemory, 16> frame_memory_;
};

}  // namespace
}  // namespace tarpon::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tarpon::fuzz::Input input(data, size);
  tarpon::fuzz::Scene(input).run();
  return 0;
}
