#include "client/sdk/attach_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/sdk/poll_wait.h"
#include "client/sdk/status_errno.h"
#include "client/sdk/status_macros.h"
#include "client/sdk/version.h"

namespace rdmad::sdk {
namespace {

constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMaxMessageBytes = 64 * 1024;
constexpr size_t kAttachDescriptors = 4;
constexpr size_t kMaxDescriptors = 8;
constexpr absl::Duration kFirstRetry = absl::Milliseconds(5);
constexpr absl::Duration kLongestRetry = absl::Milliseconds(100);

// Receives one packet with its descriptors. OK with an empty message: hung up.
absl::Status ReceivePacket(int socket, std::string* message, std::vector<UniqueFd>* descriptors) {
  message->resize(kMaxMessageBytes);
  iovec data{message->data(), message->size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)];
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ssize_t received;
  do {
    received = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (received < 0 && errno == EINTR);
  if (received < 0) {
    message->clear();
    if (errno == ECONNRESET || errno == EPIPE) return absl::OkStatus();
    return ErrnoToStatus(errno, "attach socket: recvmsg");
  }
  message->resize(static_cast<size_t>(received));
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      descriptors->emplace_back(fd);
    }
  }
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    // The kernel drops descriptors that do not fit into the process's limit.
    return absl::ResourceExhaustedError(
        "attach socket: a message or its descriptors were cut off; is the limit of open files (ulimit -n) reached?");
  }
  return absl::OkStatus();
}

std::string HelpWithoutDaemon(const std::string& run_dir) {
  return absl::StrCat("start one with `rdmad --run-dir ", run_dir,
                      "`, or say where it runs with --run-dir or RDMAD_RUN_DIR");
}

// One attempt to connect. Unavailable: nobody there (yet).
absl::StatusOr<UniqueFd> TryConnect(const std::string& path, const sockaddr_un& address) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoToStatus(errno, "attach: socket");
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
  switch (errno) {
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED:  // a socket without a daemon behind it
    case EAGAIN:        // its queue of newcomers is full
    case EINTR:
      return absl::UnavailableError(strerror(errno));
    case EACCES:
    case EPERM:
      return StatusWithErrno(
          absl::StatusCode::kPermissionDenied, errno,
          absl::StrCat("attach: socket=", path, ": ", strerror(errno),
                       "; this user may not use the daemon: join the group of the socket (`ls -l ", path, "`)"));
    case EPROTOTYPE:
      return absl::FailedPreconditionError(absl::StrCat("attach: socket=", path, ": not a socket of rdmad"));
    default:
      return ErrnoToStatus(errno, absl::StrCat("attach: socket=", path));
  }
}

absl::StatusOr<UniqueFd> ConnectUntil(const std::string& run_dir, Deadline deadline) {
  const std::string path = run_dir + "/attach.sock";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("attach: socket path is too long: bytes=", path.size(), " limit=",
                                                   sizeof(address.sun_path) - 1, " path=", path));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const absl::Time started = absl::Now();
  for (absl::Duration pause = kFirstRetry;; pause = std::min(pause * 2, kLongestRetry)) {
    absl::StatusOr<UniqueFd> fd = TryConnect(path, address);
    if (fd.ok() || !absl::IsUnavailable(fd.status())) return fd;
    if (deadline.Passed()) {
      return absl::UnavailableError(absl::StrCat(
          "attach: no rdmad at ", path, ": ", std::string(fd.status().message()), " (waited ",
          absl::FormatDuration(absl::Trunc(absl::Now() - started, absl::Milliseconds(1))), "); ", HelpWithoutDaemon(run_dir)));
    }
    absl::SleepFor(std::min(pause, deadline.Left()));
  }
}

absl::Status CheckName(const std::string& name) {
  if (name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("attach: name is too long: bytes=", name.size(), " limit=", kMaxNameBytes));
  }
  const bool printable = std::all_of(name.begin(), name.end(), [](unsigned char c) { return c >= 0x20 && c != 0x7f; });
  if (!printable) return absl::InvalidArgumentError("attach: name contains control characters");
  return absl::OkStatus();
}

absl::Status WaitForPacket(int socket, Deadline deadline, const std::string& what) {
  switch (WaitReadable(socket, deadline)) {
    case WaitResult::kReadable:
      return absl::OkStatus();
    case WaitResult::kTimeout:
      return absl::DeadlineExceededError(what);
    case WaitResult::kError:
      break;
  }
  return ErrnoToStatus(errno, "attach socket: poll");
}

}  // namespace

std::string ResolveRunDir(const std::string& run_dir) {
  if (!run_dir.empty()) return run_dir;
  if (const char* chosen = std::getenv("RDMAD_RUN_DIR"); chosen != nullptr && *chosen != '\0') return chosen;
  if (const char* user = std::getenv("XDG_RUNTIME_DIR"); user != nullptr && *user != '\0') {
    const std::string own = std::string(user) + "/rdmad";
    if (::access((own + "/attach.sock").c_str(), F_OK) == 0) return own;
  }
  return "/run/rdmad";
}

absl::StatusOr<Attachment> AttachToDaemon(const std::string& run_dir, const std::string& name, Deadline deadline) {
  SDK_RETURN_IF_ERROR(CheckName(name));
  Attachment attachment;
  SDK_ASSIGN_OR_RETURN(attachment.socket, ConnectUntil(run_dir, deadline));
  const int socket = attachment.socket.get();

  v1::AttachRequest request;
  request.set_protocol_version(v1::PROTOCOL_VERSION_CURRENT);
  request.set_client_name(name);
  request.set_client_version(kVersion);
  const std::string bytes = request.SerializeAsString();
  if (::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) {
    return ErrnoToStatus(errno, absl::StrCat("attach: socket=", run_dir, "/attach.sock: send"));
  }
  // Somebody who accepted will answer; even a caller in a hurry gives it a moment.
  const Deadline answer_by = std::max(deadline, Deadline::After(absl::Seconds(1)));
  SDK_RETURN_IF_ERROR(WaitForPacket(
      socket, answer_by, absl::StrCat("attach: socket=", run_dir, "/attach.sock: rdmad does not answer; is it stopped?")));
  std::string packet;
  std::vector<UniqueFd> descriptors;
  SDK_RETURN_IF_ERROR(ReceivePacket(socket, &packet, &descriptors));
  if (packet.empty()) {
    return absl::UnavailableError(absl::StrCat("attach: socket=", run_dir, "/attach.sock: rdmad hung up"));
  }
  v1::AttachReply& reply = attachment.reply;
  if (!reply.ParseFromString(packet)) {
    return absl::FailedPreconditionError(
        absl::StrCat("attach: socket=", run_dir, "/attach.sock: the answer is not one of rdmad"));
  }
  if (reply.code() != 0) {
    return absl::Status(static_cast<absl::StatusCode>(reply.code()), absl::StrCat("attach: refused: ", reply.message()));
  }
  if (descriptors.size() != kAttachDescriptors) {
    return absl::InternalError(
        absl::StrCat("attach: descriptors=", descriptors.size(), " expected=", kAttachDescriptors));
  }
  attachment.control_segment = std::move(descriptors[0]);
  attachment.engine_page = std::move(descriptors[1]);
  attachment.wake_pipe = std::move(descriptors[2]);
  attachment.async_channel = std::move(descriptors[3]);
  return attachment;
}

absl::Status AttachSocket::ReadDelivery(Deadline deadline) {
  SDK_RETURN_IF_ERROR(WaitForPacket(fd_.get(), deadline, "attach socket: the descriptor did not come"));
  std::string packet;
  std::vector<UniqueFd> descriptors;
  SDK_RETURN_IF_ERROR(ReceivePacket(fd_.get(), &packet, &descriptors));
  if (packet.empty()) return absl::UnavailableError("attach socket: rdmad hung up");
  v1::DescriptorDelivery delivery;
  if (!delivery.ParseFromString(packet) || descriptors.size() != 1) {
    return absl::InternalError(absl::StrCat("attach socket: bad delivery: bytes=", packet.size(),
                                            " descriptors=", descriptors.size()));
  }
  waiting_.insert_or_assign(delivery.tag(), Delivery{delivery.kind(), std::move(descriptors[0])});
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> AttachSocket::TakeDescriptor(uint64_t tag, v1::DescriptorKind kind, Deadline deadline) {
  const std::lock_guard lock(mutex_);
  auto found = waiting_.find(tag);
  while (found == waiting_.end()) {
    SDK_RETURN_IF_ERROR(ReadDelivery(deadline));
    found = waiting_.find(tag);
  }
  Delivery delivery = std::move(found->second);
  waiting_.erase(found);
  if (delivery.kind != kind) {
    return absl::InternalError(absl::StrCat("attach socket: descriptor tag=", tag, " kind=", delivery.kind,
                                            " expected=", kind));
  }
  return std::move(delivery.fd);
}

bool AttachSocket::HungUp() const noexcept {
  pollfd poll_fd{fd_.get(), POLLRDHUP, 0};
  return ::poll(&poll_fd, 1, 0) > 0 && (poll_fd.revents & (POLLHUP | POLLRDHUP | POLLERR | POLLNVAL)) != 0;
}

}  // namespace rdmad::sdk
