#include "daemon/base/ip_address.h"

#include <net/if.h>

#include <string>
#include <unordered_set>

#include "absl/hash/hash_testing.h"
#include "gtest/gtest.h"

namespace rdmad {
namespace {

IpAddress Ip(const std::string& text) {
  absl::StatusOr<IpAddress> address = IpAddress::Parse(text);
  EXPECT_TRUE(address.ok()) << address.status().ToString();
  return address.value_or(IpAddress());
}

TEST(IpAddress, DefaultIsTheEmptyGid) {
  const IpAddress address;
  EXPECT_TRUE(address.is_any());
  EXPECT_TRUE(address.is_v6());
  EXPECT_EQ(address.gid(), Gid{});
}

TEST(IpAddress, ParsesAndFormats) {
  const struct {
    const char* text;
    const char* formatted;
    bool v4;
  } kCases[] = {
      {"0.0.0.0", "0.0.0.0", true},
      {"127.0.0.1", "127.0.0.1", true},
      {"255.255.255.255", "255.255.255.255", true},
      {"::", "::", false},
      {"::1", "::1", false},
      {"FD77::0001", "fd77::1", false},
      {"2001:db8:0:0:1::2", "2001:db8::1:0:0:2", false},
      {"::ffff:10.77.0.1", "10.77.0.1", true},
      {"::ffff:a4d:1", "10.77.0.1", true},
      {"fe80::1%7", "fe80::1%7", false},
      {"ff02::1%2", "ff02::1%2", false},
  };
  for (const auto& c : kCases) {
    const IpAddress address = Ip(c.text);
    EXPECT_EQ(address.ToString(), c.formatted);
    EXPECT_EQ(address.is_v4(), c.v4) << c.text;
  }
}

TEST(IpAddress, RefusesWhatIsNoAddress) {
  const std::string kCases[] = {"",
                                " ",
                                "1.2.3",
                                "1.2.3.4.5",
                                "256.1.1.1",
                                "1.2.3.4:80",
                                "[::1]",
                                ":::",
                                "::1%1",
                                "1.2.3.4%1",
                                "fe80::1%",
                                "fe80::1%no-such-if",
                                "localhost",
                                " 127.0.0.1",
                                "127.0.0.1 ",
                                "fe80::1%0",
                                "fe80::1%99999999999",
                                std::string("::1\0x", 5),
                                std::string("1.2.3.4\0", 8),
                                std::string("fe80::1%1\0", 10)};
  for (const std::string& text : kCases) {
    const absl::StatusOr<IpAddress> address = IpAddress::Parse(text);
    EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(IpAddress, ScopeMayBeAnInterfaceName) {
  const uint32_t lo = if_nametoindex("lo");
  if (lo == 0) GTEST_SKIP() << "no interface lo here";
  EXPECT_EQ(Ip("fe80::1%lo").scope_id(), lo);
}

TEST(IpAddress, GidOfV4IsMapped) {
  const Gid kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 2};
  EXPECT_EQ(IpAddress::FromV4(0x0a4d0002).gid(), kMapped);
  EXPECT_EQ(IpAddress::FromGid(kMapped), IpAddress::FromV4(10, 77, 0, 2));
  EXPECT_EQ(IpAddress::FromGid(kMapped).v4(), 0x0a4d0002u);
}

TEST(IpAddress, NearlyMappedIsV6) {
  EXPECT_TRUE(Ip("::fffe:10.77.0.2").is_v6());
  EXPECT_TRUE(Ip("::1:ffff:10.77.0.2").is_v6());
  EXPECT_EQ(Ip("::1").v4(), 0u);
}

TEST(IpAddress, Classes) {
  const struct {
    const char* text;
    bool any, loopback, multicast, link_local;
  } kCases[] = {
      {"0.0.0.0", true, false, false, false},
      {"::", true, false, false, false},
      {"127.9.9.9", false, true, false, false},
      {"128.0.0.1", false, false, false, false},
      {"::1", false, true, false, false},
      {"::2", false, false, false, false},
      {"223.255.255.255", false, false, false, false},
      {"224.0.0.1", false, false, true, false},
      {"239.7.7.7", false, false, true, false},
      {"240.0.0.1", false, false, false, false},
      {"fe80::1", false, false, false, true},
      {"febf::1", false, false, false, true},
      {"fec0::1", false, false, false, false},
      {"ff02::1", false, false, true, true},
      {"ff05::1", false, false, true, false},
      {"169.254.1.1", false, false, false, false},
  };
  for (const auto& c : kCases) {
    const IpAddress address = Ip(c.text);
    EXPECT_EQ(address.is_any(), c.any) << c.text;
    EXPECT_EQ(address.is_loopback(), c.loopback) << c.text;
    EXPECT_EQ(address.is_multicast(), c.multicast) << c.text;
    EXPECT_EQ(address.is_link_local(), c.link_local) << c.text;
  }
}

TEST(IpAddress, ScopeTellsLinkLocalAddressesApart) {
  EXPECT_NE(Ip("fe80::1%1"), Ip("fe80::1%2"));
  EXPECT_EQ(Ip("fe80::1%1").gid(), Ip("fe80::1%2").gid());
  EXPECT_EQ(Ip("fe80::1").WithScope(2), Ip("fe80::1%2"));
}

TEST(IpAddress, ScopeOfOtherAddressesIsDropped) {
  EXPECT_EQ(Ip("fd77::1").WithScope(5), Ip("fd77::1"));
  EXPECT_EQ(IpAddress::FromV6(Ip("10.0.0.1").gid(), 5), Ip("10.0.0.1"));
}

TEST(IpAddress, HashFollowsEquality) {
  std::unordered_set<IpAddress> set;
  for (uint32_t i = 0; i < 1000; ++i) set.insert(IpAddress::FromV4(0x0a000000 + i));
  EXPECT_EQ(set.size(), 1000u);
  EXPECT_TRUE(set.contains(Ip("::ffff:10.0.0.5")));
  EXPECT_TRUE(absl::VerifyTypeImplementsAbslHashCorrectly(
      {Ip("10.0.0.1"), Ip("::1"), Ip("::"), Ip("fe80::1%1"), Ip("fe80::1%2")}));
}

TEST(IpAddress, HashSpreadsNeighbours) {
  std::unordered_set<size_t> low_bits;
  for (uint32_t i = 0; i < 256; ++i)
    low_bits.insert(IpAddress::FromV4(0x0a4d0000 + i).Hash() % 4096);
  EXPECT_GT(low_bits.size(), 200u);
}

}  // namespace
}  // namespace rdmad
