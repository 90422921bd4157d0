#include "daemon/control/attach_packet.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "daemon/base/check.h"

namespace rdmad::control {

absl::Status SendPacket(int socket, const std::string& bytes, std::span<const int> descriptors) {
  RD_CHECK(descriptors.size() <= kMaxAttachDescriptors && bytes.size() <= kMaxAttachPacketBytes);
  iovec payload{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &payload;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxAttachDescriptors * sizeof(int))] = {};
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return absl::OkStatus();
  switch (errno) {
    case EAGAIN:
    case ENOBUFS:
      return absl::ResourceExhaustedError("the client does not read its attach socket");
    case ETOOMANYREFS:
      return absl::ResourceExhaustedError(
          "too many descriptors are on their way to clients; raise the limit of "
          "open files of rdmad or let clients read their attach sockets");
    default:
      return absl::UnavailableError("the client has hung up");
  }
}

ReceiveResult ReceivePacket(int socket, std::string* bytes) {
  char buffer[kMaxAttachPacketBytes];
  iovec payload{buffer, sizeof(buffer)};
  msghdr message{};
  message.msg_iov = &payload;
  message.msg_iovlen = 1;
  ssize_t received = 0;
  do {
    received = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) return errno == EAGAIN ? ReceiveResult::kNothing : ReceiveResult::kHungUp;
  if ((message.msg_flags & MSG_CTRUNC) != 0) return ReceiveResult::kDescriptors;
  if ((message.msg_flags & MSG_TRUNC) != 0) return ReceiveResult::kTooLong;
  // The end of the stream, and an empty packet, which no client sends.
  if (received == 0) return ReceiveResult::kHungUp;
  bytes->assign(buffer, static_cast<size_t>(received));
  return ReceiveResult::kPacket;
}

}  // namespace rdmad::control
