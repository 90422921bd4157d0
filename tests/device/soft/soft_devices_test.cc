// What devices a host gets, what they say of themselves, and which limits they keep.
#include "daemon/device/soft/soft_devices.h"

#include <net/if.h>
#include <unistd.h>

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/device/soft/net_config.h"
#include "gtest/gtest.h"
#include "proto/shm/completion_queue.h"
#include "tests/device/soft/soft_host.h"
#include "tests/device/soft/test_net.h"

namespace rdmad::soft {
namespace {

using absl::StatusCode;
using rdmad::testing::TestPort;
using testing::SoftHost;

class SoftDevicesTest : public ::testing::Test {
 protected:
  SoftDevicesTest() { rdmad::testing::HavePrivateNetwork(); }
};

using SoftDeviceTest = SoftDevicesTest;

bool HasProblem(const SoftHost& host, const std::string& what, const std::string& why) {
  for (const SoftDeviceProblem& problem : host.devices->problems()) {
    if (problem.what == what && problem.why.find(why) != std::string::npos) return true;
  }
  return false;
}

// A veth with three addresses. False: cannot be made.
// The kernel tells of a carrier when it gets to it, up to a second later.
bool AwaitCarrier(bool carrier) {
  for (int i = 0; i < 1000; ++i) {
    const absl::StatusOr<std::vector<NetInterface>> interfaces = ReadInterfaces();
    if (!interfaces.ok()) return false;
    for (const NetInterface& one : *interfaces) {
      if (one.name == "v0" && one.running == carrier) return true;
    }
    ::usleep(5000);
  }
  return false;
}

bool AddVeth() {
  return rdmad::testing::HavePrivateNetwork() &&
         rdmad::testing::Run(
             "ip link add v0 type veth peer name v1 && ip link set v0 mtu 1500 address "
             "02:11:22:33:44:55 up &&"
             "ip link set v1 up && ip addr flush dev v0 && ip addr add 192.0.2.7/24 dev v0 &&"
             "ip addr add 2001:db8::7/64 dev v0 nodad && ip addr add fe80::7/64 dev v0 nodad") &&
         AwaitCarrier(true);
}

void RemoveVeth() {
  rdmad::testing::Run("ip link del v0");
}

TEST_F(SoftDevicesTest, EveryLoopbackAddressIsADeviceOfItsOwn) {
  SoftHost host({"127.0.0.2", "127.0.0.3", "::1"}, TestPort());
  ASSERT_EQ(host.devices->devices().size(), 3u);
  std::set<uint64_t> guids;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(host.device(i).name(), "soft" + std::to_string(i));
    EXPECT_EQ(host.device(i).kind(), "soft");
    EXPECT_EQ(host.device(i).netdev(), "lo");
    EXPECT_EQ(host.device(i).Gids().size(), 1u);
    guids.insert(host.device(i).attr().node_guid);
  }
  EXPECT_EQ(guids.size(), 3u);
  EXPECT_FALSE(guids.contains(0));
  EXPECT_EQ(host.device(0).Gids()[0].address.gid(),
            (Gid{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 2}));
}

TEST_F(SoftDevicesTest, AnInterfaceIsOneDeviceWithAllItsAddresses) {
  if (!AddVeth()) GTEST_SKIP() << "needs a network namespace, ip and veth";
  {
    SoftHost host({"v0"}, TestPort());
    ASSERT_EQ(host.devices->devices().size(), 1u);
    EXPECT_EQ(host.device().Gids().size(), 3u);
    EXPECT_EQ(host.device().netdev(), "v0");
    EXPECT_EQ(host.device().QueryPort().active_mtu, device::Mtu::k1024);
    EXPECT_TRUE(host.device().QueryPort().active());
    EXPECT_EQ(host.device().attr().node_guid, 0x001122fffe334455u);
    const IpAddress link_local = *IpAddress::Parse("fe80::7%v0");
    EXPECT_EQ(host.devices->FindByAddress(link_local), &host.device());
    EXPECT_EQ(host.devices->FindByAddress(link_local.WithScope(1)), nullptr);
  }
  {
    SoftHost host({"192.0.2.7", "fe80::7%v0"}, TestPort());
    ASSERT_EQ(host.devices->devices().size(), 1u);
    EXPECT_EQ(host.device().Gids().size(), 2u);
  }
  RemoveVeth();
}

TEST_F(SoftDevicesTest, AutomaticTakesWhatIsUp) {
  if (!AddVeth()) GTEST_SKIP() << "needs a network namespace, ip and veth";
  rdmad::testing::Run("ip link set v1 down");
  {
    SoftHost host({}, TestPort());
    std::set<std::string> found;
    for (const IpAddress& address : host.devices->Addresses())
      found.insert(address.WithScope(0).ToString());
    for (const char* address : {"127.0.0.1", "::1", "192.0.2.7", "2001:db8::7", "fe80::7"}) {
      EXPECT_TRUE(found.contains(address)) << address;
    }
    EXPECT_FALSE(host.devices->FindByAddress(IpAddress::FromV4(192, 0, 2, 7)) == nullptr);
  }
  RemoveVeth();
}

TEST_F(SoftDevicesTest, NoCarrierIsAnInactivePort) {
  if (!AddVeth()) GTEST_SKIP() << "needs a network namespace, ip and veth";
  rdmad::testing::Run("ip link set v1 down");
  ASSERT_TRUE(AwaitCarrier(false));
  {
    SoftHost host({"192.0.2.7"}, TestPort());
    ASSERT_EQ(host.devices->devices().size(), 1u);
    EXPECT_FALSE(host.device().QueryPort().active());
  }
  RemoveVeth();
}

TEST_F(SoftDevicesTest, TakenPortCostsThatAddressOnly) {
  SoftHost first({"127.0.0.2"}, TestPort());
  SoftHost second({"127.0.0.2", "127.0.0.3"}, TestPort());
  ASSERT_EQ(second.devices->devices().size(), 1u);
  EXPECT_EQ(second.device().Gids()[0].address, IpAddress::FromV4(127, 0, 0, 3));
  EXPECT_TRUE(HasProblem(second, "127.0.0.2", "something else"));
  EXPECT_TRUE(HasProblem(second, "127.0.0.2", std::to_string(TestPort())));
}

TEST_F(SoftDevicesTest, SaysWhatIsWrongWithEachName) {
  if (rdmad::testing::HavePrivateNetwork())
    rdmad::testing::Run("ip link add d0 type veth peer name d1");
  SoftHost host({"nonsense", "192.0.2.250", "fe80::1", "d0", "127.0.0.2", "127.0.0.2"}, TestPort());
  EXPECT_EQ(host.devices->devices().size(), 1u);
  EXPECT_TRUE(HasProblem(host, "nonsense", "neither an interface"));
  EXPECT_TRUE(HasProblem(host, "192.0.2.250", "no interface of this host"));
  EXPECT_TRUE(HasProblem(host, "fe80::1", "needs its interface"));
  if (rdmad::testing::HavePrivateNetwork()) {
    EXPECT_TRUE(HasProblem(host, "d0", "down") || HasProblem(host, "d0", "neither"));
    rdmad::testing::Run("ip link del d0");
  }
  EXPECT_EQ(host.devices->problems().size(), 4u);
}

TEST_F(SoftDevicesTest, SmallMtuIsNamed) {
  if (!rdmad::testing::HavePrivateNetwork() ||
      !rdmad::testing::Run("ip link add v0 type veth peer name v1 && ip link set v0 mtu 300 up &&"
                           "ip addr add 192.0.2.7/24 dev v0")) {
    GTEST_SKIP() << "needs a network namespace, ip and veth";
  }
  {
    SoftHost host({"192.0.2.7"}, TestPort());
    EXPECT_TRUE(host.devices->devices().empty());
    EXPECT_TRUE(HasProblem(host, "v0", "MTU 300"));
  }
  RemoveVeth();
}

TEST_F(SoftDevicesTest, SourceForAPeerIsOneOfOurs) {
  SoftHost host({"127.0.0.2"}, TestPort());
  EXPECT_EQ(*host.devices->SourceAddressFor(IpAddress::FromV4(127, 0, 0, 3)),
            IpAddress::FromV4(127, 0, 0, 2));
  EXPECT_EQ(*host.devices->SourceAddressFor(IpAddress::FromV4(127, 0, 0, 2)),
            IpAddress::FromV4(127, 0, 0, 2));
  // We have no IPv6 address: the kernel's answer, which no device has.
  const auto v6 = host.devices->SourceAddressFor(*IpAddress::Parse("::1"));
  ASSERT_TRUE(v6.ok());
  EXPECT_EQ(host.devices->FindByAddress(*v6), nullptr);
}

TEST_F(SoftDeviceTest, GuidFromMacIsAnEui64) {
  EXPECT_EQ(MakeNodeGuid({0x00, 0x11, 0x22, 0x33, 0x44, 0x55}, IpAddress()), 0x021122fffe334455u);
}

TEST_F(SoftDeviceTest, GuidWithoutMacComesFromTheAddress) {
  const uint64_t a = MakeNodeGuid({0, 0, 0, 0, 0, 0}, IpAddress::FromV4(127, 0, 0, 2));
  const uint64_t b = MakeNodeGuid({}, IpAddress::FromV4(127, 0, 0, 3));
  EXPECT_NE(a, 0u);
  EXPECT_NE(a, b);
  EXPECT_EQ(a, MakeNodeGuid({}, IpAddress::FromV4(127, 0, 0, 2)));
}

struct Objects {
  explicit Objects(SoftHost& host)
      : pd(std::move(host.device().AllocPd()).value()),
        cq(std::move(host.device().CreateCq(16, &sink)).value()) {}

  device::QpInit Init() {
    device::QpInit init;
    init.send_cq = init.recv_cq = cq.get();
    init.cap = {16, 16, 1, 1, 0};
    return init;
  }

  testing::WcRecorder sink;
  std::unique_ptr<device::Pd> pd;
  std::unique_ptr<device::Cq> cq;
};

TEST_F(SoftDeviceTest, KeepsItsQpLimits) {
  SoftHost host({"127.0.0.2"}, TestPort());
  SoftDevice& device = host.device();
  Objects objects(host);
  const device::DeviceAttr& attr = device.attr();
  const struct {
    const char* what;
    uint32_t device::QpCap::*field;
    uint32_t limit;
  } kTable[] = {
      {"max_send_wr", &device::QpCap::max_send_wr, attr.max_qp_wr},
      {"max_recv_wr", &device::QpCap::max_recv_wr, attr.max_qp_wr},
      {"max_send_sge", &device::QpCap::max_send_sge, attr.max_sge},
      {"max_recv_sge", &device::QpCap::max_recv_sge, attr.max_sge},
      {"max_inline", &device::QpCap::max_inline_bytes, attr.max_inline_bytes},
  };
  for (const auto& row : kTable) {
    SCOPED_TRACE(row.what);
    device::QpInit init = objects.Init();
    init.cap.*row.field = row.limit;
    const auto at_limit = device.CreateQp(*objects.pd, init);
    ASSERT_TRUE(at_limit.ok()) << at_limit.status();
    EXPECT_GE((*at_limit)->cap().*row.field, row.limit);
    init.cap.*row.field = row.limit + 1;
    const auto over = device.CreateQp(*objects.pd, init);
    EXPECT_EQ(over.status().code(), StatusCode::kInvalidArgument);
    const std::string message(over.status().message());
    EXPECT_NE(message.find(std::to_string(row.limit)), std::string::npos) << message;
    EXPECT_NE(message.find(std::to_string(row.limit + 1)), std::string::npos) << message;
  }
}

TEST_F(SoftDeviceTest, TellsWhatItIsAndNothingThatItHasNot) {
  SoftHost host({"127.0.0.2"}, TestPort());
  const device::DeviceAttr& attr = host.device().attr();
  EXPECT_EQ(attr.sys_image_guid, attr.node_guid);
  EXPECT_EQ(attr.fw_ver, "");
  EXPECT_EQ(attr.cap_flags & ~device::kCapAll, 0u);
  EXPECT_EQ(attr.cap_flags & device::kCapMemWindowType2A, 0u);
  EXPECT_EQ(attr.cap_flags & (device::kCapBadPkeyCounter | device::kCapBadQkeyCounter), 0u)
      << "no port counts them by itself";
  EXPECT_EQ(attr.max_qp_init_rd_atom, attr.max_qp_rd_atom);
  EXPECT_EQ(host.device().Pkeys(), std::vector<uint16_t>{0xffff});
  for (const device::GidEntry& gid : host.device().Gids()) {
    EXPECT_EQ(gid.type, device::GidType::kRoceV2);
    EXPECT_EQ(gid.interface_index, ::if_nametoindex("lo"));
  }
}

TEST_F(SoftDeviceTest, ThePortFollowsItsLink) {
  SoftHost host({"127.0.0.2"}, TestPort());
  using device::PhysState;
  using device::PortState;
  const struct {
    const char* what;
    SoftLink link;
    PortState state;
    PhysState phys_state;
  } kTable[] = {
      {"up", {"lo", 65536, true, 1, {2, 4}}, PortState::kActive, PhysState::kLinkUp},
      {"MTU too small", {"lo", 339, true, 1, {2, 4}}, PortState::kDown, PhysState::kLinkUp},
      {"no carrier", {"lo", 1500, false, 1, {2, 4}}, PortState::kDown, PhysState::kDisabled},
  };
  for (const auto& row : kTable) {
    SCOPED_TRACE(row.what);
    host.device().SetLink(row.link);
    const device::PortAttr port = host.device().QueryPort();
    EXPECT_EQ(port.state, row.state);
    EXPECT_EQ(port.phys_state, row.phys_state);
    EXPECT_EQ(port.rate, row.link.rate);
    EXPECT_EQ(port.link_layer, device::LinkLayer::kEthernet);
  }
}

TEST_F(SoftDeviceTest, KeepsItsCqAndMrLimits) {
  SoftHost host({"127.0.0.2"}, TestPort());
  SoftDevice& device = host.device();
  Objects objects(host);
  EXPECT_EQ(device.CreateCq(0, &objects.sink).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(device.CreateCq(shm::kMaxCqDepth, &objects.sink).ok());
  EXPECT_EQ(device.CreateCq(shm::kMaxCqDepth + 1, &objects.sink).status().code(),
            StatusCode::kInvalidArgument);
  std::byte bytes[16];
  device::MrInit init = {bytes, device.attr().max_mr_bytes + 1, 0, 0};
  EXPECT_EQ(device.RegisterMr(*objects.pd, init).status().code(), StatusCode::kInvalidArgument);
  init.length_bytes = 0;
  EXPECT_EQ(device.RegisterMr(*objects.pd, init).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(SoftDeviceTest, RefusesAPathMtuOverTheInterfaces) {
  if (!AddVeth()) GTEST_SKIP() << "needs a network namespace, ip and veth";
  {
    SoftHost host({"v0"}, TestPort());
    Objects objects(host);
    auto qp = std::move(host.device().CreateQp(*objects.pd, objects.Init())).value();
    qp->Activate(testing::MonotonicNow());
    device::QpAttr attr;
    attr.mask = device::kQpAttrState | device::kQpAttrAccessFlags | device::kQpAttrPkeyIndex |
                device::kQpAttrPort;
    attr.state = device::QpState::kInit;
    ASSERT_EQ(qp->Modify(attr, 0), device::QpResult::kOk);
    attr.mask = device::kQpAttrState | device::kQpAttrAv | device::kQpAttrPathMtu |
                device::kQpAttrDestQpn | device::kQpAttrRqPsn | device::kQpAttrMaxDestRdAtomic |
                device::kQpAttrMinRnrTimer;
    attr.state = device::QpState::kRtr;
    attr.dest_qpn = 99;
    attr.av.dest = IpAddress::FromV4(192, 0, 2, 8);
    attr.path_mtu = device::Mtu::k2048;  // the interface has 1500
    EXPECT_EQ(qp->Modify(attr, 0), device::QpResult::kBadValue);
    attr.av.sgid_index = 77;
    attr.path_mtu = device::Mtu::k1024;
    EXPECT_EQ(qp->Modify(attr, 0), device::QpResult::kBadValue);
    attr.av.sgid_index = 0;
    EXPECT_EQ(qp->Modify(attr, 0), device::QpResult::kOk);
    qp->Deactivate(testing::MonotonicNow());
  }
  RemoveVeth();
}

TEST_F(SoftDeviceTest, CountsObjectsUntilTheyAreDestroyed) {
  SoftHost host({"127.0.0.2"}, TestPort());
  SoftDevice& device = host.device();
  testing::WcRecorder sink;
  std::vector<std::unique_ptr<device::Cq>> all;
  for (uint32_t i = 0; i < device.attr().max_cq; ++i) {
    auto cq = device.CreateCq(1, &sink);
    ASSERT_TRUE(cq.ok()) << i;
    all.push_back(std::move(cq).value());
  }
  EXPECT_EQ(device.CreateCq(1, &sink).status().code(), StatusCode::kResourceExhausted);
  all.pop_back();
  EXPECT_TRUE(device.CreateCq(1, &sink).ok());
}

TEST_F(SoftDeviceTest, QpNumbersComeBackWithTheQp) {
  SoftHost host({"127.0.0.2"}, TestPort());
  Objects objects(host);
  auto qp = host.device().CreateQp(*objects.pd, objects.Init());
  ASSERT_TRUE(qp.ok());
  const uint32_t first = (*qp)->qpn();
  EXPECT_EQ(host.qpns.in_use(), 1u);
  qp->reset();
  EXPECT_EQ(host.qpns.in_use(), 0u);
  const auto next = host.device().CreateQp(*objects.pd, objects.Init());
  EXPECT_NE((*next)->qpn(), first);
}

TEST_F(SoftDeviceTest, RefusedQpTakesNoNumber) {
  SoftHost host({"127.0.0.2"}, TestPort());
  Objects objects(host);
  device::QpInit init = objects.Init();
  init.cap.max_send_wr = 1u << 30;
  EXPECT_FALSE(host.device().CreateQp(*objects.pd, init).ok());
  EXPECT_EQ(host.qpns.in_use(), 0u);
}

TEST_F(SoftDeviceTest, ObjectsMayOutliveTheDevice) {
  SoftHost host({"127.0.0.2"}, TestPort());
  Objects objects(host);
  auto qp = host.device().CreateQp(*objects.pd, objects.Init());
  for (const auto& [engine, port] : host.devices->ports()) {
    port->Deactivate(testing::MonotonicNow());
  }
  SoftDevicesConfig nothing;
  nothing.only = {"192.0.2.9"};
  host.devices = SoftDevices::Create(nothing, {{host.path}, &host.qpns, testing::MonotonicNow},
                                     host.mads.get(), testing::EngineOfThisThread())
                     .value();
  qp->reset();
  objects.cq.reset();
  objects.pd.reset();
  EXPECT_EQ(host.qpns.in_use(), 0u);
}

}  // namespace
}  // namespace rdmad::soft
