// The judgement of `tarpon doctor`.
#include "tools/doctor/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace tarpon::doctor_test {
namespace {

using ::testing::HasSubstr;

/// A NIC with everything, our program loaded.
DoctorFacts good_facts() {
  DoctorFacts facts;
  facts.name = "eth0";
  facts.driver = "ice";
  facts.up = true;
  facts.address = "10.0.0.1";
  facts.attached = xdp::Attached{.id = 7,
                                 .name = "tarpon_xdp",
                                 .mode = xdp::AttachMode::native,
                                 .ours = true,
                                 .dispatcher = false,
                                 .components = {},
                                 .our_program = 7};
  facts.features = xdp::InterfaceFeatures{.native_xdp = true, .zero_copy = true};
  facts.channels = ChannelCount{.receive = 8, .send = 8, .combined = true, .most = 8};
  facts.has_af_xdp = true;
  facts.queue_bytes = 10 << 20;
  facts.huge_page_bytes = 2 << 20;
  facts.huge_pages_free = 64;
  facts.bpf_file_system = true;
  facts.udp_gso = true;
  facts.udp_gro = true;
  facts.receive_buffer = facts.send_buffer = facts.wanted_buffer = 16 << 20;
  facts.cpus = 8;
  return facts;
}

DoctorRow row_of(const std::vector<DoctorRow>& rows, const std::string& id) {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const DoctorRow& row) { return row.id == id; });
  EXPECT_NE(found, rows.end()) << id;
  return found == rows.end() ? DoctorRow{} : *found;
}

/// The requirement is not met, and these rungs are forbidden with its command; others are not.
void expect_no(const DoctorFacts& facts, const std::string& id, const std::string& command,
               const std::vector<std::string>& rungs) {
  SCOPED_TRACE(id);
  const Diagnosis diagnosis = diagnose(facts);
  const DoctorRow row = row_of(diagnosis.requirements, id);
  EXPECT_EQ(row.answer, Answer::no);
  EXPECT_FALSE(row.why.empty());
  EXPECT_EQ(row.command, command);
  for (const DoctorRow& rung : diagnosis.rungs) {
    const bool forbidden = std::find(rungs.begin(), rungs.end(), rung.id) != rungs.end();
    EXPECT_EQ(rung.answer, forbidden ? Answer::no : Answer::yes) << rung.id;
    EXPECT_EQ(rung.command, forbidden ? command : "");
  }
}

const std::vector<std::string> kXdpRungs{"af_xdp_zero_copy", "af_xdp_copy"};
const std::vector<std::string> kZeroCopyRung{"af_xdp_zero_copy"};
const std::vector<std::string> kAllRungs{"af_xdp_zero_copy", "af_xdp_copy", "io_uring", "mmsg"};

TEST(Doctor, diagnose__all_is_well) {
  const Diagnosis diagnosis = diagnose(good_facts());
  for (const auto* rows : {&diagnosis.rungs, &diagnosis.requirements}) {
    for (const DoctorRow& row : *rows) {
      if (row.id == "busy_poll") continue;  // known only once a socket is bound
      EXPECT_EQ(row.answer, Answer::yes) << row.id << ": " << row.why;
      EXPECT_EQ(row.command, "") << row.id;
    }
  }
  EXPECT_EQ(diagnosis.choice.rung, Rung::xdp);
  EXPECT_EQ(diagnosis.shortfall, "");
}

TEST(Doctor, diagnose__small_socket_buffers) {
  DoctorFacts facts = good_facts();
  facts.receive_buffer = 4096;
  expect_no(facts, "socket_buffers",
            "sysctl -w net.core.rmem_max=16777216 net.core.wmem_max=16777216", {});
  EXPECT_THAT(row_of(diagnose(facts).requirements, "socket_buffers").why,
              HasSubstr("4 KiB to receive, 16384 KiB to send"));
}

TEST(Doctor, diagnose__cpu_quota) {
  DoctorFacts facts = good_facts();
  facts.cpu_quota = 0.5;
  expect_no(facts, "cpu_quota", "", {});
  EXPECT_THAT(row_of(diagnose(facts).requirements, "cpu_quota").why,
              HasSubstr("8 processors, time of 0.5"));
  facts.cpu_quota = 8;
  EXPECT_EQ(row_of(diagnose(facts).requirements, "cpu_quota").answer, Answer::yes);
}

TEST(Doctor, diagnose__the_interface) {
  DoctorFacts facts = good_facts();
  facts.up = false;
  expect_no(facts, "up", "ip link set dev eth0 up", kAllRungs);
  EXPECT_NE(diagnose(facts).shortfall, "");

  facts = good_facts();
  facts.address.clear();
  facts.has_ipv6 = true;
  expect_no(facts, "ipv4", "ip address add ADDRESS/PREFIX dev eth0", kAllRungs);
  EXPECT_THAT(row_of(diagnose(facts).requirements, "ipv4").why, HasSubstr("IPv6 addresses only"));

  facts = good_facts();
  facts.mtu = 9000;
  expect_no(facts, "mtu", "ip link set dev eth0 mtu 3498", kZeroCopyRung);
  facts.features->zero_copy_segments = 8;
  EXPECT_EQ(row_of(diagnose(facts).requirements, "mtu").answer, Answer::yes);
}

TEST(Doctor, diagnose__loopback_is_told_nothing_that_would_not_help) {
  DoctorFacts facts = good_facts();
  facts.name = "lo";
  facts.loopback = true;
  facts.mtu = 65536;
  facts.attached.reset();
  facts.features = xdp::InterfaceFeatures{};
  for (const char* id : {"mtu", "native_xdp", "loaded"}) {
    EXPECT_EQ(row_of(diagnose(facts).requirements, id).command, "") << id;
  }
}

TEST(Doctor, diagnose__the_driver) {
  DoctorFacts facts = good_facts();
  facts.features->zero_copy = false;
  expect_no(facts, "zero_copy", "", kZeroCopyRung);
  facts.rung.against_zero_copy = "no zero-copy";
  EXPECT_EQ(diagnose(facts).choice.rung, Rung::uring);
  EXPECT_EQ(diagnose(facts).shortfall, "");  // io_uring is the best that it has

  facts = good_facts();
  facts.driver = "iavf";
  facts.features = xdp::InterfaceFeatures{};
  facts.features->zero_copy = true;
  expect_no(facts, "native_xdp", "tarpon xdp load eth0 --mode skb", kXdpRungs);
  facts.attached->mode = xdp::AttachMode::generic;
  EXPECT_EQ(row_of(diagnose(facts).requirements, "loaded").command, "");
  facts.attached.reset();
  facts.bpf_file_system = false;
  facts.mounts_go_with_us = true;
  EXPECT_EQ(row_of(diagnose(facts).requirements, "loaded").command,
            "tarpon xdp load eth0 --mode skb");
  EXPECT_EQ(row_of(diagnose(facts).requirements, "bpf_file_system").command,
            "nsenter --net=/run/netns/NAME tarpon xdp load eth0 --mode skb");

  facts = good_facts();
  facts.driver = "ena";
  expect_no(facts, "queues", "ethtool -L eth0 combined 4", kXdpRungs);
  facts.driver = "gve";
  facts.channels->combined = false;
  expect_no(facts, "queues", "ethtool -L eth0 rx 4 tx 4", kXdpRungs);
  facts.channels->receive = facts.channels->send = 4;
  EXPECT_EQ(row_of(diagnose(facts).requirements, "queues").answer, Answer::yes);

  facts = good_facts();
  facts.features.reset();
  facts.features_error = "too old";
  EXPECT_EQ(row_of(diagnose(facts).requirements, "native_xdp").answer, Answer::unknown);
}

TEST(Doctor, diagnose__a_veth_and_its_peer) {
  DoctorFacts facts = good_facts();
  facts.driver = "veth";
  facts.channels = ChannelCount{.receive = 1, .send = 1, .combined = false, .most = 8};
  facts.peer_channels = ChannelCount{.receive = 4, .send = 4, .combined = false, .most = 8};
  facts.features->native_xdp = false;
  expect_no(facts, "queues", "ethtool -L eth0 rx 4", kXdpRungs);
  facts.peer_channels.reset();
  EXPECT_EQ(row_of(diagnose(facts).requirements, "queues").command, "ethtool -L eth0 rx N");
  EXPECT_EQ(row_of(diagnose(facts).requirements, "busy_poll").answer, Answer::no);
}

TEST(Doctor, diagnose__programs) {
  DoctorFacts facts = good_facts();
  facts.attached->ours = false;
  facts.attached->name = "stranger";
  expect_no(facts, "no_foreign_program", "", kXdpRungs);
  EXPECT_THAT(row_of(diagnose(facts).requirements, "no_foreign_program").why,
              HasSubstr("stranger (id 7)"));
  facts.attached->dispatcher = true;
  expect_no(facts, "no_foreign_program", "tarpon xdp load eth0 --shared", kXdpRungs);

  facts = good_facts();
  facts.attached.reset();
  facts.rung.against_zero_copy = "not loaded on eth0";
  const Diagnosis unloaded = diagnose(facts);
  EXPECT_EQ(row_of(unloaded.requirements, "loaded").command, "tarpon xdp load eth0");
  EXPECT_EQ(row_of(unloaded.rungs, "af_xdp_zero_copy").answer, Answer::yes);
  EXPECT_EQ(unloaded.choice.rung, Rung::uring);
  EXPECT_EQ(unloaded.shortfall, "auto does not take the best of this driver, xdp");

  facts = good_facts();
  facts.attached->mode = xdp::AttachMode::generic;
  expect_no(facts, "loaded", "tarpon xdp unload eth0 && tarpon xdp load eth0", kZeroCopyRung);
}

TEST(Doctor, diagnose__a_helper_stands_for_capabilities) {
  DoctorFacts facts = good_facts();
  facts.attached.reset();
  facts.attached_error = "XDP program 7 (needs CAP_SYS_ADMIN): Operation not permitted";
  facts.missing_for_socket = {"CAP_NET_RAW"};
  facts.missing_for_program = {"CAP_BPF"};
  EXPECT_EQ(row_of(diagnose(facts).rungs, "af_xdp_copy").answer, Answer::no);
  facts.rung.served = xdp::ServedMode{};
  const Diagnosis served = diagnose(facts);
  EXPECT_EQ(row_of(served.rungs, "af_xdp_zero_copy").answer, Answer::yes);
  EXPECT_EQ(row_of(served.requirements, "cap_socket").why, "by tarpon xdp serve");
  EXPECT_EQ(row_of(served.requirements, "no_foreign_program").answer, Answer::yes);
  facts.rung.served->copies = true;
  expect_no(facts, "loaded", "", kZeroCopyRung);
}

TEST(Doctor, diagnose__the_machine) {
  DoctorFacts facts = good_facts();
  facts.rung.against_uring = "io_uring is forbidden";
  facts.uring_disabled = 2;
  expect_no(facts, "io_uring", "sysctl -w kernel.io_uring_disabled=0", {"io_uring"});
  EXPECT_EQ(diagnose(facts).shortfall, "");  // AF_XDP does without
  facts.rung.against_zero_copy = "no zero-copy";
  facts.features->zero_copy = false;
  EXPECT_EQ(diagnose(facts).choice.rung, Rung::mmsg);
  EXPECT_NE(diagnose(facts).shortfall, "");
  facts.uring_disabled = 0;
  facts.seccomp = true;
  EXPECT_THAT(row_of(diagnose(facts).requirements, "io_uring").command, HasSubstr("seccomp="));

  facts = good_facts();
  facts.memlock_bytes = 8 << 20;
  expect_no(facts, "memlock", "ulimit -l unlimited", kXdpRungs);

  const std::string serve = "sudo tarpon xdp serve eth0 --group $(id -gn)";
  facts = good_facts();
  facts.missing_for_socket = {"CAP_NET_RAW"};
  expect_no(facts, "cap_socket", serve, kXdpRungs);
  facts = good_facts();
  facts.missing_for_program = {"CAP_BPF", "CAP_NET_ADMIN"};
  expect_no(facts, "cap_program", serve, kXdpRungs);
  facts.features->native_xdp = false;
  EXPECT_EQ(row_of(diagnose(facts).requirements, "cap_program").command,
            "sudo tarpon xdp load eth0 --mode skb && " + serve);

  facts = good_facts();
  facts.has_af_xdp = false;
  expect_no(facts, "af_xdp", "", kXdpRungs);
  facts = good_facts();
  facts.udp_gro = false;
  expect_no(facts, "udp_gso_gro", "", {});
  facts = good_facts();
  facts.bpf_file_system = false;
  expect_no(facts, "bpf_file_system", "mount -t bpf bpf /sys/fs/bpf", {});
  facts.mounts_go_with_us = true;  // below `ip netns exec`
  expect_no(facts, "bpf_file_system", "nsenter --net=/run/netns/NAME tarpon xdp load eth0", {});
  facts = good_facts();
  facts.huge_pages_free = 1;
  expect_no(facts, "huge_pages", "sysctl -w vm.nr_hugepages=$(($(sysctl -n vm.nr_hugepages) + 5))",
            {});
}

}  // namespace
}  // namespace tarpon::doctor_test
