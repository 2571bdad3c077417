// Ranks of the control channel as threads, over loopback TCP and over address files.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "collectives/rendezvous/address.h"
#include "collectives/rendezvous/connection.h"
#include "collectives/rendezvous/control.h"
#include "collectives/rendezvous/hello.h"
#include "collectives/rendezvous/sockets.h"
#include "transport/clock.h"

namespace tarpon::testing_support {

using Joined = Result<std::unique_ptr<ControlChannel>>;

/// Long enough for every test that should succeed, even under a sanitizer.
inline constexpr Duration kPatience = 60s;
/// For waits that must end without success.
inline constexpr Duration kShort = 1s;

inline sockaddr_in loopback(std::uint16_t port) {
  return *rendezvous::resolve("127.0.0.1", port);
}

inline FileDescriptor listen_anywhere() {
  return *rendezvous::listen_at(loopback(0));
}

inline std::uint16_t port_of(const FileDescriptor& socket) {
  return ntohs(rendezvous::local_name(socket).sin_port);
}

/// A port that was free a moment ago.
inline std::string free_address() {
  return fmt::format("tcp://127.0.0.1:{}", port_of(listen_anywhere()));
}

class Directory {
 public:
  Directory() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tarpon-control-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  ~Directory() { std::filesystem::remove_all(path_); }

  std::string file() const { return (path_ / "rendezvous").string(); }
  std::string address() const { return "file://" + file(); }
  bool is_empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::filesystem::path path_;
};

inline RendezvousOptions options(const std::string& address, Rank rank, std::uint32_t world,
                                 Duration timeout = kPatience) {
  RendezvousOptions options;
  options.rank = rank;
  options.world_size = world;
  options.address = address;
  options.timeout = timeout;
  options.agreed = "version=1\nmode=exact\n";
  return options;
}

/// Joins all of `wanted` at once, a thread each.
inline std::vector<Joined> join_all(const std::vector<RendezvousOptions>& wanted) {
  std::vector<Joined> joined(wanted.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    threads.emplace_back([&, i] { joined[i] = ControlChannel::join(wanted[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  return joined;
}

inline std::vector<RendezvousOptions> all_of(const std::string& address, std::uint32_t world,
                                             Duration timeout = kPatience) {
  std::vector<RendezvousOptions> wanted;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    wanted.push_back(options(address, static_cast<Rank>(rank), world, timeout));
  }
  return wanted;
}

/// A job whose ranks have joined; `run` gives every rank a thread.
class Job {
 public:
  explicit Job(std::uint32_t world, const std::string& address = free_address()) {
    for (Joined& joined : join_all(all_of(address, world))) {
      EXPECT_TRUE(joined.has_value()) << joined.error().message;
      channels_.push_back(*std::move(joined));
    }
  }

  void run(const std::function<void(ControlChannel&)>& body) {
    std::vector<std::thread> threads;
    for (auto& channel : channels_) {
      if (channel) threads.emplace_back([&] { body(*channel); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void kill(Rank rank) { channels_[rank].reset(); }
  ControlChannel& operator[](Rank rank) { return *channels_[rank]; }
  std::size_t size() const { return channels_.size(); }

 private:
  std::vector<std::unique_ptr<ControlChannel>> channels_;
};

inline Time soon() {
  return monotonic_now() + kShort;
}
inline Time late() {
  return monotonic_now() + kPatience;
}

/// Every one of `joined` failed with this code and the same text, which is returned.
inline std::string common_error(const std::vector<Joined>& joined, Error::Code code) {
  std::optional<std::string> text;
  for (const Joined& one : joined) {
    if (one.has_value()) {
      ADD_FAILURE() << "a rank joined";
      return "";
    }
    EXPECT_EQ(one.error().code, code) << one.error().message;
    EXPECT_EQ(text.value_or(one.error().message), one.error().message);
    text = one.error().message;
  }
  return text.value_or("");
}

/// A client that connects to rank 0 and sends `bytes`.
inline rendezvous::Connection foreign_client(const std::string& address, const std::string& bytes) {
  const auto parsed = *rendezvous::parse_address(address);
  const Time deadline = late();
  while (true) {
    auto socket = rendezvous::connect_to(loopback(parsed.port), deadline);
    if (socket) {
      rendezvous::Connection connection(*std::move(socket));
      if (!bytes.empty()) connection.send(std::make_shared<const std::string>(bytes));
      return connection;
    }
    if (monotonic_now() >= deadline) return {};
    rendezvous::sleep_until(monotonic_now() + 5ms);
  }
}

inline std::string hello_frame(const rendezvous::Hello& hello, std::uint32_t wait_ms = UINT32_MAX) {
  return encode(rendezvous::Frame{rendezvous::FrameKind::hello, 0, wait_ms, encode(hello)});
}

}  // namespace tarpon::testing_support
