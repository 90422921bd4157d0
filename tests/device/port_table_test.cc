#include "daemon/device/port_table.h"

#include "gtest/gtest.h"

namespace rdmad::device {
namespace {


SocketAddress Address(const char* text) {
  return SocketAddress::Parse(text).value();
}

PortTable Table() {
  return {40000, 40003};
}

TEST(PortTable, TwoClaimsOfOnePort) {
  constexpr bool kReuse = true, kV6Only = true;
  const struct {
    const char* name;
    PortTable::Claim first, second;
    bool first_listens;
    bool second_ok;
  } kCases[] = {
      {"same address",
       {PortSpace::kTcp, Address("10.0.0.1:7")},
       {PortSpace::kTcp, Address("10.0.0.1:7")},
       false,
       false},
      {"other address",
       {PortSpace::kTcp, Address("10.0.0.1:7")},
       {PortSpace::kTcp, Address("10.0.0.2:7")},
       false,
       true},
      {"other port",
       {PortSpace::kTcp, Address("10.0.0.1:7")},
       {PortSpace::kTcp, Address("10.0.0.1:8")},
       false,
       true},
      {"other space",
       {PortSpace::kTcp, Address("10.0.0.1:7")},
       {PortSpace::kUdp, Address("10.0.0.1:7")},
       false,
       true},
      {"wildcard after",
       {PortSpace::kTcp, Address("10.0.0.1:7")},
       {PortSpace::kTcp, Address("0.0.0.0:7")},
       false,
       false},
      {"wildcard before",
       {PortSpace::kTcp, Address("0.0.0.0:7")},
       {PortSpace::kTcp, Address("10.0.0.1:7")},
       false,
       false},
      {"two wildcards",
       {PortSpace::kTcp, Address("0.0.0.0:7")},
       {PortSpace::kTcp, Address("0.0.0.0:7")},
       false,
       false},
      {"v6 wildcard covers v4",
       {PortSpace::kTcp, Address("[::]:7")},
       {PortSpace::kTcp, Address("10.0.0.1:7")},
       false,
       false},
      {"v6 wildcard meets v4's",
       {PortSpace::kTcp, Address("0.0.0.0:7")},
       {PortSpace::kTcp, Address("[::]:7")},
       false,
       false},
      {"v6 only",
       {PortSpace::kTcp, Address("[::]:7"), false, kV6Only},
       {PortSpace::kTcp, Address("0.0.0.0:7")},
       false,
       true},
      {"v6 only covers v6",
       {PortSpace::kTcp, Address("[::]:7"), false, kV6Only},
       {PortSpace::kTcp, Address("[fd77::1]:7")},
       false,
       false},
      {"v4 wildcard leaves v6",
       {PortSpace::kTcp, Address("0.0.0.0:7")},
       {PortSpace::kTcp, Address("[fd77::1]:7")},
       false,
       true},
      {"link-local, other link",
       {PortSpace::kTcp, Address("[fe80::1%1]:7")},
       {PortSpace::kTcp, Address("[fe80::1%2]:7")},
       false,
       true},
      {"reuse on both",
       {PortSpace::kTcp, Address("10.0.0.1:7"), kReuse},
       {PortSpace::kTcp, Address("10.0.0.1:7"), kReuse},
       false,
       true},
      {"reuse on one",
       {PortSpace::kTcp, Address("10.0.0.1:7"), kReuse},
       {PortSpace::kTcp, Address("10.0.0.1:7")},
       false,
       false},
      {"reuse of a listener",
       {PortSpace::kTcp, Address("10.0.0.1:7"), kReuse},
       {PortSpace::kTcp, Address("10.0.0.1:7"), kReuse},
       true,
       false},
  };
  for (const auto& c : kCases) {
    PortTable table = Table();
    ASSERT_TRUE(table.Bind(1, c.first, 0).ok()) << c.name;
    if (c.first_listens) {
      ASSERT_TRUE(table.Listen(1).ok()) << c.name;
    }
    const absl::Status second = table.Bind(2, c.second, 0).status();
    EXPECT_EQ(second.ok(), c.second_ok) << c.name << ": " << second.ToString();
    if (!second.ok()) {
      EXPECT_EQ(second.code(), absl::StatusCode::kAlreadyExists) << c.name;
    }
    EXPECT_EQ(table.size(), second.ok() ? 2u : 1u) << c.name;
  }
}

TEST(PortTable, OnlyOneOfTwoThatShareAPortMayListen) {
  PortTable table = Table();
  const PortTable::Claim claim{PortSpace::kTcp, Address("10.0.0.1:7"), true};
  ASSERT_TRUE(table.Bind(1, claim, 0).ok());
  ASSERT_TRUE(table.Bind(2, claim, 0).ok());
  EXPECT_EQ(table.Listen(1).code(), absl::StatusCode::kAlreadyExists);
  table.Release(2);
  EXPECT_TRUE(table.Listen(1).ok());
}

TEST(PortTable, ReleasedPortIsFreeAtOnce) {
  PortTable table = Table();
  const PortTable::Claim claim{PortSpace::kTcp, Address("10.0.0.1:7")};
  ASSERT_TRUE(table.Bind(1, claim, 0).ok());
  ASSERT_TRUE(table.Listen(1).ok());
  table.Release(1);
  table.Release(1);
  EXPECT_EQ(table.size(), 0u);
  EXPECT_TRUE(table.Bind(2, claim, 0).ok());
}

TEST(PortTable, EphemeralPortsRunOut) {
  PortTable table = Table();
  std::vector<bool> seen(4);
  for (uint64_t owner = 1; owner <= 4; ++owner) {
    const auto port = table.Bind(owner, {PortSpace::kTcp, Address("0.0.0.0:0"), true}, 12345);
    ASSERT_TRUE(port.ok());
    ASSERT_GE(*port, 40000);
    ASSERT_LE(*port, 40003);
    EXPECT_FALSE(seen[*port - 40000u]) << "REUSEADDR does not make two ids share an ephemeral port";
    seen[*port - 40000u] = true;
  }
  EXPECT_EQ(table.Bind(5, {PortSpace::kTcp, Address("0.0.0.0:0")}, 0).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(table.Bind(6, {PortSpace::kUdp, Address("0.0.0.0:0")}, 0).ok()) << "another space";
}

TEST(PortTable, RequestFindsTheListenerOfItsAddress) {
  PortTable table = Table();
  ASSERT_TRUE(table.Bind(2, {PortSpace::kTcp, Address("10.0.0.1:7")}, 0).ok());
  ASSERT_TRUE(table.Listen(2).ok());
  ASSERT_TRUE(table.Bind(3, {PortSpace::kTcp, Address("[::]:7"), false, true}, 0).ok());
  ASSERT_TRUE(table.Listen(3).ok());
  EXPECT_EQ(table.FindListener(PortSpace::kTcp, 7, IpAddress::Parse("10.0.0.1").value()), 2u);
  EXPECT_EQ(table.FindListener(PortSpace::kTcp, 7, IpAddress::Parse("10.0.0.2").value()),
            std::nullopt);
  EXPECT_EQ(table.FindListener(PortSpace::kTcp, 7, IpAddress::Parse("fd77::1").value()), 3u);
  EXPECT_EQ(table.FindListener(PortSpace::kUdp, 7, IpAddress::Parse("10.0.0.1").value()),
            std::nullopt);
}

TEST(PortTable, BoundIsNotListening) {
  PortTable table = Table();
  ASSERT_TRUE(table.Bind(1, {PortSpace::kTcp, Address("0.0.0.0:7")}, 0).ok());
  EXPECT_EQ(table.FindListener(PortSpace::kTcp, 7, IpAddress::FromV4(10, 0, 0, 1)), std::nullopt);
}

}  // namespace
}  // namespace rdmad::device
