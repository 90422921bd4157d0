#include "daemon/wire/cm/cm_packet.h"

#include <array>

#include "gtest/gtest.h"

namespace rdmad::wire {
namespace {

const IcrcFlow kFlow(IpAddress::FromV4(10, 0, 0, 1), IpAddress::FromV4(10, 0, 0, 2), 4791, 4791);

std::array<uint8_t, kCmPacketBytes> Build() {
  std::array<uint8_t, kMadBytes> mad;
  mad.fill(0x5a);
  std::array<uint8_t, kCmPacketBytes> packet;
  BuildCmPacket(kFlow, Psn(0x010203), mad, packet);
  return packet;
}

bool IsCm(const std::array<uint8_t, kCmPacketBytes>& packet) {
  PacketView view;
  return ParsePacket(packet, &view) == DropReason::kNone && IsCmPacket(view);
}

TEST(CmPacket, GoesFromQpOneToQpOne) {
  const auto packet = Build();
  const uint8_t kHeaders[20] = {0x64, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 1,
                                2,    3, 0x80, 1,    0, 0, 0, 0, 0, 1};
  EXPECT_TRUE(std::equal(kHeaders, kHeaders + 20, packet.begin()));
  EXPECT_EQ(packet[20], 0x5a);
  EXPECT_EQ(packet[275], 0x5a);
  EXPECT_TRUE(IsCm(packet));
}

TEST(CmPacket, OtherPacketsAreNot) {
  const struct {
    size_t offset;
    uint8_t value;
  } kCases[] = {
      {0, 0x04},  // RC
      {0, 0x65},  // with immediate
      {7, 2},     // QP 2
      {12, 0},    // another Q_Key
      {1, 0x10},  // 255 bytes
  };
  for (const auto& c : kCases) {
    auto packet = Build();
    packet[c.offset] = c.value;
    EXPECT_FALSE(IsCm(packet)) << c.offset;
  }
}

}  // namespace
}  // namespace rdmad::wire
