#include "tests/vm/peer_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/vm/rxe_bed.h"

namespace rdmad::testing {

PeerSocket::PeerSocket(UniqueFd fd) : fd_(std::move(fd)) {
  const timeval patience{.tv_sec = absl::ToInt64Seconds(kPatience), .tv_usec = 0};
  ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
}

absl::StatusOr<UniqueFd> PeerSocket::Listen(int port) {
  const InPeer peer;
  UniqueFd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(static_cast<uint16_t>(port));
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 || ::listen(fd.get(), 1) != 0) {
    return absl::ErrnoToStatus(errno, "peer socket: listen");
  }
  return fd;
}

absl::StatusOr<PeerSocket> PeerSocket::Accept(const UniqueFd& listener) {
  pollfd ready{listener.get(), POLLIN, 0};
  if (::poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) != 1) {
    return absl::DeadlineExceededError("the kernel's program does not connect");
  }
  UniqueFd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "peer socket: accept");
  return PeerSocket(std::move(fd));
}

absl::StatusOr<PeerSocket> PeerSocket::Connect(const std::string& address, int port) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* info = nullptr;
  if (::getaddrinfo(address.c_str(), absl::StrCat(port).c_str(), &hints, &info) != 0) {
    return absl::InvalidArgumentError(address);
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(info, &::freeaddrinfo);
  const absl::Time deadline = absl::Now() + kPatience;
  while (true) {
    UniqueFd fd;
    {
      const InPeer peer;
      fd = UniqueFd(::socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    }
    if (::connect(fd.get(), info->ai_addr, info->ai_addrlen) == 0) return PeerSocket(std::move(fd));
    if (absl::Now() > deadline) return absl::ErrnoToStatus(errno, "peer socket: connect");
    absl::SleepFor(absl::Milliseconds(100));
  }
}

absl::Status PeerSocket::Send(const std::string& bytes) {
  if (::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size())) {
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(errno, "peer socket: send");
}

absl::StatusOr<std::string> PeerSocket::Receive(size_t bytes) {
  std::string out(bytes, '\0');
  const ssize_t got = ::recv(fd_.get(), out.data(), bytes, MSG_WAITALL);
  if (got == static_cast<ssize_t>(bytes)) return out;
  if (got >= 0) return absl::UnavailableError("the kernel's program hangs up");
  return absl::ErrnoToStatus(errno, "peer socket: recv");
}

absl::StatusOr<std::string> PeerSocket::Peek(size_t bytes) {
  std::string out(bytes, '\0');
  const ssize_t got = ::recv(fd_.get(), out.data(), bytes, MSG_PEEK);
  if (got < 0) return absl::ErrnoToStatus(errno, "peer socket: peek");
  out.resize(static_cast<size_t>(got));
  return out;
}

bool PeerSocket::IsReadable() const {
  pollfd ready{fd_.get(), POLLIN, 0};
  return ::poll(&ready, 1, 0) == 1;
}

}  // namespace rdmad::testing
