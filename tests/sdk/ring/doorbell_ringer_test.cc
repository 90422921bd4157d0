#include "client/sdk/ring/doorbell_ringer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>

namespace rdmad::sdk {
namespace {

class DoorbellRingerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    read_fd_ = fds[0];
    write_fd_ = fds[1];
  }
  void TearDown() override {
    if (read_fd_ >= 0) close(read_fd_);
    close(write_fd_);
  }
  DoorbellRinger Ringer() { return {&control_, &page_, write_fd_}; }
  ssize_t BytesInPipe() {
    char bytes[64];
    return read(read_fd_, bytes, sizeof(bytes));
  }

  shm::ControlSegment control_{};
  shm::EnginePage page_{};
  int read_fd_ = -1;
  int write_fd_ = -1;
};

TEST_F(DoorbellRingerTest, AnEngineThatIsAwakeCostsNoSystemCall) {
  Ringer().Ring(70);
  EXPECT_EQ(control_.words[1].load(), uint64_t{1} << 6);
  EXPECT_EQ(control_.summary[0].load(), uint64_t{1} << 1);
  EXPECT_EQ(BytesInPipe(), -1);
}

TEST_F(DoorbellRingerTest, ASleepingEngineGetsAByte) {
  page_.sleeping.store(1);
  Ringer().Ring(0);
  EXPECT_EQ(BytesInPipe(), 1);
}

TEST_F(DoorbellRingerTest, AFullPipeDoesNotBlockAndErrnoStays) {
  page_.sleeping.store(1);
  ASSERT_EQ(fcntl(write_fd_, F_SETPIPE_SZ, 4096), 4096);
  errno = E2BIG;
  for (int i = 0; i < 5000; ++i) Ringer().Ring(0);
  EXPECT_EQ(errno, E2BIG);
}

TEST_F(DoorbellRingerTest, ADaemonThatIsGoneDoesNotKillTheProgram) {
  ASSERT_NE(signal(SIGPIPE, SIG_DFL), SIG_ERR);
  close(read_fd_);
  read_fd_ = -1;
  page_.sleeping.store(1);
  Ringer().Ring(0);
  sigset_t pending;
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0) << "nor does one wait for it";
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGPIPE), 0) << "the program's mask is as before";
}

}  // namespace
}  // namespace rdmad::sdk
