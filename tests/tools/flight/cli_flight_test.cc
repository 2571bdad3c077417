// `tarpon flight` and `tarpon status` on real jobs.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "collectives/communicator.h"
#include "collectives/flight/file.h"
#include "collectives/flight/flight.h"
#include "collectives/rendezvous/control.h"
#include "tests/support/child_program.h"

namespace tarpon::test::cli_flight_test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kRunning = "(elements)";

/// A job that ends only when somebody stops one of its ranks.
Command endless(const std::string& deadline, const std::string& ranks = "3") {
  return tool({"allreduce", "--local-ranks", ranks, "-b", "16K", "-e", "16K", "-n", "1000000000",
               "--deadline", deadline});
}

nlohmann::json json_of(const Ended& ended) {
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  return nlohmann::json::parse(ended.out, nullptr, false);
}

/// The only row of `tarpon flight --json`.
nlohmann::json flight_in(const std::string& directory) {
  const nlohmann::json json = json_of(run(tool({"flight", "--json", directory})));
  EXPECT_EQ(json["results"].size(), 1u) << json.dump(1);
  EXPECT_THAT(json["config"]["command"].get<std::string>(), HasSubstr("flight --json"));
  return json["results"][0];
}

/// What the ranks among `pids` say now.
nlohmann::json status_of(const std::vector<pid_t>& pids) {
  nlohmann::json found = nlohmann::json::array();
  const nlohmann::json rows = json_of(run(tool({"status", "--json"})))["results"];
  for (const auto& rank : rows) {
    if (std::find(pids.begin(), pids.end(), rank["pid"].get<pid_t>()) != pids.end()) {
      found.push_back(rank);
    }
  }
  return found;
}

/// Waits until the ranks among `pids` have ended `calls` calls; false after a long time.
bool has_ended_calls(const std::vector<pid_t>& pids, std::uint64_t calls) {
  for (int looks = 0; looks < 600; ++looks) {
    for (const auto& rank : status_of(pids)) {
      const auto& last = rank["last_end"];
      if (last.is_object() && last["operation"].get<std::uint64_t>() >= calls) return true;
    }
    ::usleep(20'000);
  }
  return false;
}

TEST(CliFlight, stopped_rank__is_the_guilty_one) {
  const ScratchDirectory scratch;
  Command command = endless("1s");
  command.arguments.insert(command.arguments.end(), {"--flight", scratch / "f"});
  Process job(command);
  ASSERT_TRUE(job.says(kRunning)) << job.wait(0ms).error;
  const auto ranks = job.children();
  ASSERT_EQ(ranks.size(), 3u);
  ::kill(ranks[1], SIGSTOP);
  const Ended ended = job.wait();
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.error, HasSubstr("tarpon flight " + scratch / "f"));

  const Ended told = run(tool({"flight", scratch / "f", "--svg", scratch / "f.svg"}));
  EXPECT_EQ(told.exit_code, 0) << told.error;
  EXPECT_THAT(told.out, HasSubstr("# rank 1   no recording"));
  EXPECT_THAT(told.out, HasSubstr("left no recording: stopped, killed or cut off"));
  EXPECT_THAT(content_of(scratch / "f.svg"), HasSubstr("! rank 1"));
  const nlohmann::json json = flight_in(scratch / "f");
  ASSERT_EQ(json["verdict"]["guilty"].size(), 1u) << json["verdict"].dump();
  EXPECT_EQ(json["verdict"]["guilty"][0]["rank"], 1);
  EXPECT_EQ(json["world_size"], 3);
}

std::vector<int> guilty_of(const nlohmann::json& flight) {
  std::vector<int> ranks;
  for (const auto& one : flight["verdict"]["guilty"]) ranks.push_back(one["rank"].get<int>());
  return ranks;
}

TEST(CliFlight, rank_that_was_stopped_past_the_deadline_and_continued__is_the_guilty_one) {
  const ScratchDirectory scratch;
  Command command = endless("1s", "4");
  command.arguments.insert(command.arguments.end(), {"--flight", scratch / "f"});
  Process job(command);
  ASSERT_TRUE(job.says(kRunning)) << job.wait(0ms).error;
  const auto ranks = job.children();
  ASSERT_EQ(ranks.size(), 4u);
  ::kill(ranks[2], SIGSTOP);
  std::this_thread::sleep_for(2s);
  ::kill(ranks[2], SIGCONT);
  EXPECT_EQ(job.wait().exit_code, 1);

  const nlohmann::json json = flight_in(scratch / "f");
  EXPECT_EQ(guilty_of(json), std::vector<int>{2}) << json["verdict"].dump(1);
  // Stopped between two calls it makes the next one late.
  const std::string cause = json["verdict"]["cause"];
  EXPECT_TRUE(cause == "paused" || cause == "late") << json["verdict"].dump(1);
  EXPECT_FALSE(json["verdict"]["evidence"].empty());
  // The report ends with the verdict, which --verdict prints alone.
  const std::string report = run(tool({"flight", scratch / "f"})).out;
  EXPECT_LT(lines_of(report).size(), 70u);
  const Ended verdict = run(tool({"flight", scratch / "f", "--verdict"}));
  EXPECT_EQ(verdict.exit_code, 0) << verdict.error;
  EXPECT_THAT(verdict.out, AllOf(StartsWith("# job "), HasSubstr("4 ranks\n# verdict: ")));
  EXPECT_THAT(lines_of(verdict.out).back(), StartsWith("# next: "));
  EXPECT_THAT(report, EndsWith(verdict.out.substr(verdict.out.find("# verdict: "))));
  EXPECT_LT(report.find("# evidence"), report.find("# verdict"));
  EXPECT_EQ(run(tool({"flight", scratch / "f", "--verdict", "--all"})).exit_code, 2);
}

TEST(CliFlight, killed_rank__is_the_guilty_one) {
  const ScratchDirectory scratch;
  Command command = endless("5s");
  command.arguments.insert(command.arguments.end(), {"--flight", scratch / "f"});
  Process job(command);
  ASSERT_TRUE(job.says(kRunning)) << job.wait(0ms).error;
  const auto ranks = job.children();
  ASSERT_EQ(ranks.size(), 3u);
  ::kill(ranks[1], SIGKILL);
  EXPECT_EQ(job.wait().exit_code, 1);
  const nlohmann::json json = flight_in(scratch / "f");
  EXPECT_EQ(guilty_of(json), std::vector<int>{1}) << json["verdict"].dump(1);
  EXPECT_EQ(json["verdict"]["cause"], "died") << json["verdict"].dump(1);
}

TEST(CliFlight, killed_by_a_fault__is_the_guilty_one) {
  const ScratchDirectory scratch;
  Command command = endless("20s");
  command.environment["TARPON_FLIGHT"] = scratch / "f";
  Process job(command);
  ASSERT_TRUE(job.says(kRunning)) << job.wait(0ms).error;
  const auto ranks = job.children();
  ASSERT_EQ(ranks.size(), 3u);
  ::kill(ranks[2], SIGSEGV);
  EXPECT_EQ(job.wait().exit_code, 1);
  const nlohmann::json json = flight_in(scratch / "f");
  EXPECT_EQ(json["ranks"][2]["signal"], SIGSEGV);
  EXPECT_EQ(guilty_of(json), std::vector<int>{2}) << json["verdict"].dump(1);
}

TEST(CliFlight, usr1__leaves_a_recording_of_a_healthy_rank) {
  const ScratchDirectory scratch;
  Command command = endless("20s");
  command.arguments.insert(command.arguments.end(), {"--flight", scratch / "f"});
  Process job(command);
  ASSERT_TRUE(job.says(kRunning)) << job.wait(0ms).error;
  const ScratchDirectory none;
  EXPECT_TRUE(none.names().empty());
  ::kill(job.children().at(0), SIGUSR1);
  const auto recorded = [&] { return !run(tool({"flight", scratch / "f"})).out.empty(); };
  for (int i = 0; i < 200 && !recorded(); ++i) ::usleep(20'000);
  EXPECT_THAT(run(tool({"flight", scratch / "f"})).out, HasSubstr("recorded on request"));
}

TEST(CliFlight, good_job__leaves_nothing) {
  const ScratchDirectory scratch;
  const Ended ended = run(tool({"allreduce", "--local-ranks", "2", "-b", "4K", "-e", "4K", "-n",
                                "3", "--flight", scratch / "f"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_TRUE(std::filesystem::is_empty(scratch / "f"));
  EXPECT_THAT(run(tool({"flight", scratch / "f"})).error, HasSubstr("no flight recording there"));
}

TEST(CliFlight, stuck_job__status_names_the_stopped_rank_and_flight_reads_the_others) {
  Process job(endless("30s"));
  ASSERT_TRUE(job.says(kRunning)) << job.wait(0ms).error;
  const auto ranks = job.children();
  ASSERT_EQ(ranks.size(), 3u);
  ::kill(ranks[2], SIGSTOP);
  bool stuck = false;
  nlohmann::json status;
  for (int i = 0; i < 20 && !stuck; ++i) {
    status = status_of(ranks);
    stuck = status.size() == 3 && status[0].contains("operations") &&
            !status[0]["operations"].empty() &&
            status[0]["operations"][0]["age_ms"].get<double>() > 500;
  }
  ASSERT_TRUE(stuck) << status.dump();
  EXPECT_THAT(status[2]["error"].get<std::string>(), HasSubstr("is stopped"));
  bool named = false;  // rank 0 may wait for rank 1, which waits for rank 2
  for (const std::size_t rank : {0u, 1u}) {
    for (const auto& awaited : status[rank]["operations"][0]["waiting_for"]) named |= awaited == 2;
  }
  EXPECT_TRUE(named) << status.dump();

  const Ended table = run(tool({"status"}));
  EXPECT_THAT(table.out, HasSubstr("WAITING FOR"));
  EXPECT_THAT(table.out, HasSubstr("the process is stopped"));
  const std::string id = status[0]["job"];
  const Ended flight = run(tool({"flight", "--job", id}));
  EXPECT_EQ(flight.exit_code, 0);
  EXPECT_THAT(flight.out, HasSubstr("is still open after"));
  EXPECT_THAT(flight.out, HasSubstr("rank 2: "));
  EXPECT_THAT(flight.error, HasSubstr("rank 2 of job " + id + ": no answer"));
}

TEST(CliFlight, several_running_jobs__one_has_to_be_named) {
  Process one(endless("30s", "2")), other(endless("30s", "2"));
  ASSERT_TRUE(one.says(kRunning) && other.says(kRunning));
  const Ended unnamed = run(tool({"flight", "--verdict"}));
  EXPECT_EQ(unnamed.exit_code, 1);
  EXPECT_THAT(unnamed.error, HasSubstr("jobs run here ("));
  EXPECT_THAT(unnamed.error, HasSubstr("name one with --job"));
  const auto ranks = status_of(one.children());
  ASSERT_EQ(ranks.size(), 2u);
  const std::string id = ranks[0]["job"];
  EXPECT_THAT(run(tool({"flight", "--verdict", "--job", id})).out,
              StartsWith("# job " + id + ", 2 ranks\n"));
  EXPECT_THAT(run(tool({"flight", "--job", "00000001"})).error,
              HasSubstr("no rank of job 00000001 answers here"));
}

/// A good run of two ranks, of which one stops for a moment. Recordings go to `folder`.
Ended run_with_a_stop(const std::string& folder) {
  Process job(tool({"allreduce", "--local-ranks", "2", "-b", "16K", "-e", "16K", "-n", "15000",
                    "-c", "0", "--deadline", "60s", "--flight", folder}));
  EXPECT_TRUE(job.says(kRunning)) << job.wait(0ms).error;
  const auto ranks = job.children();
  EXPECT_EQ(ranks.size(), 2u);
  EXPECT_TRUE(has_ended_calls(ranks, 1000)) << "the job has not begun to measure";
  if (ranks.size() == 2) {
    ::kill(ranks[1], SIGSTOP);
    ::usleep(1'500'000);
    ::kill(ranks[1], SIGCONT);
  }
  return job.wait();
}

TEST(CliFlight, rank_that_stops_in_a_good_run__is_said_and_recorded) {
  // A stop between two calls makes no call longer. After some other stops the recordings show no
  // difference between the ranks; why is not known.
  std::string out, verdict;
  for (int runs = 0; runs < 6 && verdict.find("the median is") == std::string::npos; ++runs) {
    const ScratchDirectory scratch;
    const Ended ended = run_with_a_stop(scratch / "f");
    ASSERT_EQ(ended.exit_code, 0) << ended.error;
    out = unwrapped(ended.out);
    if (out.find("calls took more than 10 x the median") == std::string::npos) continue;
    EXPECT_THAT(out, HasSubstr("why: tarpon flight " + scratch / "f"));
    verdict = flight_in(scratch / "f")["verdict"]["line"].get<std::string>();
  }
  EXPECT_THAT(out, HasSubstr("calls took more than 10 x the median"));
  EXPECT_THAT(verdict, HasSubstr("the median is"));
}

/// A job of two in this process, whose cookie the test can know.
class OwnJob {
 public:
  explicit OwnJob(const std::string& flight) {
    const std::string meet = free_meeting_point();
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < 2; ++rank) {
      threads.emplace_back([this, rank, &meet, &flight] {
        CommunicatorOptions options;
        options.rendezvous.rank = rank;
        options.rendezvous.world_size = 2;
        options.rendezvous.address = meet;
        options.flight.directory = flight;
        options.mtu = 1500;
        auto made = Communicator::connect(options);
        if (made) ranks_[rank] = std::move(*made);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  bool is_there() const { return ranks_[0] && ranks_[1]; }
  Communicator& operator[](Rank rank) { return *ranks_[rank]; }

 private:
  std::array<std::unique_ptr<Communicator>, 2> ranks_;
};

TEST(CliFlight, cookie__is_shown_nowhere) {
  const ScratchDirectory scratch;
  std::string shown;
  std::uint32_t cookie = 0;
  {
    OwnJob job(scratch / "f");
    ASSERT_TRUE(job.is_there());
    cookie = job[0].control().job();
    std::array<float, 4> data{};
    // Fails, so that a recording is written.
    AllreduceArguments call;
    call.input = call.output = data.data();
    call.count = data.size();
    call.deadline = 50ms;
    EXPECT_NE(job[0].allreduce(call)->status, Status::complete);
    const std::string id = fmt::format("{:08x}", job[0].control().public_id());
    std::string sockets;
    std::ifstream table("/proc/net/unix");
    for (std::string line; std::getline(table, line);) {
      // Inode numbers and addresses are not ours to choose.
      const std::size_t at = line.find("@tarpon.");
      if (at != std::string::npos) sockets += line.substr(at) + "\n";
    }
    EXPECT_THAT(sockets, HasSubstr(id));
    shown += sockets;
    for (const std::vector<std::string>& arguments :
         {std::vector<std::string>{"status"},
          {"status", "--json"},
          {"flight", "--job", id, "--all", "--svg", scratch / "x.svg"},
          {"flight", "--job", id, "--json"}}) {
      const Ended told = run(tool(arguments));
      EXPECT_EQ(told.exit_code, 0) << told.error;
      EXPECT_THAT(told.out, HasSubstr(id));
      shown += told.out + told.error;
    }
    shown += content_of(scratch / "x.svg");
  }
  ASSERT_FALSE(std::filesystem::is_empty(scratch / "f"));
  for (const auto& entry : std::filesystem::directory_iterator(scratch / "f")) {
    shown += entry.path().filename().string() + content_of(entry.path().string());
  }
  const std::string raw(reinterpret_cast<const char*>(&cookie), sizeof cookie);
  for (const std::string& form : {fmt::format("{:08x}", cookie), fmt::format("{:x}", cookie),
                                  fmt::format("{:08X}", cookie), fmt::format("{}", cookie), raw}) {
    EXPECT_EQ(shown.find(form), std::string::npos) << form;
  }
}

/// A socket that looks like rank 0's of a job, and answers anything it likes.
TEST(CliFlight, strangers_socket__is_read_with_limits_and_printed_safely) {
  const std::string name = status_socket_name(::geteuid(), 0x5ca1ab1e, 0);
  const FileDescriptor listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(listener.get(), 8), 0);
  FlightHeader header;
  header.header_bytes = sizeof header;
  header.job = 0x5ca1ab1e;
  header.world_size = 1;
  const std::string escape = "\x1b]0;owned\x07\x1b[2J";
  escape.copy(header.host.data(), header.host.size());
  const std::vector<std::string> answers{
      std::string(500'000, '['), std::string(60'000, '['), escape + "\n",
      R"({"job":")" + escape + R"("})",
      std::string(reinterpret_cast<char*>(&header), sizeof header)};
  for (const std::string& answer : answers) {
    for (const auto& arguments : {std::vector<std::string>{"status"},
                                  {"status", "--json"},
                                  {"flight", "--job", "5ca1ab1e"},
                                  {"flight", "--json", "--job", "5ca1ab1e"}}) {
      std::thread server([&] {
        const FileDescriptor client(::accept(listener.get(), nullptr, nullptr));
        ::send(client.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
      });
      const Ended told = run(tool(arguments));
      server.join();
      EXPECT_EQ(told.signal, 0);
      if (arguments[0] == "status") {
        EXPECT_EQ(told.exit_code, 0);
        EXPECT_THAT(told.out, HasSubstr("5ca1ab1e"));
      }
      for (const char c : told.out + told.error) {
        ASSERT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << static_cast<int>(c);
      }
    }
  }
}

TEST(CliFlight, wrong_input__one_line) {
  const ScratchDirectory scratch;
  std::ofstream(scratch / "x.flight")
      << "nothing of that kind, but long enough to hold a header: " << std::string(200, '.');
  for (const auto& [arguments, code, text] :
       std::vector<std::tuple<std::vector<std::string>, int, std::string>>{
           {{"flight", scratch / "none"}, 1, "No such file"},
           {{"flight", scratch / "x.flight"}, 1, "not a flight recording"},
           {{"flight", "--job", "xyz", scratch / "x.flight"}, 2, "is not a job"},
           {{"allreduce", "--local-ranks", "1", "--flight", scratch / "x.flight"},
            2,
            "is not a directory"},
       }) {
    const Ended ended = run(tool(arguments));
    EXPECT_EQ(ended.exit_code, code) << ended.error;
    EXPECT_THAT(ended.error, HasSubstr(text));
    EXPECT_EQ(lines_of(ended.error).size(), 1u) << ended.error;
  }
}

}  // namespace
}  // namespace tarpon::test::cli_flight_test
