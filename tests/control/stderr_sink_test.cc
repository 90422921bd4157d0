// A log that nobody reads: nothing waits for it, and what it lost is told.
#include "daemon/control/stderr_sink.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <memory>
#include <string>
#include <utility>

#include "daemon/base/unique_fd.h"
#include "spdlog/logger.h"
#include "spdlog/pattern_formatter.h"

namespace rdmad::control {
namespace {

struct Ends {
  UniqueFd read;
  UniqueFd write;
};

Ends Pipe() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

Ends StreamSocket() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

spdlog::logger LoggerTo(const UniqueFd& fd) {
  auto sink = std::make_shared<StderrSink>(fd.get());
  sink->set_formatter(std::make_unique<spdlog::pattern_formatter>("%v"));
  return spdlog::logger("test", sink);
}

// What is there now.
std::string ReadAll(const UniqueFd& fd) {
  EXPECT_EQ(fcntl(fd.get(), F_SETFL, O_NONBLOCK), 0);
  std::string all;
  std::array<char, 65536> bytes{};
  for (ssize_t count; (count = read(fd.get(), bytes.data(), bytes.size())) > 0;)
    all.append(bytes.data(), static_cast<size_t>(count));
  return all;
}

class StderrSinkTest : public ::testing::TestWithParam<Ends (*)()> {};

TEST_P(StderrSinkTest, WritesLines) {
  const Ends ends = GetParam()();
  spdlog::logger logger = LoggerTo(ends.write);
  logger.info("one");
  logger.info("two");
  EXPECT_EQ(ReadAll(ends.read), "one\ntwo\n");
}

TEST_P(StderrSinkTest, NobodyWhoReadsIsWaitedForAndTheLossIsTold) {
  const Ends ends = GetParam()();
  spdlog::logger logger = LoggerTo(ends.write);
  const std::string line(999, 'x');
  constexpr size_t kLines = 5000;  // more than a pipe or a socket holds
  for (size_t i = 0; i < kLines; ++i) logger.info(line);
  std::string text = ReadAll(ends.read);
  const size_t before = text.size() / 1000;
  logger.info("after");
  text += ReadAll(ends.read);
  // Whole lines, and then how many are missing.
  const size_t notice = text.find_first_not_of("x\n");
  ASSERT_NE(notice, std::string::npos);
  const size_t whole = notice / 1000;
  EXPECT_EQ(notice % 1000, 0u) << "a line that was taken in part is finished";
  EXPECT_GE(whole, before);
  EXPECT_EQ(text.substr(notice), std::to_string(kLines - whole) +
                                     " lines of this log were lost: nobody read it\nafter\n");
}

TEST_P(StderrSinkTest, AReaderWhoHasGoneIsNobodysTrouble) {
  Ends ends = GetParam()();
  spdlog::logger logger = LoggerTo(ends.write);
  signal(SIGPIPE, SIG_IGN);  // as in rdmad
  ends.read.Reset();
  for (int i = 0; i < 100; ++i) logger.info("to nobody");
}

TEST(StderrSink, ATerminalThatNobodyReadsIsNotWaitedFor) {
  const UniqueFd terminal(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(terminal && grantpt(terminal.get()) == 0 && unlockpt(terminal.get()) == 0);
  const UniqueFd line(open(ptsname(terminal.get()), O_WRONLY | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(line);
  spdlog::logger logger = LoggerTo(line);
  for (int i = 0; i < 5000; ++i) logger.info(std::string(301, 'x'));
}

INSTANTIATE_TEST_SUITE_P(To, StderrSinkTest, ::testing::Values(&Pipe, &StreamSocket));

}  // namespace
}  // namespace rdmad::control
