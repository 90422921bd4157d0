// Case 27: what may change on the way changes nothing, and what may not is noticed.
#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <span>
#include <string>

#include "tests/integration/counters.h"
#include "tests/integration/pattern.h"
#include "tests/integration/testbed.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr size_t kIpv4Bytes = 20;
constexpr size_t kIpv6Bytes = 40;
constexpr size_t kUdpBytes = 8;

bool IsIpv4(std::span<const uint8_t> ip) {
  return ip[0] >> 4 == 4;
}
size_t IpBytes(std::span<const uint8_t> ip) {
  return IsIpv4(ip) ? kIpv4Bytes : kIpv6Bytes;
}

// RFC 1071.
void SetIpv4Checksum(std::span<uint8_t> ip) {
  ip[10] = ip[11] = 0;
  uint32_t sum = 0;
  for (size_t i = 0; i < kIpv4Bytes; i += 2) sum += static_cast<uint32_t>(ip[i] << 8 | ip[i + 1]);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  ip[10] = static_cast<uint8_t>(~sum >> 8);
  ip[11] = static_cast<uint8_t>(~sum);
}

void ClearUdpChecksum(std::span<uint8_t> ip) {
  const size_t at = IpBytes(ip) + 6;
  ip[at] = ip[at + 1] = 0;
}

// As a router and a switch would: hops, class and ECN change.
void ChangeMutableFields(std::span<uint8_t> ip) {
  if (IsIpv4(ip)) {
    ip[1] = 0x2a;
    ip[8] = 17;
    SetIpv4Checksum(ip);
  } else {
    ip[0] = 0x62;
    ip[1] = 0xa3;  // class and flow label
    ip[2] = 0x45;
    ip[7] = 17;
  }
}

class WireCasesTest : public TwoHostsTest, public ::testing::WithParamInterface<int> {
 protected:
  static std::string Peer() { return GetParam() == 4 ? TwoHosts::Ipv4(1) : TwoHosts::Ipv6(1); }

  // A message each way.
  void ExpectExchange(Connection& connection) {
    for (uint64_t i = 0; i < 5; ++i) {
      ASSERT_OK(connection.active.SendCopy("ping"));
      ASSERT_OK_AND_ASSIGN(Buffer request, connection.passive.Receive(absl::Seconds(10)));
      EXPECT_EQ(request.text(), "ping");
      ASSERT_OK(connection.passive.SendCopy("pong"));
      ASSERT_OK_AND_ASSIGN(Buffer answer, connection.active.Receive(absl::Seconds(10)));
      EXPECT_EQ(answer.text(), "pong");
    }
  }
};

TEST_P(WireCasesTest, HopLimitTrafficClassAndFlowLabelMayChangeOnTheWay) {
  if (!Start({.wire = true})) return;
  hosts().wire()->SetHook([](WireDirection, std::span<uint8_t> ip) {
    ChangeMutableFields(ip);
    return WireVerdict::kPass;
  });
  ASSERT_OK_AND_ASSIGN(Connection connection, ConnectApps(client(0), client(1), Peer()));
  ExpectExchange(connection);
  ASSERT_OK_AND_ASSIGN(const Counters counters, Counters::Of(Daemon(1)));
  EXPECT_EQ(counters.Get("udp_rx_drop_icrc"), 0u);
}

// The kernel's rxe sends no checksum, and a plain IPv6 socket refuses those by default.
TEST_P(WireCasesTest, APacketWithoutUdpChecksumIsTaken) {
  if (!Start({.wire = true})) return;
  hosts().wire()->SetHook([](WireDirection, std::span<uint8_t> ip) {
    ClearUdpChecksum(ip);
    return WireVerdict::kPass;
  });
  ASSERT_OK_AND_ASSIGN(Connection connection, ConnectApps(client(0), client(1), Peer()));
  ExpectExchange(connection);
}

TEST_P(WireCasesTest, AFlippedBitIsNoticedCountedAndRepaired) {
  if (!Start({.wire = true})) return;
  ASSERT_OK_AND_ASSIGN(Connection connection, ConnectApps(client(0), client(1), Peer()));
  ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(client(0), 1 << 16));
  // One bit anywhere behind the UDP header, in one packet of seven. Without a checksum only the
  // ICRC can tell.
  uint64_t packets = 0;
  uint64_t flipped = 0;
  hosts().wire()->SetHook([&](WireDirection direction, std::span<uint8_t> ip) {
    if (direction == WireDirection::kAToB && ++packets % 7 == 0) {
      const size_t begin = IpBytes(ip) + kUdpBytes;
      const uint64_t place = PatternWord(27, packets);
      ip[begin + place % (ip.size() - begin)] ^= static_cast<uint8_t>(1 << (place >> 32) % 8);
      ++flipped;
    }
    ClearUdpChecksum(ip);
    return WireVerdict::kPass;
  });
  for (uint64_t i = 0; i < 40; ++i) {
    ASSERT_OK_AND_ASSIGN(Buffer message, pool.Allocate(5000));
    FillPattern(message.bytes(), i);
    ASSERT_OK(connection.active.Send(std::move(message)));
    ASSERT_OK_AND_ASSIGN(Buffer received, connection.passive.Receive(absl::Seconds(20)));
    ASSERT_OK(connection.active.Flush(absl::Seconds(20)));
    EXPECT_EQ(received.size(), 5000u);
    EXPECT_EQ(PatternMismatch(received.bytes(), i), std::nullopt);
  }
  hosts().wire()->SetHook(nullptr);
  ASSERT_OK_AND_ASSIGN(const Counters counters, Counters::Of(Daemon(1)));
  // A bit that the ICRC does not cover (the BTH's reserved byte) may pass; a bit in the opcode may
  // be noticed by the parser first.
  EXPECT_GT(flipped, 20u);
  EXPECT_GE(counters.Get("udp_rx_drop_icrc"), flipped * 9 / 10 - 2);
}

INSTANTIATE_TEST_SUITE_P(Families, WireCasesTest, ::testing::Values(4, 6), [](const auto& test) {
  return test.param == 4 ? std::string("Ipv4") : std::string("Ipv6");
});

}  // namespace
}  // namespace rdmad::testing
