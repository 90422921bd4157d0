#include "daemon/wire/icrc.h"

#include <array>
#include <random>
#include <vector>

#include "daemon/wire/packet.h"
#include "gtest/gtest.h"
#include "tests/support/icrc_reference.h"

namespace rdmad::wire {
namespace {

const IpAddress kSource = IpAddress::FromV4(10, 77, 0, 1);
const IpAddress kDestination = IpAddress::FromV4(10, 77, 0, 2);

// A packet of the given size, ICRC left out, of random bytes.
std::vector<uint8_t> RandomInput(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> input(bytes);
  for (uint8_t& byte : input) byte = static_cast<uint8_t>(random());
  return input;
}

// IP headers of a packet from kSource, or fd77::1, with id 0 and DF; what is masked has odd values.
std::vector<uint8_t> Ipv4Header(size_t icrc_input_bytes) {
  const size_t total = 20 + 8 + icrc_input_bytes + 4;
  return {0x45,
          0x13,
          static_cast<uint8_t>(total >> 8),
          static_cast<uint8_t>(total),
          0,
          0,
          0x40,
          0,
          99,
          17,
          0xab,
          0xcd,
          10,
          77,
          0,
          1,
          10,
          77,
          0,
          2};
}
std::vector<uint8_t> Ipv6Header(size_t icrc_input_bytes) {
  const size_t length = 8 + icrc_input_bytes + 4;
  std::vector<uint8_t> ip = {
      0x61, 0x23, 0x45, 0x67, static_cast<uint8_t>(length >> 8), static_cast<uint8_t>(length),
      17,   99};
  for (const uint8_t last : {uint8_t{1}, uint8_t{2}}) {
    Gid gid = {0xfd, 0x77};
    gid[15] = last;
    ip.insert(ip.end(), gid.begin(), gid.end());
  }
  return ip;
}

TEST(Icrc, ChecksumIsTheOneOfEthernet) {
  const std::array<uint8_t, 9> kDigits = {'1', '2', '3', '4', '5', '6', '7', '8', '9'};
  EXPECT_EQ(IcrcUpdate(0, kDigits), 0xcbf43926u);
}

TEST(Icrc, AgreesWithTheReferenceAtEverySize) {
  const IcrcFlow v4(kSource, kDestination, 49152, 4791);
  const IcrcFlow v6(*IpAddress::Parse("fd77::1"), *IpAddress::Parse("fd77::2"), 49152, 4791);
  for (size_t bytes = 12; bytes < 300; ++bytes) {
    const std::vector<uint8_t> input = RandomInput(bytes, static_cast<uint32_t>(bytes));
    EXPECT_EQ(v4.Compute(input), testing::ReferenceIcrc(Ipv4Header(bytes), 49152, 4791, input));
    EXPECT_EQ(v6.Compute(input), testing::ReferenceIcrc(Ipv6Header(bytes), 49152, 4791, input));
  }
  for (const size_t bytes : {4096u, 4136u, 8192u, 65'000u}) {
    const std::vector<uint8_t> input = RandomInput(bytes, 7);
    EXPECT_EQ(v4.Compute(input), testing::ReferenceIcrc(Ipv4Header(bytes), 49152, 4791, input));
  }
}

TEST(Icrc, PiecesMayBeCutAnywhere) {
  const IcrcFlow flow(kSource, kDestination, 4791, 4791);
  const std::vector<uint8_t> input = RandomInput(200, 3);
  const std::span<const uint8_t> bytes = input;
  const uint32_t whole = flow.Compute(input);
  for (size_t first = 12; first <= bytes.size(); ++first) {
    for (size_t second = first; second <= bytes.size(); second += 7) {
      uint32_t crc = flow.Begin(bytes.size() + 4, bytes.first(first));
      crc = IcrcUpdate(crc, bytes.subspan(first, second - first));
      crc = IcrcUpdate(crc, bytes.subspan(second));
      ASSERT_EQ(crc, whole) << first << " " << second;
    }
  }
}

TEST(Icrc, CongestionBitsAreMasked) {
  const IcrcFlow flow(kSource, kDestination, 4791, 4791);
  std::vector<uint8_t> input = RandomInput(60, 4);
  const uint32_t crc = flow.Compute(input);
  input[4] ^= 0xff;
  EXPECT_EQ(flow.Compute(input), crc);
  input[3] ^= 0x01;
  EXPECT_NE(flow.Compute(input), crc);
}

TEST(Icrc, CoversAddressesAndPorts) {
  const std::vector<uint8_t> input = RandomInput(60, 5);
  const uint32_t crc = IcrcFlow(kSource, kDestination, 1000, 4791).Compute(input);
  EXPECT_NE(IcrcFlow(kDestination, kSource, 1000, 4791).Compute(input), crc);
  EXPECT_NE(IcrcFlow(kSource, kDestination, 1001, 4791).Compute(input), crc);
  EXPECT_NE(IcrcFlow(kSource, kDestination, 1000, 4790).Compute(input), crc);
}

TEST(Icrc, ScopeOfALinkLocalAddressIsNotOnTheWire) {
  const std::vector<uint8_t> input = RandomInput(60, 6);
  const IpAddress peer = *IpAddress::Parse("fe80::2");
  const IpAddress local = *IpAddress::Parse("fe80::1");
  EXPECT_EQ(IcrcFlow(local.WithScope(3), peer.WithScope(3), 1, 4791).Compute(input),
            IcrcFlow(local, peer, 1, 4791).Compute(input));
}

TEST(Icrc, IsStoredLeastSignificantByteFirst) {
  std::array<uint8_t, 4> out;
  StoreIcrc(0x01020304, out);
  EXPECT_EQ(out, (std::array<uint8_t, 4>{4, 3, 2, 1}));
  EXPECT_EQ(LoadIcrc(out), 0x01020304u);
}

}  // namespace
}  // namespace rdmad::wire
