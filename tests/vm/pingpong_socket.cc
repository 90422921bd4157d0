#include "tests/vm/pingpong_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/base/status_macros.h"
#include "tests/vm/rxe_bed.h"

namespace rdmad::testing {
namespace {

// "LID:QPN:PSN:GID" with its terminator.
constexpr size_t kTextBytes = 52;
const std::string kDone("done", 5);

absl::StatusOr<QpAddress> Decode(const std::string& text) {
  QpAddress out;
  unsigned lid = 0;
  char gid[33] = {};
  if (std::sscanf(text.c_str(), "%x:%x:%x:%32s", &lid, &out.qpn, &out.psn, gid) != 4) {
    return absl::InvalidArgumentError(absl::StrCat("a pingpong does not say \"", text.c_str(), "\""));
  }
  for (size_t i = 0; i < out.gid.size(); ++i) {
    unsigned byte = 0;
    std::sscanf(gid + 2 * i, "%2x", &byte);
    out.gid[i] = static_cast<uint8_t>(byte);
  }
  return out;
}

std::string Encode(const QpAddress& address) {
  std::string text = absl::StrFormat("0000:%06x:%06x:", address.qpn, address.psn);
  for (const uint8_t byte : address.gid) absl::StrAppendFormat(&text, "%02x", byte);
  text.push_back('\0');
  return text;
}

}  // namespace

PingpongSocket::PingpongSocket(UniqueFd fd) : fd_(std::move(fd)) {
  const timeval patience{.tv_sec = absl::ToInt64Seconds(kPatience), .tv_usec = 0};
  ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
}

absl::StatusOr<UniqueFd> PingpongSocket::Listen(int port) {
  const InPeer peer;
  UniqueFd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(static_cast<uint16_t>(port));
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 || ::listen(fd.get(), 1) != 0) {
    return absl::ErrnoToStatus(errno, "pingpong: listen");
  }
  return fd;
}

absl::StatusOr<PingpongSocket> PingpongSocket::Accept(const UniqueFd& listener) {
  pollfd ready{listener.get(), POLLIN, 0};
  if (::poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) != 1) {
    return absl::DeadlineExceededError("the pingpong does not connect");
  }
  UniqueFd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "pingpong: accept");
  return PingpongSocket(std::move(fd));
}

absl::StatusOr<PingpongSocket> PingpongSocket::Connect(const std::string& address, int port) {
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
    if (::connect(fd.get(), info->ai_addr, info->ai_addrlen) == 0) return PingpongSocket(std::move(fd));
    if (absl::Now() > deadline) return absl::ErrnoToStatus(errno, "pingpong: connect");
    absl::SleepFor(absl::Milliseconds(100));
  }
}

absl::Status PingpongSocket::SendAll(const std::string& bytes) {
  if (::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size())) {
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(errno, "pingpong: send");
}

absl::StatusOr<std::string> PingpongSocket::ReceiveAll(size_t bytes) {
  std::string out(bytes, '\0');
  if (::recv(fd_.get(), out.data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes)) return out;
  return absl::ErrnoToStatus(errno, "pingpong: recv");
}

absl::Status PingpongSocket::Send(const std::vector<QpAddress>& ours) {
  for (const QpAddress& address : ours) {
    RD_RETURN_IF_ERROR(SendAll(Encode(address)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<QpAddress>> PingpongSocket::Receive(size_t count) {
  std::vector<QpAddress> out;
  for (size_t i = 0; i < count; ++i) {
    RD_ASSIGN_OR_RETURN(const std::string text, ReceiveAll(kTextBytes));
    RD_ASSIGN_OR_RETURN(out.emplace_back(), Decode(text));
  }
  return out;
}

absl::Status PingpongSocket::SendDone() { return SendAll(kDone); }

absl::Status PingpongSocket::ReceiveDone() {
  RD_ASSIGN_OR_RETURN(const std::string text, ReceiveAll(kDone.size()));
  return text == kDone ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrCat("not \"done\" but \"", text, "\""));
}

}  // namespace rdmad::testing
