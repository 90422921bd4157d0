#include "daemon/device/soft/net_config.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "tests/device/soft/test_net.h"

namespace rdmad::soft {
namespace {

class NetConfig : public ::testing::Test {
 protected:
  NetConfig() { testing::HavePrivateNetwork(); }
};

const NetInterface* Named(const std::vector<NetInterface>& interfaces, const std::string& name) {
  for (const NetInterface& one : interfaces) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

TEST_F(NetConfig, LoopbackIsThere) {
  const auto interfaces = ReadInterfaces();
  ASSERT_TRUE(interfaces.ok()) << interfaces.status();
  const NetInterface* lo = Named(*interfaces, "lo");
  ASSERT_NE(lo, nullptr);
  EXPECT_TRUE(lo->up);
  EXPECT_TRUE(lo->running);
  EXPECT_TRUE(lo->loopback);
  EXPECT_GE(lo->mtu_bytes, 1500u);
  EXPECT_TRUE(lo->Has(IpAddress::FromV4(127, 0, 0, 1)));
  EXPECT_TRUE(lo->Has(IpAddress::FromV4(127, 9, 8, 7)));
  EXPECT_TRUE(lo->Has(*IpAddress::Parse("::1")));
  EXPECT_FALSE(lo->Has(IpAddress::FromV4(10, 0, 0, 1)));
}

TEST_F(NetConfig, ShowsAddressesMtuMacAndScope) {
  if (!testing::HavePrivateNetwork() || !testing::Run("ip link add v0 type veth peer name v1")) {
    GTEST_SKIP() << "needs a network namespace, ip and veth";
  }
  ASSERT_TRUE(
      testing::Run("ip link set v0 mtu 4200 address 02:11:22:33:44:55 up && ip link set v1 up &&"
                   "ip addr add 192.0.2.7/24 dev v0 && ip addr add 2001:db8::7/64 dev v0 nodad &&"
                   "ip addr add fe80::7/64 dev v0 nodad"));
  const auto interfaces = ReadInterfaces();
  ASSERT_TRUE(interfaces.ok());
  const NetInterface* v0 = Named(*interfaces, "v0");
  ASSERT_NE(v0, nullptr);
  EXPECT_EQ(v0->mtu_bytes, 4200u);
  EXPECT_EQ(v0->mac, (std::vector<uint8_t>{2, 0x11, 0x22, 0x33, 0x44, 0x55}));
  EXPECT_FALSE(v0->loopback);
  EXPECT_TRUE(v0->Has(IpAddress::FromV4(192, 0, 2, 7)));
  EXPECT_TRUE(v0->Has(*IpAddress::Parse("2001:db8::7")));
  EXPECT_TRUE(v0->Has(*IpAddress::Parse("fe80::7%v0")));
  EXPECT_FALSE(v0->Has(*IpAddress::Parse("fe80::7%v1")));
  EXPECT_EQ(FindInterface(*interfaces, IpAddress::FromV4(192, 0, 2, 7)), v0);

  EXPECT_EQ(*KernelSourceAddressFor(IpAddress::FromV4(192, 0, 2, 99)),
            IpAddress::FromV4(192, 0, 2, 7));
  EXPECT_EQ(*KernelSourceAddressFor(*IpAddress::Parse("2001:db8::99")),
            *IpAddress::Parse("2001:db8::7"));
  const auto link_local = KernelSourceAddressFor(*IpAddress::Parse("fe80::99%v0"));
  ASSERT_TRUE(link_local.ok()) << link_local.status();
  EXPECT_TRUE(v0->Has(*link_local)) << link_local->ToString();

  ASSERT_TRUE(testing::Run("ip link set v0 down"));
  const auto later = ReadInterfaces();
  EXPECT_FALSE(Named(*later, "v0")->up);
  EXPECT_FALSE(Named(*later, "v1")->running);
  testing::Run("ip link del v0");
}

TEST_F(NetConfig, SourceForLoopbackIsLoopback) {
  EXPECT_EQ(*KernelSourceAddressFor(IpAddress::FromV4(127, 0, 0, 1)),
            IpAddress::FromV4(127, 0, 0, 1));
  EXPECT_EQ(*KernelSourceAddressFor(*IpAddress::Parse("::1")), *IpAddress::Parse("::1"));
}

TEST_F(NetConfig, NoRouteIsNotFound) {
  if (!testing::HavePrivateNetwork()) GTEST_SKIP() << "needs a network namespace";
  EXPECT_EQ(KernelSourceAddressFor(IpAddress::FromV4(203, 0, 113, 1)).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(NetConfig, NonsenseDestinationsAreInvalid) {
  EXPECT_EQ(KernelSourceAddressFor(IpAddress::AnyV4()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(KernelSourceAddressFor(IpAddress::AnyV6()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(KernelSourceAddressFor(*IpAddress::Parse("fe80::1")).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace rdmad::soft
