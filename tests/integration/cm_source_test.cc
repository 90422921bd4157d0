// Which of a host's addresses a connection comes from (case 12): the kernel's route decides, and the
// queue pairs of both ends have the GID of just that address.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rdmad/rdmad.h"
#include "tests/integration/cm_pair.h"
#include "tests/integration/testbed.h"
#include "tests/support/net_namespace.h"
#include "tests/support/status_testing.h"
#include "tests/support/two_hosts.h"

namespace rdmad::testing {
namespace {

// A second network of host 1, which host 0 reaches by a route.
constexpr char kFarIpv4[] = "10.99.0.1";
constexpr char kFarIpv6[] = "fd99::1";

class CmSourceTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { (void)EnterPrivateNetwork(); }

  void SetUp() override {
    if (!EnterPrivateNetwork().ok()) GTEST_SKIP() << EnterPrivateNetwork().message();
    ASSERT_OK_AND_ASSIGN(hosts_, TwoHosts::Create());
    Ip(0, absl::StrCat("route add 10.99.0.0/24 via ", TwoHosts::Ipv4(1)));
    Ip(0, absl::StrCat("-6 route add fd99::/64 via ", TwoHosts::Ipv6(1)));
    Ip(1, absl::StrCat("addr add ", kFarIpv4, "/24 dev rd0"));
    Ip(1, absl::StrCat("addr add ", kFarIpv6, "/64 dev rd0 nodad"));
  }
  void Ip(int host, const std::string& what) {
    ASSERT_OK(hosts_->host(host).Run(absl::StrCat("ip ", what)));
  }
  // Daemons that serve all that rd0 has; so many GIDs on host 0, and two more on host 1.
  void Start(size_t gids, size_t gids_of_peer) {
    for (int i = 0; i < 2; ++i) {
      DaemonOptions options;
      options.interfaces = {TwoHosts::kInterface};
      options.network = &hosts_->host(i);
      daemons_[i].emplace(options);
      ASSERT_OK(daemons_[i]->Start());
      ASSERT_OK_AND_ASSIGN(Client client, AttachTo(*daemons_[i]));
      clients_[i].emplace(client);
      const size_t wanted = i == 0 ? gids : gids_of_peer;
      ASSERT_TRUE(Eventually(absl::Seconds(10), [&] { return GidsOf(i).size() == wanted; }));
    }
  }
  std::vector<Gid> GidsOf(int host) {
    const auto devices = clients_[host]->GetDevices();
    return devices.ok() && devices->size() == 1 ? devices->front().gids : std::vector<Gid>();
  }
  // The address that a QP's packets come from.
  std::string SourceOf(int host, const QueuePair& qp) {
    const absl::StatusOr<QpAttr> attr = qp.Query();
    if (!attr.ok()) return attr.status().ToString();
    for (const Gid& gid : GidsOf(host)) {
      if (gid.index == attr->ah.sgid_index) return gid.text;
    }
    return "no such GID";
  }
  void ExpectSource(const std::string& peer, const std::string& source) {
    SCOPED_TRACE(peer);
    ASSERT_OK_AND_ASSIGN(QpPair pair, ConnectQps(*clients_[0], *clients_[1], peer));
    EXPECT_TRUE(absl::StrContains(pair.active.id->local_addr().ToString(), source))
        << pair.active.id->local_addr().ToString();
    EXPECT_EQ(SourceOf(0, pair.active.id->qp()), source);
    EXPECT_EQ(SourceOf(1, pair.passive->qp()), peer);
    ASSERT_OK(pair.passive->qp().PostRecv(1, nullptr, 0, nullptr));
    ASSERT_OK(pair.active.id->qp().PostSend(2, nullptr, 0, nullptr, kSendSignaled));
    ASSERT_OK_AND_ASSIGN(const Wc sent, WaitForWc(pair.active_cq));
    EXPECT_EQ(sent.status, WcStatus::kSuccess);
  }

 private:
  std::unique_ptr<TwoHosts> hosts_;
  std::optional<DaemonProcess> daemons_[2];
  std::optional<Client> clients_[2];
};

TEST_F(CmSourceTest, IsTheRoutesWhereAHostHasAllKindsAndNeverLinkLocalForARoutedPeer) {
  ASSERT_NO_FATAL_FAILURE(Start(3, 5));
  ExpectSource(TwoHosts::Ipv4(1), TwoHosts::Ipv4(0));
  ExpectSource(TwoHosts::Ipv6(1), TwoHosts::Ipv6(0));
  ExpectSource(kFarIpv4, TwoHosts::Ipv4(0));
  ExpectSource(kFarIpv6, TwoHosts::Ipv6(0));
  // Another one by a route that says so.
  ASSERT_NO_FATAL_FAILURE(Ip(0, "addr add fd77::a/64 dev rd0 nodad"));
  ASSERT_TRUE(Eventually(absl::Seconds(10), [&] { return GidsOf(0).size() == 4; }));
  ASSERT_NO_FATAL_FAILURE(
      Ip(0, absl::StrCat("-6 route replace fd99::/64 via ", TwoHosts::Ipv6(1), " src fd77::a")));
  ExpectSource(kFarIpv6, "fd77::a");
}

TEST_F(CmSourceTest, NothingButGlobalIpv6IsEnough) {
  for (int host = 0; host < 2; ++host) {
    ASSERT_NO_FATAL_FAILURE(Ip(host, "-4 addr flush dev rd0"));
    ASSERT_NO_FATAL_FAILURE(Ip(host, "-6 addr flush dev rd0 scope link"));
  }
  ASSERT_NO_FATAL_FAILURE(Start(1, 2));
  ExpectSource(TwoHosts::Ipv6(1), TwoHosts::Ipv6(0));
  ExpectSource(kFarIpv6, TwoHosts::Ipv6(0));
}

}  // namespace
}  // namespace rdmad::testing
