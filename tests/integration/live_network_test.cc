// A network that changes while daemons and applications use it (cases 14 and 32): addresses that
// come and go, links that go down, MTUs, interfaces that are removed and come back.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/base/unique_fd.h"
#include "tests/integration/cm_pair.h"
#include "tests/integration/counters.h"
#include "tests/integration/testbed.h"
#include "tests/integration/traffic.h"
#include "tests/support/daemon_process.h"
#include "tests/support/net_namespace.h"
#include "tests/support/raw_client.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"
#include "tests/support/two_hosts.h"

namespace rdmad::testing {
namespace {

// ibv_event_type.
constexpr uint32_t kDeviceFatal = 8;
constexpr uint32_t kPortActive = 9;
constexpr uint32_t kPortError = 10;
constexpr uint32_t kGidChange = 18;
constexpr uint32_t kActive = 4;  // ibv_port_state

// More addresses, which the hosts do not have at the start.
std::string MoreIpv4(int index) {
  return absl::StrCat("10.78.0.", index + 1);
}
std::string MoreIpv6(int index) {
  return absl::StrCat("fd78::", index + 1);
}

// Two daemons that serve the interface TwoHosts::kInterface, whatever it has.
class LiveNetworkTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { (void)EnterPrivateNetwork(); }

  void SetUp() override {
    if (!EnterPrivateNetwork().ok()) GTEST_SKIP() << EnterPrivateNetwork().message();
    ASSERT_OK_AND_ASSIGN(hosts_, TwoHosts::Create());
    for (int i = 0; i < 2; ++i) {
      daemons_[i] = std::make_unique<DaemonProcess>(DaemonOptions{
          .interfaces = {TwoHosts::kInterface}, .network = &hosts_->host(i), .log_level = "info"});
      ASSERT_OK(daemons_[i]->Start());
      ASSERT_OK_AND_ASSIGN(Client client, AttachTo(*daemons_[i], absl::StrCat("app", i)));
      clients_[i] = std::make_unique<Client>(std::move(client));
      ASSERT_OK_AND_ASSIGN(RawClient observer, RawClient::Attach(daemons_[i]->run_dir()));
      observers_[i] = std::make_unique<RawClient>(std::move(observer));
    }
    // From now on the applications have the device open, and hear of it.
    ExpectTraffic(TwoHosts::Ipv4(1));
    for (int i = 0; i < 2; ++i) {
      // The kernel's own link-local address is the third.
      ASSERT_TRUE(Eventually(absl::Seconds(10), [&] { return Device(i)->gids.size() == 3; }));
      ASSERT_TRUE(Eventually(absl::Seconds(10), [&] {
        baseline_[i] = Counts(i);
        return baseline_[i].find("cqs") == std::string::npos &&
               baseline_[i].find("cm_ids") == std::string::npos;
      })) << baseline_[i];
    }
  }

  // Without the memory of rings, which a session keeps for its next ones.
  std::string Counts(int host) {
    const absl::StatusOr<std::string> counts = CountObjects(*observers_[host]);
    EXPECT_OK(counts);
    // (Not by std::regex, which GCC 12 takes for uninitialized under AddressSanitizer.)
    std::string text = counts.value_or("");
    if (const size_t begin = text.find("arena_bytes: "); begin != std::string::npos) {
      text.erase(begin, text.find(' ', begin + sizeof("arena_bytes: ")) + 1 - begin);
    }
    return text;
  }

  void Ip(int host, const std::string& what) {
    EXPECT_OK(hosts_->host(host).Run(absl::StrCat("ip ", what)));
  }
  // Adds the addresses that the hosts do not have at the start.
  void AddMore(int host) {
    Ip(host, absl::StrCat("addr add ", MoreIpv4(host), "/24 dev ", TwoHosts::kInterface));
    Ip(host, absl::StrCat("addr add ", MoreIpv6(host), "/64 dev ", TwoHosts::kInterface, " nodad"));
  }

  // The host's one device, if there is one.
  std::optional<DeviceInfo> Device(int host) {
    absl::StatusOr<std::vector<DeviceInfo>> devices = clients_[host]->GetDevices();
    EXPECT_OK(devices);
    if (!devices.ok() || devices->size() != 1) return std::nullopt;
    return devices->front();
  }
  // Nothing if the address is no GID.
  std::optional<uint32_t> GidIndex(int host, const std::string& address) {
    const std::optional<DeviceInfo> device = Device(host);
    if (!device) return std::nullopt;
    for (const Gid& gid : device->gids) {
      if (gid.text == address) return gid.index;
    }
    return std::nullopt;
  }
  // Case 32: within a second.
  bool HasGid(int host, const std::string& address, bool there = true) {
    return Eventually(absl::Seconds(1), [&] { return GidIndex(host, address).has_value() == there; });
  }
  // The kernel looks after carriers once a second.
  bool HasPort(int host, bool active) {
    return Eventually(absl::Seconds(3), [&] {
      const std::optional<DeviceInfo> device = Device(host);
      return device && (device->port_state == kActive) == active;
    });
  }
  bool HasMtu(int host, uint32_t bytes) {
    return Eventually(absl::Seconds(1), [&] {
      const std::optional<DeviceInfo> device = Device(host);
      return device && MtuBytes(device->active_mtu) == bytes;
    });
  }

  absl::Status ExpectAsync(int host, uint32_t type) {
    return NextEvent(client(host), type).status();
  }

  void ExpectTraffic(const std::string& address) {
    SCOPED_TRACE(address);
    ASSERT_OK_AND_ASSIGN(Connection connection, ConnectApps(client(0), client(1), address));
    ASSERT_OK(connection.active.SendCopy("there"));
    ASSERT_OK_AND_ASSIGN(Buffer received, connection.passive.Receive(Slow(absl::Seconds(5))));
    EXPECT_EQ(received.text(), "there");
    ASSERT_OK(connection.passive.SendCopy("and back"));
    ASSERT_OK_AND_ASSIGN(Buffer answer, connection.active.Receive(Slow(absl::Seconds(5))));
    EXPECT_EQ(answer.text(), "and back");
  }

  // What the applications made is gone again.
  void ExpectBaseline() {
    for (int i = 0; i < 2; ++i) {
      std::string counts;
      EXPECT_TRUE(Eventually(absl::Seconds(10), [&] {
        counts = Counts(i);
        return counts == baseline_[i];
      })) << counts << "\n" << baseline_[i];
    }
  }

  const Client& client(int index) const { return *clients_[index]; }
  DaemonProcess& Daemon(int index) { return *daemons_[index]; }
  TwoHosts& hosts() { return *hosts_; }

 private:
  std::unique_ptr<TwoHosts> hosts_;
  std::unique_ptr<DaemonProcess> daemons_[2];
  std::unique_ptr<Client> clients_[2];
  std::unique_ptr<RawClient> observers_[2];
  std::string baseline_[2];
};

// ---- addresses

TEST_F(LiveNetworkTest, AnAddressThatComesIsServed) {
  for (int i = 0; i < 2; ++i) AddMore(i);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(HasGid(i, MoreIpv4(i)));
    EXPECT_TRUE(HasGid(i, MoreIpv6(i)));
    EXPECT_OK(ExpectAsync(i, kGidChange));
  }
  ExpectTraffic(MoreIpv4(1));
  ExpectTraffic(MoreIpv6(1));
  ExpectBaseline();
}

TEST_F(LiveNetworkTest, GidsFollowAddressesAndKeepTheirIndices) {
  AddMore(0);
  ASSERT_TRUE(HasGid(0, MoreIpv6(0)));
  const auto first = GidIndex(0, TwoHosts::Ipv4(0));
  const auto middle = GidIndex(0, MoreIpv4(0));
  const auto last = GidIndex(0, MoreIpv6(0));
  Ip(0, absl::StrCat("addr del ", MoreIpv4(0), "/24 dev ", TwoHosts::kInterface));
  EXPECT_TRUE(HasGid(0, MoreIpv4(0), false));
  EXPECT_EQ(GidIndex(0, TwoHosts::Ipv4(0)), first);
  EXPECT_EQ(GidIndex(0, MoreIpv6(0)), last);
  Ip(0, absl::StrCat("addr add ", MoreIpv4(0), "/24 dev ", TwoHosts::kInterface));
  EXPECT_TRUE(HasGid(0, MoreIpv4(0)));
  EXPECT_EQ(GidIndex(0, MoreIpv4(0)), middle);
}

TEST_F(LiveNetworkTest, AnIpv6AddressComesWhenDuplicateAddressDetectionIsDone) {
  const absl::Time start = absl::Now();
  Ip(0, absl::StrCat("addr add ", MoreIpv6(0), "/64 dev ", TwoHosts::kInterface));
  EXPECT_TRUE(Eventually(absl::Seconds(8), [&] { return GidIndex(0, MoreIpv6(0)).has_value(); }));
  EXPECT_GT(absl::Now() - start, absl::Milliseconds(500)) << "it was not usable before";
}

TEST_F(LiveNetworkTest, QpsOfAnAddressThatGoesRunOutOfRetries) {
  for (int i = 0; i < 2; ++i) AddMore(i);
  for (const std::string& to : {MoreIpv4(1), MoreIpv6(1)}) {
    SCOPED_TRACE(to);
    ASSERT_TRUE(HasGid(0, to == MoreIpv4(1) ? MoreIpv4(0) : MoreIpv6(0)));
    ASSERT_TRUE(HasGid(1, to));
    QpPairOptions options;
    options.active_param.retry_count = 2;
    ASSERT_OK_AND_ASSIGN(QpPair pair, ConnectQps(client(0), client(1), to, options));
    const std::string from = to == MoreIpv4(1) ? MoreIpv4(0) + "/24" : MoreIpv6(0) + "/64";

    Ip(0, absl::StrCat("addr del ", from, " dev ", TwoHosts::kInterface));

    EXPECT_OK(ExpectEvent(*pair.active.channel, CmEventType::kAddrChange));
    ASSERT_OK(pair.active.id->qp().PostSend(1, nullptr, 0, nullptr, kSendSignaled));
    ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(pair.active_cq, absl::Seconds(30)));
    EXPECT_EQ(wc.status, WcStatus::kRetryExcErr);
  }
  ExpectBaseline();
  ExpectTraffic(TwoHosts::Ipv4(1));
}

TEST_F(LiveNetworkTest, AnAddressThatComesBackSoonIsNotMissed) {
  for (int i = 0; i < 2; ++i) AddMore(i);
  ASSERT_TRUE(HasGid(0, MoreIpv4(0)) && HasGid(1, MoreIpv4(1)));
  ASSERT_OK_AND_ASSIGN(Connection connection, ConnectApps(client(0), client(1), MoreIpv4(1)));
  TrafficThread one(client(0), connection.active, {.seed = 1});
  TrafficThread two(client(1), connection.passive, {.seed = 2});
  for (int round = 0; round < 5; ++round) {
    Ip(0, absl::StrCat("addr del ", MoreIpv4(0), "/24 dev ", TwoHosts::kInterface));
    absl::SleepFor(absl::Milliseconds(round * 20));
    Ip(0, absl::StrCat("addr add ", MoreIpv4(0), "/24 dev ", TwoHosts::kInterface));
    EXPECT_TRUE(HasGid(0, MoreIpv4(0)));
    const uint64_t before = one.counts().received;
    EXPECT_TRUE(Eventually(absl::Seconds(10), [&] { return one.counts().received > before + 5; }));
  }
  EXPECT_OK(one.Stop());
  EXPECT_OK(two.Stop());
}

// ---- links

TEST_F(LiveNetworkTest, TheLinkIsThePort) {
  ASSERT_TRUE(HasPort(0, true));
  ASSERT_OK_AND_ASSIGN(Connection connection,
                       ConnectApps(client(0), client(1), TwoHosts::Ipv4(1)));
  Ip(0, absl::StrCat("link set ", TwoHosts::kInterface, " down"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(HasPort(i, false)) << "no carrier on the other side either";
    EXPECT_OK(ExpectAsync(i, kPortError));
  }
  ASSERT_OK(connection.active.SendCopy("through the outage"));
  Ip(0, absl::StrCat("link set ", TwoHosts::kInterface, " up"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(HasPort(i, true));
    EXPECT_OK(ExpectAsync(i, kPortActive));
  }
  ASSERT_OK_AND_ASSIGN(Buffer received, connection.passive.Receive(Slow(absl::Seconds(10))));
  EXPECT_EQ(received.text(), "through the outage");
}

TEST_F(LiveNetworkTest, NewConnectionsHaveTheNewMtu) {
  const auto path_mtu = [this] {
    absl::StatusOr<QpPair> pair = ConnectQps(client(0), client(1), TwoHosts::Ipv4(1));
    EXPECT_OK(pair);
    if (!pair.ok()) return 0u;
    const absl::StatusOr<QpAttr> active = pair->active.id->qp().Query();
    const absl::StatusOr<QpAttr> passive = pair->passive->qp().Query();
    EXPECT_EQ(active->path_mtu, passive->path_mtu);
    return MtuBytes(active->path_mtu);
  };
  EXPECT_EQ(path_mtu(), 1024u);
  ASSERT_OK_AND_ASSIGN(Connection before, ConnectApps(client(0), client(1), TwoHosts::Ipv4(1)));
  // One end is not enough: the smaller one counts, whichever end connects.
  Ip(0, absl::StrCat("link set ", TwoHosts::kInterface, " mtu 9000"));
  ASSERT_TRUE(HasMtu(0, 4096));
  EXPECT_EQ(path_mtu(), 1024u);
  Ip(1, absl::StrCat("link set ", TwoHosts::kInterface, " mtu 9000"));
  ASSERT_TRUE(HasMtu(1, 4096));
  EXPECT_EQ(path_mtu(), 4096u);
  Ip(0, absl::StrCat("link set ", TwoHosts::kInterface, " mtu 1500"));
  ASSERT_TRUE(HasMtu(0, 1024));
  EXPECT_EQ(path_mtu(), 1024u);
  // A connection of before goes on.
  ASSERT_OK(before.active.SendCopy("still there"));
  ASSERT_OK_AND_ASSIGN(Buffer received, before.passive.Receive(Slow(absl::Seconds(5))));
  EXPECT_EQ(received.text(), "still there");
}

TEST_F(LiveNetworkTest, PacketsOverAnMtuThatShrankAreCountedAndRunOutOfRetries) {
  for (int i = 0; i < 2; ++i) {
    Ip(i, absl::StrCat("link set ", TwoHosts::kInterface, " mtu 9000"));
    ASSERT_TRUE(HasMtu(i, 4096));
  }
  QpPairOptions options;
  options.active_param.retry_count = 2;
  ASSERT_OK_AND_ASSIGN(QpPair pair,
                       ConnectQps(client(0), client(1), TwoHosts::Ipv4(1), options));
  ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(client(0), 1 << 16));
  ASSERT_OK_AND_ASSIGN(Buffer message, pool.Allocate(16384));
  ASSERT_OK_AND_ASSIGN(MemoryRegion region,
                       pair.active.id->RegMsgs(message.data(), message.size()));
  Ip(0, absl::StrCat("link set ", TwoHosts::kInterface, " mtu 1500"));
  ASSERT_TRUE(HasMtu(0, 1024));

  ASSERT_OK(pair.active.id->qp().PostSend(1, message.data(), 16384, &region, kSendSignaled));
  ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(pair.active_cq, absl::Seconds(30)));

  EXPECT_EQ(wc.status, WcStatus::kRetryExcErr);
  ASSERT_OK_AND_ASSIGN(const Counters counters, Counters::Of(Daemon(0)));
  EXPECT_GE(counters.Get("udp_tx_lost_too_big"), 4u);
  EXPECT_LT(counters.Get("udp_tx_lost_too_big"), 1000u) << "it does not try without end";
}

// ---- interfaces

TEST_F(LiveNetworkTest, AnInterfaceThatIsRemovedUnderTrafficTakesItsDevice) {
  {
    ASSERT_OK_AND_ASSIGN(Client idle, AttachTo(Daemon(0), "idle"));
    ASSERT_OK_AND_ASSIGN(QpPair pair, ConnectQps(client(0), client(1), TwoHosts::Ipv6(1)));
    ASSERT_OK_AND_ASSIGN(Connection connection,
                         ConnectApps(client(0), client(1), TwoHosts::Ipv4(1)));
    TrafficThread one(client(0), connection.active, {.seed = 1});
    TrafficThread two(client(1), connection.passive, {.seed = 2});
    ASSERT_TRUE(Eventually(absl::Seconds(10), [&] { return two.counts().received > 20; }));
    ASSERT_OK(pair.active.id->qp().PostRecv(7, nullptr, 0, nullptr));
    const std::optional<DeviceInfo> before = Device(0);

    Ip(0, absl::StrCat("link del ", TwoHosts::kInterface));  // both ends of the veth go

    for (int i = 0; i < 2; ++i) EXPECT_OK(ExpectAsync(i, kDeviceFatal));
    EXPECT_OK(idle.GetAsyncEvent(Slow(absl::Seconds(5))));
    EXPECT_OK(ExpectEvent(*pair.active.channel, CmEventType::kDeviceRemoval));
    ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(pair.active_cq));
    EXPECT_EQ(wc.status, WcStatus::kWrFlushErr);
    EXPECT_FALSE(one.Join().ok());
    EXPECT_FALSE(two.Join().ok());
    EXPECT_TRUE(Eventually(absl::Seconds(1), [&] { return !Device(0) && !Device(1); }));

    // It comes back, and is a new device.
    ASSERT_OK(AddVeth(hosts().host(0), TwoHosts::kInterface, hosts().host(1),
                      TwoHosts::kInterface));
    for (int i = 0; i < 2; ++i) {
      Ip(i, absl::StrCat("link set ", TwoHosts::kInterface, " up"));
      Ip(i, absl::StrCat("addr add ", TwoHosts::Ipv4(i), "/24 dev ", TwoHosts::kInterface));
      Ip(i, absl::StrCat("addr add ", TwoHosts::Ipv6(i), "/64 dev ", TwoHosts::kInterface,
                         " nodad"));
      ASSERT_TRUE(HasGid(i, TwoHosts::Ipv4(i)) && HasGid(i, TwoHosts::Ipv6(i)));
    }
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(HasPort(i, true));
    EXPECT_NE(Device(0)->index, before->index);
    EXPECT_EQ(Device(0)->name, before->name);
    ExpectTraffic(TwoHosts::Ipv4(1));
    ExpectTraffic(TwoHosts::Ipv6(1));
  }
  ExpectBaseline();
}

// ---- a port that something else has

TEST(LiveNetwork, APortThatWasTakenIsServedOnceItIsFree) {
  if (!EnterPrivateNetwork().ok()) GTEST_SKIP() << EnterPrivateNetwork().message();
  UniqueFd other(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(4791);
  address.sin_addr.s_addr = htonl(0x7f000002);
  ASSERT_EQ(::bind(other.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  DaemonProcess daemon({.addresses = {"127.0.0.2"}, .log_level = "info"});
  ASSERT_OK(daemon.Start());
  ASSERT_OK_AND_ASSIGN(Client client, AttachTo(daemon));
  EXPECT_TRUE(client.GetDevices()->empty());
  EXPECT_NE(daemon.Log().find("UDP port 4791 on 127.0.0.2"), std::string::npos);
  EXPECT_NE(daemon.Log().find("ss -aunp"), std::string::npos) << "what to do";
  other.Reset();
  EXPECT_TRUE(Eventually(absl::Seconds(8), [&] { return client.GetDevices()->size() == 1; }));
}

}  // namespace
}  // namespace rdmad::testing
