// Addresses that are not what they seem: the same link-local one on two interfaces (case 12), and
// fifty on the link that nobody has (case 5).
#include <gtest/gtest.h>
#include <net/if.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "tests/integration/cm_pair.h"
#include "tests/integration/testbed.h"
#include "tests/support/net_namespace.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

// ---- Host 0 has fe80::1 on both of its interfaces, rd0 towards host 1 and rd1 towards host 2, which
// ---- have fe80::2 both.

class LinkLocalTest : public ::testing::Test {
 protected:
  static constexpr char kOwn[] = "fe80::1";
  static constexpr char kPeers[] = "fe80::2";

  static void SetUpTestSuite() { (void)EnterPrivateNetwork(); }

  void SetUp() override {
    if (!EnterPrivateNetwork().ok()) GTEST_SKIP() << EnterPrivateNetwork().message();
    for (Host& host : hosts_) {
      ASSERT_OK_AND_ASSIGN(NetNamespace network, NetNamespace::Create());
      host.network.emplace(std::move(network));
    }
    Join("rd0", hosts_[1]);
    Join("rd1", hosts_[2]);
    ASSERT_FALSE(HasFatalFailure());
    for (Host& host : hosts_) {
      DaemonOptions options;
      options.interfaces = {"rd0"};
      if (&host == hosts_) options.interfaces.push_back("rd1");
      options.network = &*host.network;
      host.daemon.emplace(options);
      ASSERT_OK(host.daemon->Start());
      ASSERT_OK_AND_ASSIGN(Client client, AttachTo(*host.daemon));
      host.client.emplace(std::move(client));
    }
  }

  const Client& client(int host) const { return *hosts_[host].client; }
  // `address` on that interface, as the host says it.
  std::string On(int host, const char* interface, const std::string& address) const {
    unsigned index = 0;
    hosts_[host].network->Call([&] { index = ::if_nametoindex(interface); });
    EXPECT_NE(index, 0u);
    return absl::StrCat(address, "%", index);
  }
  static absl::StatusOr<ListeningId> ListenAt(const Client& at, const std::string& address,
                                              uint16_t port, int backlog = 128) {
    ListeningId result;
    RD_ASSIGN_OR_RETURN(result.channel, EventChannel::Create(at));
    RD_ASSIGN_OR_RETURN(result.id, CmId::Create(at, result.channel.get()));
    RD_ASSIGN_OR_RETURN(const Address local, Address::Parse(WithPort(address, port)));
    RD_RETURN_IF_ERROR(result.id->BindAddr(local));
    RD_RETURN_IF_ERROR(result.id->Listen(backlog));
    result.address = result.id->local_addr();
    return result;
  }
  // Connects from host `from`; `listener` hears of it, and `other` does not.
  void ExpectConnection(int from, const std::string& to, const ListeningId& listener,
                        const ListeningId& other) {
    SCOPED_TRACE(absl::StrCat("host ", from, " to ", to));
    ASSERT_OK_AND_ASSIGN(const Address peer,
                         Address::Parse(WithPort(to, listener.id->local_addr().port)));
    QpPair pair;
    ASSERT_OK_AND_ASSIGN(pair.active, Resolve(client(from), peer));
    EXPECT_EQ(pair.active.id->local_addr().scope_id, peer.scope_id);
    ASSERT_OK(pair.active.id->CreateQp(nullptr, {}));
    ASSERT_OK(pair.active.id->Connect());
    ASSERT_OK_AND_ASSIGN(auto request,
                         ExpectEvent(*listener.channel, CmEventType::kConnectRequest));
    pair.passive = request->TakeId();
    request.reset();
    devices_.push_back(pair.passive->device_index());
    if (!listener.address.IsAny()) {
      EXPECT_EQ(pair.passive->local_addr().scope_id, listener.address.scope_id);
    }
    ASSERT_OK(pair.passive->CreateQp(nullptr, {}));
    ASSERT_OK(pair.passive->qp().PostRecv(1, nullptr, 0, nullptr));
    ASSERT_OK(pair.passive->Accept());
    ASSERT_OK(ExpectEvent(*pair.active.channel, CmEventType::kEstablished));
    ASSERT_OK(ExpectEvent(*listener.channel, CmEventType::kEstablished));
    ASSERT_OK(pair.active.id->qp().PostSend(2, nullptr, 0, nullptr, kSendSignaled));
    ASSERT_OK_AND_ASSIGN(const Wc sent, pair.active.id->GetSendComp(Slow(absl::Seconds(10))));
    EXPECT_EQ(sent.status, WcStatus::kSuccess);
    ASSERT_OK(pair.passive->GetRecvComp(Slow(absl::Seconds(10))));
    EXPECT_TRUE(absl::IsDeadlineExceeded(other.channel->GetEvent(absl::ZeroDuration()).status()));
  }

  // Of the listeners' ends of the connections.
  std::vector<std::optional<uint32_t>> devices_;

 private:
  struct Host {
    std::optional<NetNamespace> network;
    std::optional<DaemonProcess> daemon;
    std::optional<Client> client;
  };

  // A link between the first host's `interface` and rd0 of `other`.
  void Join(const std::string& interface, const Host& other) {
    ASSERT_OK(AddVeth(*hosts_[0].network, interface, *other.network, "rd0"));
    for (const Host* host : {static_cast<const Host*>(&hosts_[0]), &other}) {
      const bool is_first = host == hosts_;
      const std::string name = is_first ? interface : "rd0";
      const auto ip = [&](const std::string& what) {
        ASSERT_OK(host->network->Run(absl::StrCat("ip ", what)));
      };
      ip(absl::StrCat("link set dev ", name, " addrgenmode none"));
      ip(absl::StrCat("addr add ", is_first ? kOwn : kPeers, "/64 dev ", name, " nodad"));
      ip(absl::StrCat("link set dev ", name, " up"));
    }
  }

  Host hosts_[3];
};

TEST_F(LinkLocalTest, TheScopeDecidesWhichOfTwoPeersIsMeant) {
  ASSERT_OK_AND_ASSIGN(ListeningId one, ListenAt(client(1), On(1, "rd0", kPeers), 7471));
  ASSERT_OK_AND_ASSIGN(ListeningId two, ListenAt(client(2), On(2, "rd0", kPeers), 7471));
  ExpectConnection(0, On(0, "rd0", kPeers), one, two);
  ExpectConnection(0, On(0, "rd1", kPeers), two, one);
}

TEST_F(LinkLocalTest, TheSameAddressAndPortIsHeldOncePerInterface) {
  ASSERT_OK_AND_ASSIGN(ListeningId one, ListenAt(client(0), On(0, "rd0", kOwn), 7471));
  ASSERT_OK_AND_ASSIGN(ListeningId two, ListenAt(client(0), On(0, "rd1", kOwn), 7471));
  EXPECT_TRUE(absl::IsAlreadyExists(ListenAt(client(0), On(0, "rd1", kOwn), 7471).status()));
  EXPECT_NE(one.id->device_index(), two.id->device_index());
  ExpectConnection(1, On(1, "rd0", kOwn), one, two);
  ExpectConnection(2, On(2, "rd0", kOwn), two, one);
}

TEST_F(LinkLocalTest, AWildcardListenerIsReachedThroughEveryDevice) {
  ASSERT_OK_AND_ASSIGN(ListeningId any, ListenAt(client(0), "::", 7471));
  ASSERT_OK_AND_ASSIGN(ListeningId other, ListenAt(client(0), On(0, "rd0", kOwn), 7472));
  ExpectConnection(1, On(1, "rd0", kOwn), any, other);
  ExpectConnection(2, On(2, "rd0", kOwn), any, other);
  ASSERT_EQ(devices_.size(), 2u);
  EXPECT_NE(devices_[0], devices_[1]);
}

// Its backlog is one for all of them: what comes beyond it is asked again, and gets in.
TEST_F(LinkLocalTest, AWildcardListenerHasOneBacklogForAllDevices) {
  ASSERT_OK_AND_ASSIGN(ListeningId any, ListenAt(client(0), "::", 7471, 1));
  ActiveId active[2];
  const auto connect = [&](int host) -> absl::Status {
    RD_ASSIGN_OR_RETURN(const Address peer, Address::Parse(WithPort(On(host, "rd0", kOwn), 7471)));
    RD_ASSIGN_OR_RETURN(active[host - 1], Resolve(client(host), peer));
    RD_RETURN_IF_ERROR(active[host - 1].id->CreateQp(nullptr, {}));
    return active[host - 1].id->Connect();
  };
  const auto take = [&]() -> absl::StatusOr<std::unique_ptr<CmId>> {
    RD_ASSIGN_OR_RETURN(auto request, ExpectEvent(*any.channel, CmEventType::kConnectRequest));
    return request->TakeId();
  };
  ASSERT_OK(connect(1));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<CmId> first, take());
  ASSERT_OK(connect(2));
  EXPECT_TRUE(absl::IsDeadlineExceeded(any.channel->GetEvent(absl::Milliseconds(500)).status()))
      << "one request is not answered yet";
  ASSERT_OK(first->CreateQp(nullptr, {}));
  ASSERT_OK(first->Accept());
  ASSERT_OK(ExpectEvent(*active[0].channel, CmEventType::kEstablished));
  ASSERT_OK(ExpectEvent(*any.channel, CmEventType::kEstablished));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<CmId> second, take());
  EXPECT_NE(first->device_index(), second->device_index());
  ASSERT_OK(second->CreateQp(nullptr, {}));
  ASSERT_OK(second->Accept());
  ASSERT_OK(ExpectEvent(*active[1].channel, CmEventType::kEstablished));
}

TEST_F(LinkLocalTest, WithoutAScopeItIsRefusedAndSaysSo) {
  for (const char* address : {kOwn, kPeers}) {
    SCOPED_TRACE(address);
    ASSERT_OK_AND_ASSIGN(const Address bare, Address::Parse(WithPort(address, 7471)));
    ASSERT_OK_AND_ASSIGN(const auto channel, EventChannel::Create(client(0)));
    ASSERT_OK_AND_ASSIGN(const auto id, CmId::Create(client(0), channel.get()));
    for (const absl::Status& refused :
         {id->BindAddr(bare), id->ResolveAddr(Address(), bare, absl::Seconds(1))}) {
      EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
      EXPECT_NE(refused.message().find("scope"), absl::string_view::npos) << refused;
    }
  }
}

// ---- Fifty that nobody has

class DeadPeersTest : public TwoHostsTest {};

// What tells that nobody waits for anybody is the order of the events, not a clock.
TEST_F(DeadPeersTest, FiftyOfThemDoNotHoldUpALiveOne) {
  if (!Start({})) return;
  constexpr int kDead = 50;
  for (const bool ipv6 : {false, true}) {
    SCOPED_TRACE(ipv6 ? "IPv6" : "IPv4");
    ASSERT_OK_AND_ASSIGN(
        ListeningId listening,
        ListenOn(client(1), ipv6 ? TwoHosts::Ipv6(1) : TwoHosts::Ipv4(1)));
    ASSERT_OK_AND_ASSIGN(const auto channel, EventChannel::Create(client(0)));
    std::vector<std::unique_ptr<CmId>> dead;
    for (int i = 0; i < kDead; ++i) {
      const std::string nobody = absl::StrCat(ipv6 ? "fd77::" : "10.77.0.", 100 + i);
      ASSERT_OK_AND_ASSIGN(const Address address, Address::Parse(WithPort(nobody, 7471)));
      ASSERT_OK_AND_ASSIGN(auto id, CmId::Create(client(0), channel.get()));
      ASSERT_OK(id->ResolveAddr(Address(), address, absl::Seconds(2)));
      dead.push_back(std::move(id));
    }
    ASSERT_OK_AND_ASSIGN(const auto live, CmId::Create(client(0), channel.get()));
    ASSERT_OK(live->ResolveAddr(Address(), listening.address, absl::Seconds(2)));
    ASSERT_OK(ExpectEvent(*channel, CmEventType::kAddrResolved));
    ASSERT_OK(live->ResolveRoute(absl::Seconds(2)));
    ASSERT_OK(ExpectEvent(*channel, CmEventType::kRouteResolved));
    ASSERT_OK(live->CreateQp(nullptr, {}));
    ASSERT_OK(live->Connect());
    ASSERT_OK_AND_ASSIGN(auto request,
                         ExpectEvent(*listening.channel, CmEventType::kConnectRequest));
    const std::unique_ptr<CmId> passive = request->TakeId();
    request.reset();
    ASSERT_OK(passive->CreateQp(nullptr, {}));
    ASSERT_OK(passive->Accept());
    ASSERT_OK(ExpectEvent(*channel, CmEventType::kEstablished));

    std::set<const CmId*> failed;
    for (int i = 0; i < kDead; ++i) {
      ASSERT_OK_AND_ASSIGN(const auto event, ExpectEvent(*channel, CmEventType::kAddrError));
      EXPECT_LT(event->status(), 0);
      failed.insert(event->id());
    }
    EXPECT_EQ(failed.size(), dead.size()) << "each once";
    EXPECT_FALSE(failed.contains(live.get()));
    EXPECT_TRUE(absl::IsDeadlineExceeded(channel->GetEvent(absl::Milliseconds(200)).status()));
  }
}

}  // namespace
}  // namespace rdmad::testing
