// CPU quotas of control groups, read from made-up trees.
#include "xdp/base/processors.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace tarpon::processors_test {
namespace {

class CpuQuota : public testing::Test {
 protected:
  CpuQuota() { root_ = ::mkdtemp(name_); }
  ~CpuQuota() override { std::filesystem::remove_all(root_); }

  void put(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }

  std::string root_;

 private:
  char name_[64] = "/tmp/tarpon-quota-XXXXXX";
};

TEST_F(CpuQuota, version_2__the_smallest_of_the_groups_above) {
  put("/proc/self/cgroup", "0::/job/step");
  EXPECT_EQ(cpu_quota(root_), std::nullopt);
  put("/sys/fs/cgroup/job/step/cpu.max", "max 100000");
  EXPECT_EQ(cpu_quota(root_), std::nullopt);
  put("/sys/fs/cgroup/job/cpu.max", "50000 100000");
  EXPECT_EQ(cpu_quota(root_), 0.5);
  put("/sys/fs/cgroup/job/step/cpu.max", "150000 100000");
  EXPECT_EQ(cpu_quota(root_), 0.5);
}

TEST_F(CpuQuota, version_2__in_a_container_the_mount_is_the_group) {
  put("/proc/self/cgroup", "0::/");
  put("/sys/fs/cgroup/cpu.max", "25000 100000");
  EXPECT_EQ(cpu_quota(root_), 0.25);
}

TEST_F(CpuQuota, version_1__where_the_group_is_not_below_the_mount_too) {
  put("/proc/self/cgroup", "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x");
  put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1");
  put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
  EXPECT_EQ(cpu_quota(root_), std::nullopt);
  put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000");
  EXPECT_EQ(cpu_quota(root_), 1.5);
}

TEST_F(CpuQuota, no_proc__is_no_limit) {
  EXPECT_EQ(cpu_quota(root_), std::nullopt);
}

TEST(Processors, allowed__follow_the_affinity) {
  const int all = allowed_processors();
  EXPECT_GE(all, 1);
  std::thread([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(::sched_getcpu(), &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(allowed_processors(), 1);
  }).join();
  EXPECT_EQ(allowed_processors(), all);
}

}  // namespace
}  // namespace tarpon::processors_test
