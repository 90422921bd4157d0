#include "daemon/device/soft/udp_port_group.h"

#include <linux/filter.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/socket_address.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/soft/qpn_allocator.h"

namespace rdmad::soft {
namespace {

// RFC 863's discard would do as well: no peer has this port, and nobody sends from it.
constexpr uint16_t kNobodysPort = 1;
constexpr uint32_t kLowQpnByte = 7;  // in the BTH, which the UDP payload begins with
constexpr uint32_t kFirstIndex = 1;  // of engine 0: behind the first guard

absl::Status Failed(const char* step, const IpAddress& local, uint16_t port) {
  const int error = errno;
  return absl::UnavailableError(
      absl::StrCat("udp_port_group: ", SocketAddress{local, port}.ToString(), ": ", step, ": ",
                   std::generic_category().message(error), "; engine.count = 1 does without"));
}

bool Share(int fd, bool on) noexcept {
  const int value = on ? 1 : 0;
  return ::setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &value, sizeof(value)) == 0;
}

// Of what is sent to the socket's address, it gets only what comes from that port.
bool HearNobody(int fd, const IpAddress& local) noexcept {
  sockaddr_storage nobody;
  const socklen_t bytes = SocketAddress{local, kNobodysPort}.ToSockaddr(&nobody);
  return ::connect(fd, reinterpret_cast<const sockaddr*>(&nobody), bytes) == 0;
}

bool Steer(int fd, uint32_t engines) noexcept {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, kLowQpnByte, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, kFirstIndex),
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, kLowQpnByte),
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, QpnAllocator::kEngines - 1),
      BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, engines),  // a stranger's number may name no engine
      BPF_STMT(BPF_ALU | BPF_ADD | BPF_K, kFirstIndex),
      BPF_STMT(BPF_RET | BPF_A, 0),
  };
  const sock_fprog program = {static_cast<unsigned short>(std::size(filter)), filter};
  return ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof(program)) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<UdpPortGroup>> UdpPortGroup::Open(const IpAddress& local,
                                                                 uint16_t port,
                                                                 const UdpSocketOptions& options,
                                                                 uint32_t engines) {
  RD_CHECK(engines >= 1 && engines <= QpnAllocator::kEngines, "an engine per value of the bits");
  std::unique_ptr<UdpPortGroup> group(new UdpPortGroup());
  if (engines == 1) {
    RD_ASSIGN_OR_RETURN(std::unique_ptr<UdpPort> only, UdpPort::Open(local, port, options));
    group->ports_.push_back(std::move(only));
    return group;
  }
  const std::string where = SocketAddress{local, port}.ToString();
  constexpr UdpSocketOptions kGuardOptions = {.receive_buffer_bytes = 0, .send_buffer_bytes = 0};

  RD_ASSIGN_OR_RETURN(UniqueFd first, MakeUdpSocket(local.is_v4(), where, kGuardOptions));
  RD_RETURN_IF_ERROR(BindUdpSocket(first.get(), local, port));
  if (!HearNobody(first.get(), local)) return Failed("connect", local, port);
  if (!Share(first.get(), true)) return Failed("SO_REUSEPORT", local, port);
  group->guards_.push_back(std::move(first));

  for (uint32_t engine = 0; engine < engines; ++engine) {
    RD_ASSIGN_OR_RETURN(UniqueFd fd, MakeUdpSocket(local.is_v4(), where, options));
    if (!Share(fd.get(), true)) return Failed("SO_REUSEPORT", local, port);
    RD_RETURN_IF_ERROR(BindUdpSocket(fd.get(), local, port));
    // The group exists from its second socket on; what comes before the others are there is for
    // those that are.
    if (engine == 0 && options.steer && !Steer(fd.get(), engines)) {
      return Failed("SO_ATTACH_REUSEPORT_CBPF", local, port);
    }
    group->ports_.push_back(std::make_unique<UdpPort>(std::move(fd), local, port));
  }

  RD_ASSIGN_OR_RETURN(UniqueFd last, MakeUdpSocket(local.is_v4(), where, kGuardOptions));
  if (!Share(last.get(), true)) return Failed("SO_REUSEPORT", local, port);
  RD_RETURN_IF_ERROR(BindUdpSocket(last.get(), local, port));
  if (!HearNobody(last.get(), local)) return Failed("connect", local, port);
  group->guards_.push_back(std::move(last));

  for (const UniqueFd& guard : group->guards_) {
    if (!Share(guard.get(), false)) return Failed("SO_REUSEPORT", local, port);
  }
  return group;
}

}  // namespace rdmad::soft
