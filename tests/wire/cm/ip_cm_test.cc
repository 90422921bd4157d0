#include "daemon/wire/cm/ip_cm.h"

#include <array>

#include "gtest/gtest.h"

namespace rdmad::wire {
namespace {

using Bytes = std::array<uint8_t, kIpCmHeaderBytes>;

TEST(IpService, IdIsPortSpaceAndPort) {
  EXPECT_EQ(IpServiceId(PortSpace::kTcp, 7174), 0x0000000001061c06u);
  EXPECT_EQ(IpServiceId(PortSpace::kUdp, 0xffff), 0x000000000111ffffu);
  EXPECT_EQ(IpServiceId(PortSpace::kIb, 1), 0x00000000013f0001u);
}

TEST(IpService, IdComesApartAgain) {
  for (const PortSpace space : {PortSpace::kTcp, PortSpace::kUdp, PortSpace::kIb}) {
    for (const uint16_t port : {0, 1, 7174, 65'535}) {
      EXPECT_EQ(ParseIpServiceId(IpServiceId(space, port)), (IpService{space, port}));
    }
  }
}

TEST(IpService, OtherIdsAreNone) {
  for (const uint64_t id : {uint64_t{0}, 0x0000000001071c06ul, 0x0000000101061c06ul,
                            0x1000000001061c06ul, 0x0000000000061c06ul}) {
    EXPECT_EQ(ParseIpServiceId(id), std::nullopt) << std::hex << id;
  }
}

TEST(IpCmHeader, Ipv4OnTheWire) {
  Bytes bytes;
  bytes.fill(0xee);
  BuildIpCmHeader({.major_version = 1,
                   .minor_version = 2,
                   .source_port = 0x98ff,
                   .source = IpAddress::FromV4(10, 77, 0, 1),
                   .destination = IpAddress::FromV4(10, 77, 0, 2)},
                  bytes);
  const Bytes kExpected = {0x12, 0x40, 0x98, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0,  10, 77,
                           0,    1,    0,    0,    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 77, 0,  2};
  EXPECT_EQ(bytes, kExpected);
}

TEST(IpCmHeader, ComesBack) {
  for (const auto& [source, destination] :
       {std::pair{"10.0.0.1", "255.255.255.255"}, std::pair{"fd77::1", "2001:db8::ffff"}}) {
    const IpCmHeader header = {.source_port = 1,
                               .source = *IpAddress::Parse(source),
                               .destination = *IpAddress::Parse(destination)};
    Bytes bytes;
    BuildIpCmHeader(header, bytes);
    EXPECT_EQ(ParseIpCmHeader(bytes), header);
  }
}

TEST(IpCmHeader, OtherIpVersionsAreNone) {
  for (int version = 0; version < 16; ++version) {
    Bytes bytes{};
    bytes[1] = static_cast<uint8_t>(version << 4 | 0x0f);  // the reserved half is not looked at
    EXPECT_EQ(ParseIpCmHeader(bytes).has_value(), version == 4 || version == 6) << version;
  }
}

}  // namespace
}  // namespace rdmad::wire
