#include "tests/support/packet_socket.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rdmad::testing {
namespace {

constexpr int kBufferBytes = 64 << 20;
constexpr size_t kEthernetBytes = 14;
constexpr uint16_t kRocePort = 4791;

uint16_t Be16(std::span<const uint8_t> bytes, size_t at) {
  return static_cast<uint16_t>(bytes[at] << 8 | bytes[at + 1]);
}

absl::StatusOr<UniqueFd> Open(const std::string& interface, bool outgoing) {
  UniqueFd fd(::socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return absl::ErrnoToStatus(errno, "needs packet sockets: socket");
  const int bytes = kBufferBytes;
  if (::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes)) != 0) {
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
  }
  const int ignore_outgoing = outgoing ? 0 : 1;
  if (::setsockopt(fd.get(), SOL_PACKET, PACKET_IGNORE_OUTGOING, &ignore_outgoing,
                   sizeof(ignore_outgoing)) != 0) {
    return absl::ErrnoToStatus(errno, "PACKET_IGNORE_OUTGOING");
  }
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(::if_nametoindex(interface.c_str()));
  if (address.sll_ifindex == 0) return absl::NotFoundError("no interface " + interface);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("bind a packet socket to ", interface));
  }
  return fd;
}

}  // namespace

absl::StatusOr<UniqueFd> OpenPacketSocket(const NetNamespace& network, const std::string& interface,
                                          bool outgoing) {
  absl::StatusOr<UniqueFd> result = absl::InternalError("cannot enter the network namespace");
  network.Call([&] { result = Open(interface, outgoing); });
  return result;
}

ssize_t ReceiveFrame(int fd, std::span<uint8_t> buffer) noexcept {
  const ssize_t bytes = ::recv(fd, buffer.data(), buffer.size(), 0);
  return bytes < 0 ? 0 : bytes;
}

uint32_t TakeDropCount(int fd) noexcept {
  tpacket_stats stats{};
  socklen_t size = sizeof(stats);
  if (::getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &stats, &size) != 0) return 0;
  return stats.tp_drops;
}

bool IsRoceFrame(std::span<const uint8_t> frame) noexcept {
  if (frame.size() < kEthernetBytes) return false;
  const std::span<const uint8_t> ip = frame.subspan(kEthernetBytes);
  switch (Be16(frame, 12)) {
    case ETH_P_IP:
      return ip.size() >= 28 && ip[0] == 0x45 && ip[9] == IPPROTO_UDP && Be16(ip, 22) == kRocePort;
    case ETH_P_IPV6:
      return ip.size() >= 48 && ip[6] == IPPROTO_UDP && Be16(ip, 42) == kRocePort;
    default:
      return false;
  }
}

}  // namespace rdmad::testing
