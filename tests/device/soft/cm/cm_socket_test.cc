// The connection managers of two daemons over real sockets: what the fake network of the other
// tests takes for granted.
#include <memory>
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "tests/device/soft/cm/cm_testing.h"
#include "tests/device/soft/soft_host.h"
#include "tests/device/soft/test_net.h"

namespace rdmad::soft {
namespace {

using device::PortSpace;
using rdmad::testing::TestPort;
using testing::MonotonicNow;
using testing::SoftHost;
using testing::TurnUntil;

struct SocketHost {
  explicit SocketHost(const std::string& address) : soft({address}, TestPort()) {
    CmOptions options;
    options.clock = MonotonicNow;
    options.seed = 1;
    manager = SoftConnectionManager::Create(soft.mads.get(), soft.devices.get(), options).value();
  }
  // The id of an application on this host.
  std::unique_ptr<TestId> MakeId(PortSpace space) {
    auto id = std::make_unique<TestId>(
        std::unique_ptr<device::CmEndpoint>(manager->CreateEndpoint(space, nullptr)));
    return id;
  }

  SoftHost soft;
  std::unique_ptr<SoftConnectionManager> manager;
};

class CmSocket : public ::testing::TestWithParam<PortSpace> {
 protected:
  void SetUp() override {
    near_.emplace("127.0.0.2");
    far_.emplace("127.0.0.3");
    ASSERT_EQ(near_->soft.devices->devices().size(), 1u);
    ASSERT_EQ(far_->soft.devices->devices().size(), 1u);
    client_ = near_->MakeId(GetParam());
    server_ = far_->MakeId(GetParam());
  }
  template <typename Done>
  bool Await(Done done) {
    return TurnUntil({&near_->soft, &far_->soft}, [&] {
      near_->manager->Poll(MonotonicNow());
      far_->manager->Poll(MonotonicNow());
      return done();
    });
  }

  std::optional<SocketHost> near_;
  std::optional<SocketHost> far_;
  std::unique_ptr<TestId> client_;
  std::unique_ptr<TestId> server_;
};

INSTANTIATE_TEST_SUITE_P(PortSpaces, CmSocket, ::testing::Values(PortSpace::kTcp, PortSpace::kUdp),
                         [](const auto& test) {
                           return test.param == PortSpace::kTcp ? "Tcp" : "Udp";
                         });

TEST_P(CmSocket, RequestIsAcceptedAndTheTypeOfServiceSeen) {
  ListenOn(server_.get(), Address("0.0.0.0:7000"), AcceptIt);
  ASSERT_TRUE((*client_)->SetOption(0, std::vector<uint8_t>{0x28}).ok());
  ConnectTo(client_.get(), Address("127.0.0.3:7000"), Param(0x11, {1, 2, 3}));
  ASSERT_TRUE(Await([&] { return std::string((*client_)->state_name()) == "established"; }))
      << client_->History();
  ASSERT_EQ(server_->requests.size(), 1u);
  const SeenEvent& request = *server_->Find(CmEventType::kConnectRequest);
  EXPECT_EQ(request.param.private_data.at(2), 3);
  EXPECT_EQ((*client_)->remote_qpn(), 0x22u);
  EXPECT_EQ((*server_->requests[0])->peer(), (*client_)->local());
  if (GetParam() == PortSpace::kTcp) return;
  EXPECT_EQ(request.av.dest, IpAddress::FromV4(127, 0, 0, 2));
  EXPECT_EQ(request.av.traffic_class, 0x28) << "of the packet";
  const device::AddressVector& av = client_->Find(CmEventType::kEstablished)->av;
  EXPECT_EQ(av.dest, IpAddress::FromV4(127, 0, 0, 3));
  EXPECT_EQ(av.sgid_index, near_->soft.device().Gids().at(0).index);
}

TEST_P(CmSocket, NobodyListens) {
  ConnectTo(client_.get(), Address("127.0.0.3:7000"));
  const bool tcp = GetParam() == PortSpace::kTcp;
  const CmEventType refused = tcp ? CmEventType::kRejected : CmEventType::kUnreachable;
  ASSERT_TRUE(Await([&] { return client_->Saw(refused); })) << client_->History();
  EXPECT_EQ(client_->Find(refused)->status, tcp ? 8 : 1);
}

TEST_P(CmSocket, GroupIsResolvedByADatagramIdOfALoopbackDevice) {
  if (GetParam() == PortSpace::kTcp) GTEST_SKIP() << "only datagrams go to groups";
  const SocketAddress group{IpAddress::FromV4(239, 1, 2, 3), 0};
  ASSERT_TRUE((*client_)->ResolveAddr(Address("127.0.0.2:0"), group, 100).ok());
  ASSERT_TRUE(Await([&] { return client_->Saw(CmEventType::kAddrResolved); }))
      << client_->History();
  ASSERT_TRUE((*client_)->JoinMulticast(group, 0, 5).ok());
  ASSERT_TRUE(Await([&] { return client_->Saw(CmEventType::kMulticastJoin); }));
  EXPECT_EQ(client_->Find(CmEventType::kMulticastJoin)->av.dest, group.ip);
}

}  // namespace
}  // namespace rdmad::soft
