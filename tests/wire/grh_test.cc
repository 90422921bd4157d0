#include "daemon/wire/grh.h"

#include <algorithm>
#include <array>

#include "gtest/gtest.h"

namespace rdmad::wire {
namespace {

using GrhArray = std::array<uint8_t, kGrhBytes>;

// An IPv4 header out of a textbook, whose checksum is known: 172.16.10.99 to 172.16.10.12, 60
// bytes.
TEST(Grh, Ipv4HeaderLiesAtOffsetTwenty) {
  const GrhFields fields = {.source = IpAddress::FromV4(172, 16, 10, 99),
                            .destination = IpAddress::FromV4(172, 16, 10, 12),
                            .hop_limit = 64,
                            .ipv4_id = 0x1c46,
                            .udp_payload_bytes = 32};
  GrhArray grh;
  grh.fill(0xee);
  BuildReceivedGrh(fields, grh);
  const uint8_t kExpected[20] = {0x45, 0x00, 0x00, 0x3c, 0x1c, 0x46, 0x40, 0x00, 0x40, 0x11,
                                 0xb1, 0xdb, 0xac, 0x10, 0x0a, 0x63, 0xac, 0x10, 0x0a, 0x0c};
  EXPECT_TRUE(std::all_of(grh.begin(), grh.begin() + 20, [](uint8_t byte) { return byte == 0; }));
  EXPECT_TRUE(std::equal(grh.begin() + 20, grh.end(), kExpected));
}

TEST(Grh, Ipv4ChecksumIsRightForAnyFields) {
  for (int i = 0; i < 256; ++i) {
    const auto byte = static_cast<uint8_t>(i);
    GrhArray grh;
    BuildReceivedGrh({.source = IpAddress::FromV4(255, 255, byte, 255),
                      .destination = IpAddress::FromV4(239, byte, 7, 7),
                      .traffic_class = byte,
                      .hop_limit = byte,
                      .ipv4_id = static_cast<uint16_t>(i * 257),
                      .udp_payload_bytes = 4136},
                     grh);
    uint32_t sum = 0;
    for (size_t at = 20; at < 40; at += 2) sum += uint32_t{grh[at]} << 8 | grh[at + 1];
    while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
    EXPECT_EQ(sum, 0xffffu) << i;
  }
}

TEST(Grh, Ipv6HeaderIsTheGrh) {
  const GrhFields fields = {.source = *IpAddress::Parse("fd77::1"),
                            .destination = *IpAddress::Parse("ff0e::7"),
                            .traffic_class = 0xab,
                            .hop_limit = 7,
                            .flow_label = 0xfcdef1,
                            .udp_payload_bytes = 0x0100};
  GrhArray grh;
  BuildReceivedGrh(fields, grh);
  const uint8_t kExpected[8] = {0x6a, 0xbc, 0xde, 0xf1, 0x01, 0x08, 17, 7};
  EXPECT_TRUE(std::equal(kExpected, kExpected + 8, grh.begin()));
  EXPECT_TRUE(std::equal(grh.begin() + 8, grh.begin() + 24, fields.source.gid().begin()));
  EXPECT_TRUE(std::equal(grh.begin() + 24, grh.end(), fields.destination.gid().begin()));
}

}  // namespace
}  // namespace rdmad::wire
