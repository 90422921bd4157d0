#include "daemon/control/attach_packet.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "daemon/base/unique_fd.h"
#include "tests/support/status_testing.h"

namespace rdmad::control {
namespace {

class AttachPacket : public ::testing::Test {
 protected:
  AttachPacket() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    daemon_.Reset(ends[0]);
    client_.Reset(ends[1]);
  }
  ReceiveResult Receive() { return ReceivePacket(daemon_.get(), &bytes_); }
  void ClientSends(const std::string& bytes) {
    ASSERT_EQ(send(client_.get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
  }

  UniqueFd daemon_;
  UniqueFd client_;
  std::string bytes_;
};

int OpenDescriptors() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

TEST_F(AttachPacket, PacketsArriveOneByOne) {
  ClientSends("one");
  ClientSends("two");
  EXPECT_EQ(Receive(), ReceiveResult::kPacket);
  EXPECT_EQ(bytes_, "one");
  EXPECT_EQ(Receive(), ReceiveResult::kPacket);
  EXPECT_EQ(bytes_, "two");
  EXPECT_EQ(Receive(), ReceiveResult::kNothing);
}

TEST_F(AttachPacket, LongestPacketFitsAndOneByteMoreIsTold) {
  ClientSends(std::string(kMaxAttachPacketBytes, 'x'));
  EXPECT_EQ(Receive(), ReceiveResult::kPacket);
  EXPECT_EQ(bytes_.size(), kMaxAttachPacketBytes);
  ClientSends(std::string(kMaxAttachPacketBytes + 1, 'x'));
  EXPECT_EQ(Receive(), ReceiveResult::kTooLong);
}

TEST_F(AttachPacket, HangUpIsTold) {
  client_.Reset();
  EXPECT_EQ(Receive(), ReceiveResult::kHungUp);
}

TEST_F(AttachPacket, DescriptorsOfAClientAreNotTaken) {
  const int before = OpenDescriptors();
  const std::array<int, 1> mine = {client_.get()};
  ASSERT_OK(SendPacket(client_.get(), "x", mine));
  EXPECT_EQ(Receive(), ReceiveResult::kDescriptors);
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(AttachPacket, SendsDescriptorsInOrder) {
  std::array<int, 4> numbers{};
  std::vector<UniqueFd> files;
  for (size_t i = 0; i < numbers.size(); ++i) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    files.emplace_back(ends[0]);
    const char text = static_cast<char>('a' + i);
    ASSERT_EQ(write(ends[1], &text, 1), 1);
    close(ends[1]);
    numbers[i] = ends[0];
  }
  ASSERT_OK(SendPacket(daemon_.get(), "gift", numbers));

  char buffer[16];
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
  iovec payload{buffer, sizeof(buffer)};
  msghdr message{};
  message.msg_iov = &payload;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ASSERT_EQ(recvmsg(client_.get(), &message, 0), 4);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  ASSERT_NE(header, nullptr);
  ASSERT_EQ(header->cmsg_len, CMSG_LEN(4 * sizeof(int)));
  std::array<int, 4> received{};
  std::memcpy(received.data(), CMSG_DATA(header), sizeof(received));
  std::string order;
  for (int fd : received) {
    char text = 0;
    EXPECT_EQ(read(fd, &text, 1), 1);
    order += text;
    close(fd);
  }
  EXPECT_EQ(order, "abcd");
}

TEST_F(AttachPacket, ClientThatDoesNotReadIsNotWaitedFor) {
  absl::Status status;
  for (int i = 0; i < 100'000 && status.ok(); ++i)
    status = SendPacket(daemon_.get(), std::string(1000, 'x'), {});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(AttachPacket, SendingToAClosedPeerIsUnavailable) {
  client_.Reset();
  EXPECT_EQ(SendPacket(daemon_.get(), "x", {}).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace rdmad::control
