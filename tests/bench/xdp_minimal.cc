// The baseline of `./dev bench xdp`: frames between AF_XDP sockets with nothing done to them.
//
// Usage: xdp_minimal send|receive|both --interface IFACE [--to MAC] [options]
// Start the receiver first, and the sender once it has printed "ready". A receiver measures for
// --seconds from the first frame on; a sender sends a little longer than that. `both` sends and
// receives in one thread, measured over the same --seconds; with --meet DIR the ranks (RANK,
// WORLD_SIZE) find their successor's MAC there and start together.
// Prints one line of JSON.
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/bench/minimal_socket.h"
#include "tests/bench/pause.h"
#include "tools/system/process_usage.h"

namespace tarpon::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kBatch = 64;  // frames sent at once
constexpr std::uint32_t kChunksAtOnce = 256;
constexpr double kPatience = 10;     // for the first frame, or for the other ranks
constexpr double kSendLonger = 0.1;  // than the receiver measures

struct Options {
  MinimalOptions socket;
  std::string role;
  std::string to = "ff:ff:ff:ff:ff:ff";
  std::string meet;
  double seconds = 0.5;
  double spin_us = 20;   // looked again before a receiver sleeps
  unsigned rest_us = 0;  // that a sender sleeps while all its frames are on their way
};

struct Usage {
  Clock::time_point at = Clock::now();
  double cpu_s = 0;
  std::uint64_t packets = 0;
  std::uint64_t bytes = 0;
  std::uint64_t lost = 0;
};

Usage usage_now(const MinimalSocket& socket) {
  return {.cpu_s = process_cpu_seconds(),
          .packets = socket.packets(),
          .bytes = socket.bytes(),
          .lost = socket.lost()};
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void print(const Options& options, const MinimalSocket& socket, const Usage& from, const Usage& to,
           std::uint64_t sent) {
  const double seconds = std::chrono::duration<double>(to.at - from.at).count();
  std::printf(
      "{\"role\": \"%s\", \"frame\": %u, \"seconds\": %.6f, \"packets\": %llu, \"bytes\": %llu, "
      "\"lost\": %llu, \"sent\": %llu, \"cpu_s\": %.6f, \"zero_copy\": %s}\n",
      options.role.c_str(), options.socket.frame_bytes, seconds,
      static_cast<unsigned long long>(to.packets - from.packets),
      static_cast<unsigned long long>(to.bytes - from.bytes),
      static_cast<unsigned long long>(to.lost - from.lost), static_cast<unsigned long long>(sent),
      to.cpu_s - from.cpu_s, socket.zero_copy() ? "true" : "false");
}

void run_sender(const Options& options, MinimalSocket& socket) {
  const Usage from = usage_now(socket);
  std::uint64_t sent = 0;
  while (seconds_since(from.at) < options.seconds + kSendLonger) {
    const std::uint32_t count = socket.send(kBatch);
    sent += count;
    if (!socket.reap() || count > 0) continue;
    if (options.rest_us > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(options.rest_us));
    } else {
      socket.sleep(POLLOUT);
    }
  }
  print(options, socket, from, usage_now(socket), sent);
}

void wait_for_first(MinimalSocket& socket) {
  for (const auto start = Clock::now(); socket.receive(kChunksAtOnce) == 0; socket.sleep(POLLIN)) {
    if (seconds_since(start) > kPatience) {
      std::fprintf(stderr, "xdp_minimal: no frame came in %.0f s\n", kPatience);
      std::exit(1);
    }
  }
}

void run_receiver(const Options& options, MinimalSocket& socket) {
  std::printf("ready\n");
  std::fflush(stdout);
  wait_for_first(socket);
  const Usage from = usage_now(socket);
  auto busy = from.at;
  for (auto now = from.at; std::chrono::duration<double>(now - from.at).count() < options.seconds;
       now = Clock::now()) {
    if (socket.receive(kChunksAtOnce) > 0) {
      busy = now;
    } else if (std::chrono::duration<double, std::micro>(now - busy).count() > options.spin_us) {
      socket.sleep(POLLIN);
    } else {
      pause_a_little();
    }
  }
  print(options, socket, from, usage_now(socket), 0);
}

std::string mac_text(const MacAddress& mac) {
  char text[18];
  std::snprintf(text, sizeof text, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3],
                mac[4], mac[5]);
  return text;
}

MacAddress parse_mac(const std::string& text) {
  MacAddress mac{};
  unsigned part[6];
  if (std::sscanf(text.c_str(), "%x:%x:%x:%x:%x:%x", &part[0], &part[1], &part[2], &part[3],
                  &part[4], &part[5]) != 6) {
    std::fprintf(stderr, "xdp_minimal: \"%s\" is no MAC: write ff:ff:ff:ff:ff:ff\n", text.c_str());
    std::exit(2);
  }
  for (std::size_t i = 0; i < mac.size(); ++i) mac[i] = static_cast<std::uint8_t>(part[i]);
  return mac;
}

/// The successor's MAC, once every rank is there.
std::string meet(const std::string& directory, const MacAddress& mine) {
  const char* const rank_text = std::getenv("RANK");
  const char* const world_text = std::getenv("WORLD_SIZE");
  if (rank_text == nullptr || world_text == nullptr) {
    std::fprintf(stderr, "xdp_minimal: --meet needs RANK and WORLD_SIZE\n");
    std::exit(2);
  }
  const int rank = std::atoi(rank_text), world = std::atoi(world_text);
  const auto path = [&directory](int of) { return directory + "/mac-" + std::to_string(of); };
  std::ofstream(path(rank) + ".new") << mac_text(mine);
  std::filesystem::rename(path(rank) + ".new", path(rank));
  const auto start = Clock::now();
  for (int other = 0; other < world; ++other) {
    while (!std::filesystem::exists(path(other))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (seconds_since(start) > kPatience) die("rank " + std::to_string(other) + " is missing");
    }
  }
  std::string text;
  std::ifstream(path((rank + 1) % world)) >> text;
  return text;
}

void run_both(const Options& options, MinimalSocket& socket) {
  wait_for_first(socket);
  const Usage from = usage_now(socket);
  Usage to = from;
  std::uint64_t sent = 0;
  for (bool measured = false;;) {
    const double elapsed = seconds_since(from.at);
    if (!measured && elapsed >= options.seconds) {
      to = usage_now(socket);
      measured = true;
    }
    if (elapsed >= options.seconds + kSendLonger) break;
    const std::uint32_t received = socket.receive(kChunksAtOnce);
    const std::uint32_t count = socket.send(kBatch);
    if (!measured) sent += count;
    if (socket.reap() && count == 0 && received == 0) socket.sleep(POLLIN | POLLOUT);
    // With more ranks than processors nobody would take what was sent within a time slice.
    ::sched_yield();
  }
  print(options, socket, from, to, sent);
}

void run(const Options& options) {
  MinimalSocket socket(options.socket);
  const std::string to = options.meet.empty() ? options.to : meet(options.meet, socket.mac());
  socket.prepare(parse_mac(to));
  if (options.role == "receive") return run_receiver(options, socket);
  if (options.role == "send") return run_sender(options, socket);
  socket.send(kBatch);  // the predecessor waits for its first frame
  run_both(options, socket);
}

int main_of(int argc, char** argv) {
  Options options;
  std::string copy = "auto";
  CLI::App app{"AF_XDP frames with nothing done to them: the baseline of the benchmarks"};
  app.add_option("role", options.role)
      ->required()
      ->check(CLI::IsMember({"send", "receive", "both"}));
  app.add_option("--interface", options.socket.interface)->required();
  app.add_option("--queue", options.socket.queue)->check(CLI::Range(0, 63));
  app.add_option("--frame", options.socket.frame_bytes, "bytes, Ethernet header included")
      ->check(CLI::Range(60, 9014));
  app.add_option("--to", options.to, "MAC (broadcast)");
  app.add_option("--seconds", options.seconds)->check(CLI::Range(0.01, 60.0));
  app.add_option("--spin-us", options.spin_us, "before a receiver sleeps (20)");
  app.add_option("--receive-chunks", options.socket.receive_chunks)->check(CLI::Range(64, 2048));
  app.add_option("--in-flight", options.socket.in_flight, "frames sent and not completed (192)")
      ->check(CLI::Range(64, 2048));
  app.add_option("--rest-us", options.rest_us, "that a sender sleeps then; 0: until it may send")
      ->check(CLI::Range(0, 10000));
  app.add_option("--copy", copy)->check(CLI::IsMember({"auto", "copy", "zero-copy"}));
  app.add_flag("--multi-buffer", options.socket.multi_buffer);
  app.add_option("--meet", options.meet, "directory where ranks meet");
  CLI11_PARSE(app, argc, argv);
  if (options.socket.frame_bytes > kChunk && !options.socket.multi_buffer) {
    std::fprintf(stderr, "xdp_minimal: a frame of %u bytes needs --multi-buffer\n",
                 options.socket.frame_bytes);
    return 2;
  }
  if (copy == "copy") options.socket.copy_flags = XDP_COPY;
  if (copy == "zero-copy") options.socket.copy_flags = XDP_ZEROCOPY;
  run(options);
  return 0;
}

}  // namespace
}  // namespace tarpon::bench

int main(int argc, char** argv) {
  return tarpon::bench::main_of(argc, argv);
}
