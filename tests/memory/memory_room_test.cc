#include "daemon/memory/memory_room.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace rdmad::memory {
namespace {

// A root folder with the few files that are read.
class MemoryRoomTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "/room_" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
    Write("/proc/meminfo", "MemTotal:  4000 kB\nMemFree:  100 kB\nMemAvailable:    2000 kB\n");
  }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  std::string root_;
};

TEST_F(MemoryRoomTest, WithoutCgroupsTheMachineLimits) {
  const MemoryRoom room = AvailableMemory(root_);
  EXPECT_EQ(room.bytes, 2000u * 1024);
  EXPECT_EQ(room.limit, "machine");
}

TEST_F(MemoryRoomTest, ACgroupLimitsToWhatItHasNotUsed) {
  Write("/proc/self/cgroup", "0::/app\n");
  Write("/sys/fs/cgroup/app/memory.max", "1000000\n");
  Write("/sys/fs/cgroup/app/memory.current", "700000\n");
  EXPECT_EQ(AvailableMemory(root_).bytes, 300000u);
  EXPECT_EQ(AvailableMemory(root_).limit, root_ + "/sys/fs/cgroup/app");
}

TEST_F(MemoryRoomTest, OldPageCacheCountsAsFree) {
  Write("/proc/self/cgroup", "0::/app\n");
  Write("/sys/fs/cgroup/app/memory.max", "1000000\n");
  Write("/sys/fs/cgroup/app/memory.current", "700000\n");
  Write("/sys/fs/cgroup/app/memory.stat", "anon 5\ninactive_file 600000\nactive_file 7\n");
  EXPECT_EQ(AvailableMemory(root_).bytes, 900000u);
}

TEST_F(MemoryRoomTest, TheTightestParentCounts) {
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  Write("/sys/fs/cgroup/a/b/memory.current", "5\n");
  Write("/sys/fs/cgroup/a/memory.max", "5000\n");
  Write("/sys/fs/cgroup/a/memory.current", "6000\n");
  EXPECT_EQ(AvailableMemory(root_).bytes, 0u);
  EXPECT_EQ(AvailableMemory(root_).limit, root_ + "/sys/fs/cgroup/a");
}

TEST_F(MemoryRoomTest, AContainerSeesItsOwnCgroupAtTheRoot) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "9000\n");
  Write("/sys/fs/cgroup/memory.current", "1000\n");
  EXPECT_EQ(AvailableMemory(root_).bytes, 8000u);
}

TEST_F(MemoryRoomTest, VersionOneIsUnderstood) {
  Write("/proc/self/cgroup", "3:cpu,cpuacct:/x\n4:memory:/m\n");
  Write("/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "4096\n");
  Write("/sys/fs/cgroup/memory/m/memory.usage_in_bytes", "1096\n");
  EXPECT_EQ(AvailableMemory(root_).bytes, 3000u);
}

TEST(MemoryRoom, WhatCannotBeReadDoesNotLimit) {
  EXPECT_EQ(AvailableMemory("/nonexistent").bytes, UINT64_MAX);
}

TEST(MemoryRoom, ThisMachineHasSome) {
  EXPECT_GT(AvailableMemory().bytes, 0u);
  EXPECT_LT(AvailableMemory().bytes, UINT64_MAX);
}

}  // namespace
}  // namespace rdmad::memory
