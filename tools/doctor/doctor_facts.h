// What `tarpon doctor` judges: one interface and this machine, as the kernel describes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transport/rung.h"
#include "xdp/attached.h"
#include "xdp/interface_features.h"

namespace tarpon {

/// Receive, send or combined channels, whichever the driver has most of.
struct ChannelCount {
  std::uint32_t receive = 0;
  std::uint32_t send = 0;
  bool combined = false;  // a channel does both
  std::uint32_t most = 0;
};

struct DoctorFacts {
  // The interface.
  std::string name;
  std::string driver;
  std::uint32_t mtu = 1500;
  bool up = false;
  bool loopback = false;
  std::string address;    // IPv4, dotted; empty: none
  bool has_ipv6 = false;  // an address that is not link-local
  std::optional<xdp::Attached> attached;
  std::string attached_error;  // set when the kernel does not tell
  std::optional<xdp::InterfaceFeatures> features;
  std::string features_error;
  std::optional<ChannelCount> channels;
  std::optional<ChannelCount> peer_channels;  // of a veth whose other end is here
  // This process and machine.
  bool has_af_xdp = false;
  std::vector<std::string> missing_for_socket;   // capabilities
  std::vector<std::string> missing_for_program;  // capabilities
  std::uint64_t queue_bytes = 0;                 // locked by one queue
  std::uint64_t memlock_bytes = UINT64_MAX;      // limit of this process
  std::uint64_t huge_page_bytes = 0;             // 0: none configured
  std::uint64_t huge_pages_free = 0;
  bool bpf_file_system = false;
  bool mounts_go_with_us = false;  // below `ip netns exec`: tarpon xdp load mounts nothing there
  int uring_disabled = 0;          // kernel.io_uring_disabled
  bool seccomp = false;
  bool udp_gso = false;
  bool udp_gro = false;
  std::uint64_t receive_buffer = 0;  // bytes that a socket gets when it asks for wanted_buffer
  std::uint64_t send_buffer = 0;
  std::uint64_t wanted_buffer = 0;
  int cpus = 0;                     // that this process may run on
  std::optional<double> cpu_quota;  // of its control groups, in processors
  RungFacts rung;
};

/// Reads the facts of interface `name` of this network namespace. Changes nothing. Errors: those of
/// the kernel's lists of interfaces.
Result<DoctorFacts> read_doctor_facts(const std::string& name);

}  // namespace tarpon
