// Dumps, signals and the status socket, in this process: parts by themselves, then live jobs.
#include "collectives/flight/flight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "collectives/communicator.h"
#include "collectives/engine/flight_events.h"
#include "collectives/flight/board.h"
#include "collectives/flight/file.h"
#include "tests/support/sanitized.h"
#include "transport/clock.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon::flight_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// A directory that goes with its owner.
class Scratch {
 public:
  Scratch() : path_(testing::TempDir() + "tarpon-flight-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << path_;
  }
  Scratch(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::size_t files() const {
    const auto entries = std::filesystem::directory_iterator(path_);
    return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
  }

 private:
  std::string path_;
};

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Result<FlightDump> parse(const std::string& bytes) {
  return parse_flight(std::as_bytes(std::span(bytes)), "it");
}

Record one_event(std::uint32_t number) {
  return {.time = Time(1s) + number * 1ms, .kind = RecordKind::opened, .operation = number};
}

FlightIdentity identity_of(Rank rank) {
  static std::atomic<std::uint32_t> next = 1;
  return {.public_id = static_cast<std::uint32_t>(::getpid()) << 8 | (next++ & 0xff),
          .rank = rank,
          .world_size = 4,
          .slot_bytes = 1408};
}

/// What a status socket says to `request`.
std::string ask(const std::string& name, const std::string& request) {
  const FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return {};
  const timeval patience{.tv_sec = 20, .tv_usec = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL);
  std::string answer;
  std::array<char, 4096> piece;
  for (;;) {
    const ssize_t got = ::recv(fd.get(), piece.data(), piece.size(), 0);
    if (got <= 0) return answer;
    answer.append(piece.data(), static_cast<std::size_t>(got));
  }
}

// -- board

TEST(Board, read__while_it_is_written__never_torn) {
  Board<std::array<std::uint64_t, 20>> board;
  std::array<std::uint64_t, 20> value{};
  EXPECT_FALSE(board.read(value)) << "nothing is published yet";
  std::atomic<bool> over = false;
  std::thread writer([&] {
    for (std::uint64_t i = 1; i <= 100'000; ++i) {
      std::array<std::uint64_t, 20> next;
      next.fill(i);
      board.publish(next);
    }
    over = true;
  });
  while (!over) {
    if (!board.read(value)) continue;
    for (const std::uint64_t word : value) ASSERT_EQ(word, value[0]);
  }
  writer.join();
  ASSERT_TRUE(board.read(value));
  EXPECT_EQ(value[0], 100'000u);
}

// -- files

TEST(FlightFile, parse__refuses_what_is_none) {
  EXPECT_THAT(parse("short").error().message, HasSubstr("too short"));
  EXPECT_THAT(parse(std::string(1000, 'x')).error().message, HasSubstr("not a flight recording"));
  FlightHeader header;
  header.header_bytes = sizeof header;
  header.world_size = 2;
  const auto text = [&header](std::size_t more = 0) {
    return std::string(reinterpret_cast<const char*>(&header), sizeof header) +
           std::string(more, '\0');
  };
  EXPECT_TRUE(parse(text()));
  EXPECT_TRUE(parse(text(31))) << "cut inside of the first record";
  header.version = kOldestFlightVersion;
  EXPECT_TRUE(parse(text())) << "recordings of earlier versions are read";
  header.version = kFlightVersion;
  EXPECT_THAT(parse(text(32)).error().message, HasSubstr("record 0 has an unknown kind"));
  EXPECT_THAT(parse(text(std::size_t{32} * 4097)).error().message, HasSubstr("too long"));
  std::string late = text(32);
  late[sizeof header + 16] = 1;  // a kind
  EXPECT_TRUE(parse(late));
  late[sizeof header + 7] = 0x7f;
  EXPECT_THAT(parse(late).error().message, HasSubstr("the time of record 0 is impossible"));
  header.rank = 2;
  EXPECT_THAT(parse(text()).error().message, HasSubstr("rank 2 of 2"));
  header.version = 9;
  EXPECT_THAT(parse(text()).error().message, HasSubstr("version 9"));
}

TEST(FlightEvents, submitted__holds_the_arguments) {
  Recorder recorder;
  PendingCall call;
  call.arguments.count = 0x123456789;
  call.arguments.type = DataType::int64;
  call.arguments.function = ReduceOp::max;
  call.report.operation = 7;
  call.report.algorithm = Algorithm::one_shot;
  record_submitted(&recorder, call, Time(3s));
  RecordWords words;
  ASSERT_TRUE(recorder.read(0, words));
  const Record record = unpack(words, 1);
  const OperationSignature signature = submitted_signature(record);
  EXPECT_EQ(record.operation, 7u);
  EXPECT_EQ(signature.count, 0x123456789u);
  EXPECT_EQ(signature.type, DataType::int64);
  EXPECT_EQ(signature.function, ReduceOp::max);
  EXPECT_EQ(signature.algorithm, Algorithm::one_shot);
  record_submitted(nullptr, call, Time(3s));
}

TEST(FlightEvents, pause__is_recorded_when_the_driver_missed_its_time) {
  Recorder recorder;
  const Time last{1s};
  record_pause(&recorder, last, last + 10ms, last + 20ms);  // a late wake-up of 10 ms
  EXPECT_EQ(recorder.written(), 0u);
  record_pause(&recorder, last, last + 10ms, last + 3s);
  RecordWords words;
  ASSERT_TRUE(recorder.read(0, words));
  const Record record = unpack(words, recorder.written());
  EXPECT_EQ(record.kind, RecordKind::pause);
  EXPECT_EQ(record.time, last + 3s);
  EXPECT_EQ(record.value, 3'000'000u);
  EXPECT_EQ(record.extra, 2'990'000u);
}

TEST(FlightEvents, ended__tells_what_each_peer_still_owed) {
  Recorder recorder;
  Report report;
  report.status = Status::peer_late;
  report.peers.resize(3);
  report.peers[1] = {.bytes_expected = {100, 100}, .bytes_received = {100, 50}, .last_heard = 7ms};
  report.peers[2].bytes_expected = {100, 100};
  record_ended(&recorder, report, Time{1s});
  ASSERT_EQ(recorder.written(), 3u);
  RecordWords words;
  ASSERT_TRUE(recorder.read(0, words));
  const Record first = unpack(words, recorder.written());
  EXPECT_EQ(first.kind, RecordKind::lacked);
  EXPECT_EQ(first.peer, 1);
  EXPECT_EQ(first.stage, 0b10);  // the gather
  EXPECT_EQ(first.detail, 75);
  EXPECT_EQ(first.value, 7000u);
  ASSERT_TRUE(recorder.read(1, words));
  EXPECT_EQ(unpack(words, recorder.written()).value, ~0u);  // never heard
}

// -- Flight

TEST(Flight, check__says_what_is_wrong_with_the_directory) {
  const Scratch scratch;
  EXPECT_TRUE(Flight::check({}));
  EXPECT_TRUE(Flight::check({.directory = scratch.path() + "/new"}));
  EXPECT_TRUE(std::filesystem::is_directory(scratch.path() + "/new"));
  std::ofstream(scratch.path() + "/file") << "x";
  EXPECT_THAT(Flight::check({.directory = scratch.path() + "/file"}).error().message,
              HasSubstr("is not a directory"));
  EXPECT_THAT(Flight::check({.directory = scratch.path() + "/a/b"}).error().message,
              HasSubstr("No such file"));
  EXPECT_FALSE(Flight::check({.directory = std::string(5000, 'x')}));
}

TEST(Flight, incident__leaves_a_dump_and_nothing_else) {
  const Scratch scratch;
  const FlightIdentity identity = identity_of(3);
  {
    Flight flight({.directory = scratch.path(), .socket = false}, identity);
    for (std::uint32_t i = 0; i < 5000; ++i) flight.recorder().write(one_event(i));
    flight.recorder().note_incident();
  }
  const std::string path = scratch.path() + "/" + flight_file_name(identity.public_id, 3);
  const auto dump = parse(bytes_of(path));
  ASSERT_TRUE(dump) << dump.error().message;
  EXPECT_EQ(scratch.files(), 1u);
  EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms{0600});
  EXPECT_EQ(dump->header.job, identity.public_id);
  EXPECT_EQ(dump->header.rank, 3);
  EXPECT_EQ(dump->header.reason, DumpReason::status);
  EXPECT_EQ(dump->header.written, 5000u);
  ASSERT_EQ(dump->records.size(), Recorder::kCapacity);
  EXPECT_EQ(dump->records.front().operation, 5000 - Recorder::kCapacity);
  EXPECT_EQ(dump->records.back().number, 4999u);
}

TEST(Flight, look__dumps_soon_while_it_runs) {
  const Scratch scratch;
  const FlightIdentity identity = identity_of(0);
  Flight flight({.directory = scratch.path()}, identity);
  flight.recorder().write(one_event(1));
  flight.recorder().note_incident();
  flight.look();
  const std::string path = scratch.path() + "/" + flight_file_name(identity.public_id, 0);
  const Time limit = monotonic_now() + 20s;
  while (!std::filesystem::exists(path) && monotonic_now() < limit) std::this_thread::yield();
  const auto dump = parse(bytes_of(path));
  ASSERT_TRUE(dump) << dump.error().message;
  EXPECT_EQ(dump->records.size(), 1u);
}

TEST(Flight, nothing_happened__no_dump) {
  const Scratch scratch;
  { Flight flight({.directory = scratch.path()}, identity_of(0)); }
  EXPECT_EQ(scratch.files(), 0u);
}

TEST(Flight, socket__answers_status_and_flight) {
  const FlightIdentity identity = identity_of(1);
  Flight flight({}, identity);
  const std::string name = status_socket_name(::geteuid(), identity.public_id, 1);
  EXPECT_THAT(ask(name, "status\n"), HasSubstr("\"operations\":[]"));
  FlightSnapshot snapshot;
  snapshot.taken = monotonic_now();
  snapshot.outstanding = 1;
  snapshot.endpoint.open = 1;
  snapshot.endpoint.operations[0] = {.tag = 5,
                                     .operation = 6,
                                     .stage = 1,
                                     .stages = 2,
                                     .opened = monotonic_now(),
                                     .waiting = 0b1001,
                                     .silent = 0b1000};
  snapshot.endpoint.counters[DropReason::duplicate] = 3;
  ASSERT_TRUE(flight.wants_snapshot(false));
  flight.publish(snapshot);
  Report report;
  report.status = Status::peer_late;
  report.late_ranks = {2};
  record_ended(&flight.recorder(), report, monotonic_now());
  const std::string line = ask(name, "status\n");
  EXPECT_THAT(line, HasSubstr(R"("tag":5,"operation":6,"stage":"gather")"));
  EXPECT_THAT(line, HasSubstr(R"("waiting_for":[0,3],"silent":[3])"));
  EXPECT_THAT(line, HasSubstr(R"("dropped":{"duplicate":3})"));
  EXPECT_THAT(line, HasSubstr(R"("status":"peer_late","named":[2])"));
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  const auto dump = parse(ask(name, "flight\n"));
  ASSERT_TRUE(dump) << dump.error().message;
  EXPECT_EQ(dump->header.reason, DumpReason::request);
  EXPECT_EQ(dump->records.size(), 1u);
}

TEST(Flight, publish__costs_little) {
  Flight flight({}, identity_of(0));
  constexpr int kTimes = 100'000;
  FlightSnapshot snapshot;
  const Time start = monotonic_now();
  for (int i = 0; i < kTimes; ++i) {
    snapshot.outstanding = static_cast<std::uint32_t>(i);
    flight.publish(snapshot);
  }
  const double ns = static_cast<double>((monotonic_now() - start).count()) / kTimes;
  std::printf("publishing %zu bytes costs %.0f ns (not asserted)\n", sizeof snapshot, ns);
}

TEST(Flight, socket_off__nobody_answers) {
  const FlightIdentity identity = identity_of(0);
  FlightOptions options;
  options.socket = false;
  Flight flight(options, identity);
  EXPECT_FALSE(flight.wants_snapshot(false));
  EXPECT_EQ(ask(status_socket_name(::geteuid(), identity.public_id, 0), "status\n"), "");
}

// -- signals

volatile std::sig_atomic_t handled = 0;

void count_signal(int) {
  handled = handled + 1;
}

TEST(FlightSignals, usr1__dumps_calls_the_earlier_handler_and_goes_on) {
  const Scratch scratch;
  const FlightIdentity identity = identity_of(0);
  struct sigaction mine {
  }, before{}, after{};
  mine.sa_handler = count_signal;
  ::sigaction(SIGUSR1, &mine, &before);
  handled = 0;
  {
    Flight flight({.directory = scratch.path(), .signals = FlightSignals::all, .socket = false},
                  identity);
    flight.recorder().write(one_event(1));
    ::raise(SIGUSR1);
    EXPECT_EQ(handled, 1);
    const auto dump =
        parse(bytes_of(scratch.path() + "/" + flight_file_name(identity.public_id, 0)));
    ASSERT_TRUE(dump) << dump.error().message;
    EXPECT_EQ(dump->header.reason, DumpReason::request);
    EXPECT_EQ(dump->records.size(), 1u);
  }
  ::sigaction(SIGUSR1, &before, &after);
  EXPECT_EQ(after.sa_handler, &count_signal) << "it is back";
}

TEST(FlightSignals, not_asked_for__handlers_stay) {
  const Scratch scratch;
  struct sigaction before {
  }, now{};
  ::sigaction(SIGSEGV, nullptr, &before);
  Flight flight({.directory = scratch.path()}, identity_of(0));
  ::sigaction(SIGSEGV, nullptr, &now);
  EXPECT_EQ(now.sa_handler, before.sa_handler);
}

/// In a process of its own: a recorder, then `signal`.
void die_of(int signal, const std::string& directory, const FlightIdentity& identity) {
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;  // sanitizers have handlers of their own
  ::sigaction(signal, &plain, nullptr);
  Flight flight({.directory = directory, .signals = FlightSignals::all, .socket = false}, identity);
  flight.recorder().write(one_event(1));
  ::raise(signal);
}

TEST(FlightSignals, fatal_signal__dumps_and_still_kills) {
  for (const int signal : {SIGSEGV, SIGABRT, SIGTERM}) {
    const Scratch scratch;
    const FlightIdentity identity = identity_of(1);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      die_of(signal, scratch.path(), identity);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
    const auto dump =
        parse(bytes_of(scratch.path() + "/" + flight_file_name(identity.public_id, 1)));
    ASSERT_TRUE(dump) << dump.error().message;
    EXPECT_EQ(dump->header.reason, DumpReason::fatal);
    EXPECT_EQ(dump->header.signal, static_cast<std::uint32_t>(signal));
    EXPECT_EQ(dump->records.size(), 1u);
    EXPECT_EQ(scratch.files(), 1u);
  }
}

struct sigaction action_of(int signal) {
  struct sigaction now {};
  ::sigaction(signal, nullptr, &now);
  return now;
}

TEST(FlightSignals, unhandled__the_programs_own_stay_and_the_rest_dumps) {
  const Scratch scratch;
  const FlightIdentity identity = identity_of(0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGUSR1, SIG_DFL);
    ::signal(SIGTERM, count_signal);
    ::signal(SIGABRT, SIG_IGN);
    {
      Flight flight(
          {.directory = scratch.path(), .signals = FlightSignals::unhandled, .socket = false},
          identity);
      flight.recorder().write(one_event(1));
      if (action_of(SIGTERM).sa_handler != &count_signal) ::_exit(1);
      if (action_of(SIGABRT).sa_handler != SIG_IGN) ::_exit(2);
      ::raise(SIGUSR1);
    }
    ::_exit(action_of(SIGUSR1).sa_handler == SIG_DFL ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  const auto dump = parse(bytes_of(scratch.path() + "/" + flight_file_name(identity.public_id, 0)));
  ASSERT_TRUE(dump) << dump.error().message;
  EXPECT_EQ(dump->header.reason, DumpReason::request);
  EXPECT_EQ(dump->header.pid, static_cast<std::uint32_t>(child));
}

TEST(FlightSignals, forked_child__dies_of_them_and_writes_nothing) {
  if (testing_support::kThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer delays signals";
  const Scratch scratch;
  struct sigaction plain {
  }, before{};
  plain.sa_handler = SIG_DFL;
  ::sigaction(SIGUSR1, &plain, &before);
  {
    Flight flight({.directory = scratch.path(), .signals = FlightSignals::all, .socket = false},
                  identity_of(0));
    flight.recorder().write(one_event(1));
    for (const int signal : {SIGUSR1, SIGTERM}) {
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        ::raise(signal);
        ::_exit(0);
      }
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
    }
    EXPECT_EQ(scratch.files(), 0u);
  }
  ::sigaction(SIGUSR1, &before, nullptr);
}

// -- live jobs

using Ranks = std::vector<std::unique_ptr<Communicator>>;

Ranks connect(std::uint32_t world, const Scratch& scratch) {
  Ranks ranks(world);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions options;
      options.rendezvous.rank = static_cast<Rank>(rank);
      options.rendezvous.world_size = world;
      options.rendezvous.address = "file://" + scratch.path() + "/rendezvous";
      options.flight.directory = scratch.path() + "/flight";
      options.mtu = 1500;
      auto communicator = Communicator::connect(options);
      ASSERT_TRUE(communicator) << communicator.error().message;
      ranks[rank] = std::move(*communicator);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

std::string flight_of(const Scratch& scratch, Rank rank) {
  for (const auto& entry : std::filesystem::directory_iterator(scratch.path() + "/flight")) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with("." + std::to_string(rank) + ".flight")) return entry.path().string();
  }
  return {};
}

TEST(FlightOfJob, rank_that_never_calls__is_in_the_other_ones_dump) {
  const Scratch scratch;
  Ranks ranks = connect(2, scratch);
  ASSERT_TRUE(ranks[0] && ranks[1]);
  std::vector<float> data(1000);
  const auto report = ranks[0]->allreduce(
      {.input = data.data(), .output = data.data(), .count = data.size(), .deadline = 200ms});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->status, Status::peer_late);
  ranks.clear();
  const auto dump = parse(bytes_of(flight_of(scratch, 0)));
  ASSERT_TRUE(dump) << dump.error().message;
  const Record& last = dump->records.back();
  bool ended = false;
  for (const Record& record : dump->records) {
    if (record.kind != RecordKind::ended) continue;
    ended = true;
    EXPECT_EQ(record.detail, static_cast<std::uint8_t>(Status::peer_late));
    EXPECT_EQ(record.mask(), 0b10u);
  }
  EXPECT_TRUE(ended) << "the last event is " << record_kind_name(last.kind);
  EXPECT_EQ(flight_of(scratch, 1), "") << "nothing ended badly there";
}

TEST(FlightOfJob, stuck__says_whom_it_waits_for) {
  const Scratch scratch;
  Ranks ranks = connect(3, scratch);
  ASSERT_TRUE(ranks[0] && ranks[1] && ranks[2]);
  std::vector<std::vector<float>> data(3, std::vector<float>(1000));
  std::vector<std::thread> callers;
  const auto call = [&](Rank rank) {
    const auto report = ranks[rank]->allreduce({.input = data[rank].data(),
                                                .output = data[rank].data(),
                                                .count = data[rank].size(),
                                                .deadline = 60s});
    EXPECT_TRUE(report && report->status == Status::complete);
  };
  callers.emplace_back(call, Rank{0});
  callers.emplace_back(call, Rank{1});
  // Named by the endpoint of rank 0: the job is not in the public API.
  std::ifstream table("/proc/self/net/unix");
  std::string line, name;
  while (std::getline(table, line)) {
    const std::string beginning = "@tarpon." + std::to_string(::geteuid()) + ".";
    const std::size_t at = line.find(beginning);
    if (at == std::string::npos || !line.ends_with(".0")) continue;
    const std::string answer = ask(line.substr(at + 1), "status\n");
    const std::string process = "\"pid\":" + std::to_string(::getpid()) + ",";
    if (answer.find(process) != std::string::npos) name = line.substr(at + 1);
  }
  ASSERT_NE(name, "");
  std::string answer;
  const Time limit = monotonic_now() + 20s;
  while (answer.find("\"silent\":[2]") == std::string::npos && monotonic_now() < limit) {
    answer = ask(name, "status\n");
  }
  EXPECT_THAT(answer, HasSubstr(R"("stage":"scatter")"));
  EXPECT_THAT(answer, HasSubstr(R"("waiting_for":[2],"silent":[2])"));
  EXPECT_THAT(answer, HasSubstr(R"("outstanding":1)"));
  EXPECT_THAT(answer, Not(HasSubstr(R"("waiting_for":[1)")));
  callers.emplace_back(call, Rank{2});
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace tarpon::flight_test
