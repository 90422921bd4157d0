#include "daemon/base/unique_fd.h"

#include <fcntl.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <utility>

#include "gtest/gtest.h"

namespace rdmad {
namespace {

bool IsOpen(int fd) {
  return fcntl(fd, F_GETFD) >= 0;
}

int NewFd() {
  return eventfd(0, EFD_CLOEXEC);
}

TEST(UniqueFd, ClosesWhenItGoesOutOfScope) {
  int number = -1;
  {
    const UniqueFd fd(NewFd());
    number = fd.get();
    ASSERT_TRUE(IsOpen(number));
  }
  EXPECT_FALSE(IsOpen(number));
}

TEST(UniqueFd, NegativeNumbersAreEmpty) {
  for (const int number : {-1, -2, -9}) {
    const UniqueFd fd(number);
    EXPECT_FALSE(fd.valid());
    EXPECT_EQ(fd.get(), -1);
  }
}

TEST(UniqueFd, MoveLeavesTheSourceEmpty) {
  UniqueFd source(NewFd());
  const int number = source.get();
  const UniqueFd target(std::move(source));
  EXPECT_FALSE(source.valid());
  EXPECT_EQ(target.get(), number);
  EXPECT_TRUE(IsOpen(number));
}

TEST(UniqueFd, MoveAssignmentClosesWhatWasHeld) {
  UniqueFd target(NewFd());
  const int old = target.get();
  UniqueFd source(NewFd());
  const int number = source.get();
  target = std::move(source);
  EXPECT_FALSE(IsOpen(old));
  EXPECT_EQ(target.get(), number);
}

TEST(UniqueFd, AssigningToItselfKeepsTheDescriptor) {
  UniqueFd fd(NewFd());
  UniqueFd& alias = fd;
  fd = std::move(alias);
  EXPECT_TRUE(fd.valid());
  EXPECT_TRUE(IsOpen(fd.get()));
}

TEST(UniqueFd, ReleaseGivesTheDescriptorAway) {
  UniqueFd fd(NewFd());
  const int number = fd.Release();
  EXPECT_FALSE(fd.valid());
  EXPECT_TRUE(IsOpen(number));
  close(number);
}

TEST(UniqueFd, ResetToANewDescriptorClosesTheOld) {
  UniqueFd fd(NewFd());
  const int old = fd.get();
  fd.Reset(NewFd());
  EXPECT_TRUE(IsOpen(fd.get()));
  EXPECT_NE(fd.get(), old);
  EXPECT_FALSE(IsOpen(old));
}

TEST(UniqueFd, ClosingKeepsErrno) {
  UniqueFd fd(NewFd());
  const int duplicate = fd.get();
  close(duplicate);  // so that the destructor's close fails with EBADF
  errno = EAGAIN;
  fd.Reset();
  EXPECT_EQ(errno, EAGAIN);
}

}  // namespace
}  // namespace rdmad
