#include "tests/vm/sniffer.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>

#include <span>

#include "absl/time/clock.h"

namespace rdmad::testing {
namespace {

constexpr char kInterface[] = "vA";
constexpr uint16_t kRocePort = 4791;
constexpr uint8_t kUdp = 17;
constexpr size_t kUdpBytes = 8;
constexpr size_t kBthBytes = 12;
// Where a MAD stands in a datagram: behind BTH and DETH. Source: IBTA vol. 1, Datagram Extended Transport Header.
constexpr size_t kMadAt = 20;
// Of its header: the class, CM, and the attribute, REJ; and behind the header, two ids and a byte each of what is rejected and of
// the length of additional information. Source: IBTA vol. 1, MAD base format; REJ.
constexpr size_t kClassAt = kMadAt + 1;
constexpr uint8_t kCmClass = 7;
constexpr size_t kAttributeAt = kMadAt + 16;
constexpr uint16_t kRej = 0x12;
constexpr size_t kReasonAt = kMadAt + 24 + 10;
constexpr uint8_t kUdSendOnly = 0x64;

uint16_t Get16(std::span<const uint8_t> bytes, size_t at) { return static_cast<uint16_t>(bytes[at] << 8 | bytes[at + 1]); }

std::optional<SeenPacket> Parse(std::span<const uint8_t> ip) {
  SeenPacket out;
  size_t header = 0;
  uint8_t protocol = 0;
  if (ip.size() > 40 && ip[0] >> 4 == 6) {
    header = 40;
    protocol = ip[6];
    out.traffic_class = static_cast<uint8_t>((ip[0] & 0xf) << 4 | ip[1] >> 4);
    out.flow_label = static_cast<uint32_t>((ip[1] & 0xf) << 16 | ip[2] << 8 | ip[3]);
    out.hop_limit = ip[7];
  } else if (ip.size() > 20 && ip[0] >> 4 == 4) {
    header = size_t{4} * (ip[0] & 0xf);
    protocol = ip[9];
    out.traffic_class = ip[1];
    out.hop_limit = ip[8];
  }
  out.traffic_class &= 0xfc;
  if (protocol != kUdp || ip.size() < header + kUdpBytes + kBthBytes) return std::nullopt;
  if (Get16(ip, header + 2) != kRocePort) return std::nullopt;
  out.roce.assign(ip.begin() + static_cast<ptrdiff_t>(header + kUdpBytes), ip.end());
  return out;
}

}  // namespace

std::optional<int> SeenPacket::RejReason() const {
  if (opcode() != kUdSendOnly || roce.size() < kReasonAt + 2 || roce[kClassAt] != kCmClass ||
      Get16(roce, kAttributeAt) != kRej) {
    return std::nullopt;
  }
  return Get16(roce, kReasonAt);
}

Sniffer::Sniffer() : fd_(::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  sockaddr_ll address = {};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);  // also what goes out
  address.sll_ifindex = static_cast<int>(::if_nametoindex(kInterface));
  EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
}

std::optional<SeenPacket> Sniffer::WaitFor(const std::function<bool(const SeenPacket&)>& wanted,
                                           absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  for (absl::Duration left = patience; left > absl::ZeroDuration(); left = deadline - absl::Now()) {
    pollfd ready{fd_.get(), POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(left))) != 1) break;
    std::vector<uint8_t> bytes(16384);
    sockaddr_ll from = {};
    socklen_t length = sizeof(from);
    const ssize_t got = ::recvfrom(fd_.get(), bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&from), &length);
    if (got <= 0) continue;
    std::optional<SeenPacket> packet = Parse(std::span(bytes).first(static_cast<size_t>(got)));
    if (!packet.has_value()) continue;
    packet->from_kernel = from.sll_pkttype == PACKET_OUTGOING;
    if (wanted(*packet)) return packet;
  }
  return std::nullopt;
}

}  // namespace rdmad::testing
