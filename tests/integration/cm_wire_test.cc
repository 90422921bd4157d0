// What connections and datagrams put on the wire between two hosts, and what becomes of them when
// the network takes a message or a route away (cases 12 and 32).
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/cm_pair.h"
#include "tests/integration/pattern.h"
#include "tests/integration/testbed.h"
#include "tests/integration/wired.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr uint16_t kMra = 0x0011;  // attribute ids of IBTA vol. 1, Communication Management
constexpr uint16_t kRtu = 0x0014;
constexpr size_t kUdpBytes = 8;
constexpr size_t kBthBytes = 12;
constexpr size_t kDethBytes = 8;

std::span<const uint8_t> BthOf(std::span<const uint8_t> ip) {
  return ip.subspan((ip[0] >> 4 == 4 ? 20 : 40) + kUdpBytes);
}
bool IsCm(std::span<const uint8_t> ip) {
  const std::span<const uint8_t> bth = BthOf(ip);
  return bth[5] == 0 && bth[6] == 0 && bth[7] == 1;
}
uint16_t CmAttributeOf(std::span<const uint8_t> ip) {
  if (!IsCm(ip)) return 0;
  const std::span<const uint8_t> mad = BthOf(ip).subspan(kBthBytes + kDethBytes);
  return static_cast<uint16_t>(mad[16] << 8 | mad[17]);
}

class CmWireTest : public TwoHostsTest {
 protected:
  void Ip(int host, const std::string& what) {
    ASSERT_OK(hosts().host(host).Run(absl::StrCat("ip ", what)));
  }
  static uint32_t PathMtuOf(const QpPair& pair) {
    const absl::StatusOr<QpAttr> active = pair.active.id->qp().Query();
    const absl::StatusOr<QpAttr> passive = pair.passive->qp().Query();
    EXPECT_EQ(active->path_mtu, passive->path_mtu);
    return MtuBytes(active->path_mtu);
  }
  // 64 KiB arrive.
  void ExpectMessage(QpPair& pair) {
    constexpr size_t kBytes = 65536;
    ASSERT_OK_AND_ASSIGN(Pool here, Pool::Create(client(0), kBytes));
    ASSERT_OK_AND_ASSIGN(Pool there, Pool::Create(client(1), kBytes));
    ASSERT_OK_AND_ASSIGN(Buffer from, here.Allocate(kBytes));
    ASSERT_OK_AND_ASSIGN(Buffer to, there.Allocate(kBytes));
    ASSERT_OK_AND_ASSIGN(MemoryRegion from_region, pair.active.id->RegMsgs(from.data(), kBytes));
    ASSERT_OK_AND_ASSIGN(MemoryRegion to_region, pair.passive->RegMsgs(to.data(), kBytes));
    FillPattern(from.bytes(), 1);
    ASSERT_OK(pair.passive->qp().PostRecv(1, to.data(), kBytes, &to_region));
    ASSERT_OK(
        pair.active.id->qp().PostSend(2, from.data(), kBytes, &from_region, kSendSignaled));
    ASSERT_OK_AND_ASSIGN(const Wc sent, WaitForWc(pair.active_cq, absl::Seconds(20)));
    EXPECT_EQ(sent.status, WcStatus::kSuccess) << WcStatusString(sent.status);
    ASSERT_OK(WaitForWc(pair.passive_cq));
    EXPECT_EQ(PatternMismatch(to.bytes(), 1), std::nullopt);
  }
};

// ---- Messages that are late or lost

TEST_F(CmWireTest, WhoTakesItsTimeToAcceptSaysSoOnTheWire) {
  if (!Start({.wire = true})) return;
  std::atomic<int> mras{0};
  hosts().wire()->SetHook([&](WireDirection direction, std::span<uint8_t> ip) {
    if (direction == WireDirection::kBToA && CmAttributeOf(ip) == kMra) ++mras;
    return WireVerdict::kPass;
  });
  ASSERT_OK_AND_ASSIGN(ListeningId listening, ListenOn(client(1), TwoHosts::Ipv4(1)));
  ASSERT_OK_AND_ASSIGN(ActiveId active, Resolve(client(0), listening.address));
  ASSERT_OK(active.id->CreateQp(nullptr, {}));
  ASSERT_OK(active.id->Connect());
  ASSERT_OK_AND_ASSIGN(auto request, ExpectEvent(*listening.channel, CmEventType::kConnectRequest));
  EXPECT_TRUE(Eventually(absl::Seconds(5), [&] { return mras > 0; }));
  std::unique_ptr<CmId> passive = request->TakeId();
  ASSERT_OK(passive->CreateQp(nullptr, {}));
  ASSERT_OK(passive->Accept());
  EXPECT_OK(ExpectEvent(*active.channel, CmEventType::kEstablished));
  EXPECT_OK(ExpectEvent(*listening.channel, CmEventType::kEstablished));
}

// The REP is sent again, and answered again.
TEST_F(CmWireTest, ALostRtuIsMadeUpFor) {
  if (!Start({.wire = true})) return;
  std::atomic<int> lost{0};
  hosts().wire()->SetHook([&](WireDirection, std::span<uint8_t> ip) {
    return CmAttributeOf(ip) == kRtu && lost++ == 0 ? WireVerdict::kDrop : WireVerdict::kPass;
  });
  ASSERT_OK_AND_ASSIGN(ListeningId listening, ListenOn(client(1), TwoHosts::Ipv4(1)));
  ASSERT_OK_AND_ASSIGN(ActiveId active, Resolve(client(0), listening.address));
  ASSERT_OK(active.id->CreateQp(nullptr, {}));
  ASSERT_OK(active.id->Connect());
  ASSERT_OK_AND_ASSIGN(auto request, ExpectEvent(*listening.channel, CmEventType::kConnectRequest));
  std::unique_ptr<CmId> passive = request->TakeId();
  ASSERT_OK(passive->CreateQp(nullptr, {}));
  ASSERT_OK(passive->qp().PostRecv(1, nullptr, 0, nullptr));
  ASSERT_OK(passive->Accept());
  ASSERT_OK(ExpectEvent(*active.channel, CmEventType::kEstablished));
  ASSERT_OK(active.id->qp().PostSend(2, nullptr, 0, nullptr, kSendSignaled));
  EXPECT_OK(ExpectEvent(*listening.channel, CmEventType::kEstablished, absl::Seconds(3)));
  EXPECT_GE(lost, 1);
}

// No RTU arrives ever, so that the REPs that are sent again are of no help.
TEST_F(CmWireTest, TheFirstDataEstablishesAConnectionWithoutRtu) {
  if (!Start({.wire = true})) return;
  hosts().wire()->SetHook([&](WireDirection, std::span<uint8_t> ip) {
    return CmAttributeOf(ip) == kRtu ? WireVerdict::kDrop : WireVerdict::kPass;
  });
  for (const QpType type : {QpType::kRc, QpType::kUc}) {
    SCOPED_TRACE(static_cast<int>(type));
    QpInit init;
    init.type = type;
    ASSERT_OK_AND_ASSIGN(ListeningId listening, ListenOn(client(1), TwoHosts::Ipv4(1)));
    ASSERT_OK_AND_ASSIGN(ActiveId active, Resolve(client(0), listening.address));
    ASSERT_OK(active.id->CreateQp(nullptr, init));
    ASSERT_OK(active.id->Connect());
    ASSERT_OK_AND_ASSIGN(auto request,
                         ExpectEvent(*listening.channel, CmEventType::kConnectRequest));
    std::unique_ptr<CmId> passive = request->TakeId();
    request.reset();
    ASSERT_OK(passive->CreateQp(nullptr, init));
    ASSERT_OK(passive->qp().PostRecv(1, nullptr, 0, nullptr));
    ASSERT_OK(passive->Accept());
    ASSERT_OK(ExpectEvent(*active.channel, CmEventType::kEstablished));
    EXPECT_FALSE(ExpectEvent(*listening.channel, CmEventType::kEstablished,
                             absl::Milliseconds(500)).ok());
    ASSERT_OK(active.id->qp().PostSend(2, nullptr, 0, nullptr, kSendSignaled));
    EXPECT_OK(ExpectEvent(*listening.channel, CmEventType::kEstablished));
    ASSERT_OK(passive->qp().PostSend(3, nullptr, 0, nullptr, kSendSignaled));
    ASSERT_OK(active.id->Disconnect());
    EXPECT_OK(ExpectEvent(*listening.channel, CmEventType::kDisconnected));
  }
}

// ---- Options

TEST_F(CmWireTest, TheTypeOfServiceIsOnEveryPacketOfBothSides) {
  constexpr uint8_t kTos = 0x68;
  for (const std::string& address : {TwoHosts::Ipv4(1), TwoHosts::Ipv6(1)}) {
    SCOPED_TRACE(address);
    if (!Start({.wire = true})) return;
    std::mutex mutex;
    std::set<int> classes[2];
    hosts().wire()->SetHook([&](WireDirection direction, std::span<uint8_t> ip) {
      const std::lock_guard lock(mutex);
      const int traffic_class =
          ip[0] >> 4 == 4 ? ip[1] : (ip[0] & 0xf) << 4 | ip[1] >> 4;
      // Without the two bits of ECN. The CM's own messages are not the connection's.
      if (!IsCm(ip)) classes[static_cast<int>(direction)].insert(traffic_class & 0xfc);
      return WireVerdict::kPass;
    });
    ASSERT_OK_AND_ASSIGN(ListeningId listening, ListenOn(client(1), address));
    ASSERT_OK_AND_ASSIGN(ActiveId active, Resolve(client(0), listening.address));
    const std::byte tos{kTos};
    ASSERT_OK(active.id->SetOption(0, 0, {&tos, 1}));
    ASSERT_OK(active.id->CreateQp(nullptr, {}));
    ASSERT_OK(active.id->Connect());
    ASSERT_OK_AND_ASSIGN(auto request,
                         ExpectEvent(*listening.channel, CmEventType::kConnectRequest));
    std::unique_ptr<CmId> passive = request->TakeId();
    request.reset();
    ASSERT_OK(passive->CreateQp(nullptr, {}));
    ASSERT_OK(passive->qp().PostRecv(1, nullptr, 0, nullptr));
    ASSERT_OK(passive->Accept());
    ASSERT_OK(ExpectEvent(*active.channel, CmEventType::kEstablished));
    ASSERT_OK(active.id->qp().PostSend(2, nullptr, 0, nullptr, kSendSignaled));
    ASSERT_OK_AND_ASSIGN(const Wc sent, active.id->GetSendComp(Slow(absl::Seconds(5))));
    EXPECT_EQ(sent.status, WcStatus::kSuccess);
    hosts().wire()->SetHook(nullptr);
    for (const std::set<int>& seen : classes) EXPECT_EQ(seen, std::set<int>{kTos});
  }
}

// The address vector of a QP that is wired by hand, and of an address handle.
TEST_F(CmWireTest, FlowLabelTrafficClassAndHopLimitAreWhatTheAddressVectorSays) {
  if (!Start({.wire = true})) return;
  std::mutex mutex;
  std::set<std::tuple<int, int, int>> seen;  // class, flow label, hop limit
  hosts().wire()->SetHook([&](WireDirection direction, std::span<uint8_t> ip) {
    const std::lock_guard lock(mutex);
    if (direction == WireDirection::kAToB && ip[0] >> 4 == 6) {
      seen.emplace(((ip[0] & 0xf) << 4 | ip[1] >> 4) & 0xfc,
                   (ip[1] & 0xf) << 16 | ip[2] << 8 | ip[3], ip[7]);
    }
    return WireVerdict::kPass;
  });
  for (const QpType type : {QpType::kRc, QpType::kUc, QpType::kUd}) {
    SCOPED_TRACE(static_cast<int>(type));
    seen.clear();
    ASSERT_OK_AND_ASSIGN(WiredEnd a, MakeEnd(client(0), TwoHosts::Ipv6(0), {.type = type}));
    ASSERT_OK_AND_ASSIGN(WiredEnd b, MakeEnd(client(1), TwoHosts::Ipv6(1), {.type = type}));
    AddressHandleAttr way = WayTo(a, b);
    way.flow_label = 0xabcde;
    way.traffic_class = 0x48;
    way.hop_limit = 33;
    ASSERT_OK(b.qp.type() == QpType::kUd ? MakeReady(b, 1) : ToInit(b));
    AddressHandle ah;  // in use until the message has been sent
    if (type == QpType::kUd) {
      ASSERT_OK(MakeReady(a, 1));
      ASSERT_OK(b.PostRecv(1, 0, 4096));
      ASSERT_OK_AND_ASSIGN(ah, AddressHandle::Create(a.pd, way));
      ASSERT_OK(a.qp.PostUdSend(2, a.memory.data(), 100, &a.region, kSendSignaled, ah, b.qp.qpn(), 1));
    } else {
      ASSERT_OK(ToInit(a));
      ASSERT_OK(ToRtr(a, b, &way));
      ASSERT_OK(ToRtr(b, a));
      ASSERT_OK(ToRts(a));
      ASSERT_OK(b.PostRecv(1, 0, 4096));
      ASSERT_OK(a.qp.PostSend(2, a.memory.data(), 100, &a.region, kSendSignaled));
    }
    ASSERT_OK_AND_ASSIGN(const Wc received, WaitForWc(b.cq));
    EXPECT_EQ(received.status, WcStatus::kSuccess);
    const std::lock_guard lock(mutex);
    EXPECT_EQ(seen, (std::set<std::tuple<int, int, int>>{{0x48, 0xabcde, 33}}));
  }
}

// ---- Routes

TEST_F(CmWireTest, ThePathMtuIsThatOfTheRouteWhereItCarriesLess) {
  if (!Start({.mtu_bytes = 9000})) return;
  for (const std::string& address : {TwoHosts::Ipv4(1), TwoHosts::Ipv6(1)}) {
    ASSERT_OK_AND_ASSIGN(QpPair pair, ConnectQps(client(0), client(1), address));
    EXPECT_EQ(PathMtuOf(pair), 4096u);
  }
  // On one side only; the other hears of it by the CM.
  Ip(0, absl::StrCat("route add ", TwoHosts::Ipv4(1), "/32 dev rd0 mtu 1400"));
  Ip(0, absl::StrCat("-6 route add ", TwoHosts::Ipv6(1), "/128 dev rd0 mtu 1400"));
  for (const std::string& address : {TwoHosts::Ipv4(1), TwoHosts::Ipv6(1)}) {
    SCOPED_TRACE(address);
    ASSERT_OK_AND_ASSIGN(QpPair pair, ConnectQps(client(0), client(1), address));
    EXPECT_EQ(PathMtuOf(pair), 1024u);
    ASSERT_NO_FATAL_FAILURE(ExpectMessage(pair));
    // And the other way round: who is asked has the narrow route.
    const std::string back = address == TwoHosts::Ipv4(1) ? TwoHosts::Ipv4(0) : TwoHosts::Ipv6(0);
    ASSERT_OK_AND_ASSIGN(QpPair other, ConnectQps(client(1), client(0), back));
    EXPECT_EQ(PathMtuOf(other), 1024u);
  }
}

// The answer names a path MTU that the QP cannot have any more.
TEST_F(CmWireTest, AnMtuThatShrinksWhileTheAnswerIsAwaitedIsAConnectError) {
  if (!Start({.mtu_bytes = 9000})) return;
  ASSERT_OK_AND_ASSIGN(ListeningId listening, ListenOn(client(1), TwoHosts::Ipv4(1)));
  ASSERT_OK_AND_ASSIGN(ActiveId active, Resolve(client(0), listening.address));
  ASSERT_OK(active.id->CreateQp(nullptr, {}));
  ASSERT_OK(active.id->Connect());
  ASSERT_OK_AND_ASSIGN(auto request, ExpectEvent(*listening.channel, CmEventType::kConnectRequest));
  std::unique_ptr<CmId> passive = request->TakeId();
  Ip(0, "link set rd0 mtu 1500");
  const auto has_shrunk = [&] {
    const auto devices = client(0).GetDevices();
    return devices.ok() && MtuBytes(devices->at(*active.id->device_index()).active_mtu) == 1024;
  };
  ASSERT_TRUE(Eventually(absl::Seconds(5), has_shrunk));
  ASSERT_OK(passive->CreateQp(nullptr, {}));
  ASSERT_OK(passive->Accept());
  EXPECT_OK(ExpectEvent(*active.channel, CmEventType::kConnectError));
  EXPECT_OK(ExpectEvent(*listening.channel, CmEventType::kRejected));
}

TEST_F(CmWireTest, ADatagramOverTheRoutesMtuIsRefusedHere) {
  if (!Start({.mtu_bytes = 9000})) return;
  Ip(0, absl::StrCat("route add ", TwoHosts::Ipv4(1), "/32 dev rd0 mtu 1400"));
  ASSERT_OK_AND_ASSIGN(WiredEnd a,
                       MakeEnd(client(0), TwoHosts::Ipv4(0), {.type = QpType::kUd}));
  ASSERT_OK_AND_ASSIGN(WiredEnd b,
                       MakeEnd(client(1), TwoHosts::Ipv4(1), {.type = QpType::kUd}));
  for (WiredEnd* end : {&a, &b}) ASSERT_OK(MakeReady(*end, 1));
  ASSERT_OK_AND_ASSIGN(const AddressHandle ah, AddressHandle::Create(a.pd, WayTo(a, b)));
  const auto send = [&](size_t bytes) {
    return a.qp.PostUdSend(bytes, a.memory.data(), bytes, &a.region, kSendSignaled, ah,
                           b.qp.qpn(), 1);
  };
  ASSERT_OK(b.PostRecv(1, 0, 8192));
  ASSERT_OK(send(1024));
  ASSERT_OK_AND_ASSIGN(const Wc received, WaitForWc(b.cq));
  EXPECT_EQ(received.byte_len, kGrhBytes + 1024);
  ASSERT_OK(WaitForWc(a.cq));
  ASSERT_OK(send(1025));
  ASSERT_OK_AND_ASSIGN(const Wc refused, WaitForWc(a.cq));
  EXPECT_EQ(refused.status, WcStatus::kLocLenErr);
}

TEST_F(CmWireTest, ARouteThatGoesAfterTheAddressWasResolvedIsARouteError) {
  if (!Start({})) return;
  Ip(0, absl::StrCat("route add 10.99.0.0/24 via ", TwoHosts::Ipv4(1)));
  Ip(1, "addr add 10.99.0.1/32 dev lo");
  ASSERT_OK_AND_ASSIGN(auto channel, EventChannel::Create(client(0)));
  ASSERT_OK_AND_ASSIGN(auto id, CmId::Create(client(0), channel.get()));
  ASSERT_OK(id->ResolveAddr(Address(), *Address::Parse("10.99.0.1:7471"), absl::Seconds(2)));
  ASSERT_OK(ExpectEvent(*channel, CmEventType::kAddrResolved));
  Ip(0, "route del 10.99.0.0/24");
  ASSERT_OK(id->ResolveRoute(absl::Seconds(2)));
  ASSERT_OK_AND_ASSIGN(auto error, ExpectEvent(*channel, CmEventType::kRouteError));
  EXPECT_EQ(error->status(), -ENETUNREACH);
  EXPECT_FALSE(error->ToStatus().ok());
  // It comes back, and so may the application.
  Ip(0, absl::StrCat("route add 10.99.0.0/24 via ", TwoHosts::Ipv4(1)));
  ASSERT_OK(id->ResolveRoute(absl::Seconds(2)));
  EXPECT_OK(ExpectEvent(*channel, CmEventType::kRouteResolved));
}

}  // namespace
}  // namespace rdmad::testing
