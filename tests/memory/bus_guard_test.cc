#include "daemon/memory/bus_guard.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "daemon/base/unique_fd.h"

namespace rdmad::memory {
namespace {

// Two mapped pages whose memory can be taken away, as nobody sealed them.
class BusGuard : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(InstallBusGuard());
    fd_.Reset(memfd_create("bus_guard", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(fd_.get(), 2 * kPage), 0);
    addr_ = static_cast<volatile char*>(
        mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0));
    ASSERT_NE(Addr(), MAP_FAILED);
  }
  void TearDown() override { munmap(Addr(), 2 * kPage); }

  void* Addr() const { return const_cast<char*>(addr_); }  // NOLINT

  static constexpr uint64_t kPage = 4096;
  UniqueFd fd_;
  volatile char* addr_ = nullptr;
};

TEST_F(BusGuard, AMissingPageReadsAsZerosAndTakesWrites) {
  const BusGuardedRange range(Addr(), 2 * kPage, kPage);
  ASSERT_TRUE(range.guarded());
  addr_[0] = 1;
  addr_[kPage] = 2;
  const uint64_t before = BusGuardReplacedPages();
  ASSERT_EQ(ftruncate(fd_.get(), static_cast<off_t>(kPage)), 0);
  EXPECT_EQ(addr_[kPage], 0);
  addr_[kPage + 1] = 3;
  EXPECT_EQ(addr_[kPage + 1], 3);
  EXPECT_EQ(addr_[0], 1) << "the other page is still the shared one";
  EXPECT_EQ(BusGuardReplacedPages(), before + 1);
}

TEST_F(BusGuard, AMovedRangeStaysGuarded) {
  BusGuardedRange first(Addr(), 2 * kPage, kPage);
  BusGuardedRange second;
  second = std::move(first);
  EXPECT_FALSE(first.guarded());  // NOLINT(bugprone-use-after-move): what this test is about
  ASSERT_EQ(ftruncate(fd_.get(), 0), 0);
  EXPECT_EQ(addr_[0], 0);
}

TEST_F(BusGuard, OutsideOfTheRangesTheProcessEnds) {
  { const BusGuardedRange gone(Addr(), 2 * kPage, kPage); }
  EXPECT_DEATH(
      {
        ASSERT_EQ(ftruncate(fd_.get(), 0), 0);
        addr_[0] = 1;
      },
      "");
}

}  // namespace
}  // namespace rdmad::memory
