// Datagrams between our soft device and the kernel's: connection management for UD (SIDR) with udaddy(1), and multicast
// groups with mckey(1).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/base/status_macros.h"
#include "rdmad/rdmad.h"
#include "tests/support/child_process.h"
#include "tests/support/file.h"
#include "tests/support/status_testing.h"
#include "tests/vm/bad_network.h"
#include "tests/vm/datagrams.h"
#include "tests/vm/rxe_bed.h"

namespace rdmad::testing {
namespace {

[[maybe_unused]] const RxeBed& kBed = RxeBed::Get();

constexpr int kUdaddyPort = 7174;
constexpr int kConnections = 3;
constexpr int kMessages = 10;

struct Case {
  const char* name;
  Addresses addresses;
  size_t size_bytes;
};

// Cut to one packet, where the path MTU is not 4096.
constexpr std::array kCases = {
    Case{"Small", kIpv4, 100},
    Case{"FullPacket", kIpv4, 4096},
    Case{"Ipv6", kIpv6, 1001},
};

class RxeUdaddy : public RxeInterop, public ::testing::WithParamInterface<Case> {
 protected:
  static size_t Size() { return InOnePacket(GetParam().size_bytes); }
  std::string Options() const {
    return absl::StrCat(" -c ", kConnections, " -C ", kMessages, " -S ", Size());
  }
  absl::StatusOr<std::unique_ptr<CmId>> Connected(const Address& peer, std::optional<Datagrams>* datagrams);
};

TEST_P(RxeUdaddy, KernelConnectsAndWeAnswer) {
  const Case& c = GetParam();
  ASSERT_OK_AND_ASSIGN(const Address address, Address::Parse(WithPort(c.addresses.ours, kUdaddyPort)));
  ASSERT_OK_AND_ASSIGN(const auto listener, CmId::Create(client(), nullptr, PortSpace::kUdp));
  ASSERT_OK(listener->BindAddr(address));
  ASSERT_OK(listener->Listen());
  ASSERT_OK_AND_ASSIGN(ChildProcess udaddy, StartKernel(absl::StrCat("udaddy -s ", c.addresses.ours, Options())));
  std::vector<std::unique_ptr<CmId>> ids;
  std::vector<Datagrams> ends;
  for (int i = 0; i < kConnections; ++i) {
    ASSERT_OK_AND_ASSIGN(std::unique_ptr<CmId> id, listener->GetRequest(kPatience));
    ASSERT_OK_AND_ASSIGN(Datagrams end, Datagrams::Open(client(), *id, pool(), kMessages, Size()));
    ASSERT_OK(id->Accept());
    ids.push_back(std::move(id));
    ends.push_back(std::move(end));
  }
  for (Datagrams& end : ends) {
    std::vector<Wc> received;
    for (int i = 0; i < kMessages; ++i) {
      ASSERT_OK_AND_ASSIGN(received.emplace_back(), end.Receive(kPatience));
      EXPECT_EQ(received.back().src_qpn, received.front().src_qpn);
    }
    ASSERT_OK_AND_ASSIGN(const AddressHandle back, end.WayBack(received.front()));
    for (const Wc& wc : received) ASSERT_OK(end.Send(back, wc.src_qpn, kUdpQkey));
  }
  ExpectGoodEnd(udaddy);
}

// Tries again while udaddy does not listen yet.
absl::StatusOr<std::unique_ptr<CmId>> RxeUdaddy::Connected(const Address& peer, std::optional<Datagrams>* datagrams) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (true) {
    absl::StatusOr<std::unique_ptr<CmId>> id = CmId::Create(client(), nullptr, PortSpace::kUdp);
    if (!id.ok()) return id;
    absl::Status status = (*id)->ResolveAddr({}, peer, kPatience);
    if (status.ok()) status = (*id)->ResolveRoute(kPatience);
    if (!status.ok()) return status;
    absl::StatusOr<Datagrams> opened =
        Datagrams::Open(client(), **id, pool(), kMessages, Size());
    if (!opened.ok()) return opened.status();
    status = (*id)->Connect();
    if (status.ok()) {
      datagrams->emplace(*std::move(opened));
      return id;
    }
    if (absl::Now() > deadline) return status;
    absl::SleepFor(absl::Milliseconds(200));
  }
}

TEST_P(RxeUdaddy, WeConnectAndTheKernelAnswers) {
  const Case& c = GetParam();
  ASSERT_OK_AND_ASSIGN(ChildProcess udaddy, StartKernel(absl::StrCat("udaddy -b ", c.addresses.kernel, Options())));
  ASSERT_OK_AND_ASSIGN(const Address peer, Address::Parse(WithPort(c.addresses.kernel, kUdaddyPort)));
  std::array<std::unique_ptr<CmId>, kConnections> ids;
  std::array<std::optional<Datagrams>, kConnections> ends;
  for (int i = 0; i < kConnections; ++i) {
    ASSERT_OK_AND_ASSIGN(ids[i], Connected(peer, &ends[i]));
    const UdParam& ud = ids[i]->event()->ud();
    EXPECT_EQ(ud.qkey, kUdpQkey);
    EXPECT_NE(ud.qpn, 0u);
  }
  for (int i = 0; i < kConnections; ++i) {
    const UdParam ud = ids[i]->event()->ud();
    ASSERT_OK_AND_ASSIGN(const ProtectionDomain pd, ids[i]->pd());
    ASSERT_OK_AND_ASSIGN(const AddressHandle ah, AddressHandle::Create(pd, ud.ah));
    for (int j = 0; j < kMessages; ++j) ASSERT_OK(ends[i]->Send(ah, ud.qpn, ud.qkey));
  }
  for (int i = 0; i < kConnections; ++i) {
    for (int j = 0; j < kMessages; ++j) {
      ASSERT_OK_AND_ASSIGN(const Wc wc, ends[i]->Receive(kPatience));
      EXPECT_EQ(wc.src_qpn, ids[i]->event()->ud().qpn);
    }
  }
  ExpectGoodEnd(udaddy);
}

INSTANTIATE_TEST_SUITE_P(, RxeUdaddy, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

// Questions of SIDR are repeated where they, or the answers, are lost. Datagrams are not, and udaddy counts each: they have a good
// network. Nor can it be asked twice, since the kernel takes what is repeated after its answer for another request.
class RxeUdaddyLoss : public RxeInterop {
 protected:
  static constexpr size_t kBytes = 100;

  void TearDown() override {
    network_.reset();
    RxeInterop::TearDown();
  }
  void LoseAll() { network_.emplace("loss 100%"); }
  // As soon as something was.
  void EndLosses() {
    const absl::Time deadline = absl::Now() + kPatience;
    while (network_->lost() == 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(20));
    EXPECT_GT(network_->lost(), 0);
    network_.reset();
  }
  static std::string Options(int messages) {
    return absl::StrCat(" -c ", kConnections, " -C ", messages, " -S ", kBytes);
  }

  std::optional<BadNetwork> network_;
};

TEST_F(RxeUdaddyLoss, KernelFindsUs) {
  ASSERT_OK_AND_ASSIGN(const Address address, Address::Parse(WithPort(kIpv4.ours, kUdaddyPort)));
  ASSERT_OK_AND_ASSIGN(const auto listener, CmId::Create(client(), nullptr, PortSpace::kUdp));
  ASSERT_OK(listener->BindAddr(address));
  ASSERT_OK(listener->Listen());
  ASSERT_OK_AND_ASSIGN(ChildProcess udaddy, StartKernel(absl::StrCat("udaddy -s ", kIpv4.ours, Options(0))));
  std::vector<std::unique_ptr<CmId>> ids;
  std::vector<Datagrams> ends;
  for (int i = 0; i < kConnections; ++i) {
    ASSERT_OK_AND_ASSIGN(ids.emplace_back(), listener->GetRequest(kPatience));
    ASSERT_OK_AND_ASSIGN(ends.emplace_back(), Datagrams::Open(client(), *ids.back(), pool(), 1, kBytes));
    // The first answer is lost, and with it what the kernel may ask meanwhile.
    if (i == 0) LoseAll();
    ASSERT_OK(ids.back()->Accept());
    if (i == 0) EndLosses();
    // What comes now comes twice.
    if (i == 0) network_.emplace("duplicate 100%");
  }
  ExpectGoodEnd(udaddy);
  // What is asked again is no new request.
  EXPECT_TRUE(absl::IsDeadlineExceeded(listener->GetRequest(absl::Milliseconds(100)).status()));
}

TEST_F(RxeUdaddyLoss, WeFindTheKernel) {
  ASSERT_OK_AND_ASSIGN(const Address peer, Address::Parse(WithPort(kIpv6.kernel, kUdaddyPort)));
  ASSERT_OK_AND_ASSIGN(const auto channel, EventChannel::Create(client()));
  std::vector<std::unique_ptr<CmId>> ids;
  std::vector<Datagrams> ends;
  const auto resolve = [&]() -> absl::Status {
    RD_ASSIGN_OR_RETURN(std::unique_ptr<CmId> id, CmId::Create(client(), nullptr, PortSpace::kUdp));
    RD_RETURN_IF_ERROR(id->ResolveAddr({}, peer, kPatience));
    RD_RETURN_IF_ERROR(id->ResolveRoute(kPatience));
    RD_ASSIGN_OR_RETURN(Datagrams end, Datagrams::Open(client(), *id, pool(), 1, kBytes));
    ids.push_back(std::move(id));
    ends.push_back(std::move(end));
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(ChildProcess udaddy, StartKernel(absl::StrCat("udaddy -b ", kIpv6.kernel, Options(1))));
  // The first one until it listens; who was refused cannot ask again.
  const absl::Time deadline = absl::Now() + kPatience;
  ASSERT_OK(resolve());
  while (!ids.back()->Connect().ok()) {
    ASSERT_LT(absl::Now(), deadline);
    ends.clear();
    ids.clear();
    ASSERT_OK(resolve());
  }
  while (ids.size() < kConnections) {
    ASSERT_OK(resolve());
    ASSERT_OK(ids.back()->Migrate(channel.get()));
  }
  LoseAll();
  for (size_t i = 1; i < ids.size(); ++i) ASSERT_OK(ids[i]->Connect());
  EndLosses();
  std::vector<UdParam> peers(ids.size());
  peers[0] = ids[0]->event()->ud();
  for (size_t i = 1; i < ids.size(); ++i) {
    ASSERT_OK_AND_ASSIGN(const auto event, channel->GetEvent(kPatience));
    ASSERT_EQ(event->type(), CmEventType::kEstablished) << EventString(event->type()) << " status " << event->status();
    const auto of = std::find_if(ids.begin(), ids.end(), [&](const auto& id) { return id.get() == event->id(); });
    ASSERT_NE(of, ids.end());
    peers[static_cast<size_t>(of - ids.begin())] = event->ud();
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_OK_AND_ASSIGN(const ProtectionDomain pd, ids[i]->pd());
    ASSERT_OK_AND_ASSIGN(const AddressHandle ah, AddressHandle::Create(pd, peers[i].ah));
    ASSERT_OK(ends[i].Send(ah, peers[i].qpn, peers[i].qkey));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_OK_AND_ASSIGN(const Wc wc, ends[i].Receive(kPatience));
    EXPECT_EQ(wc.src_qpn, peers[i].qpn);
  }
  ExpectGoodEnd(udaddy);
}

class RxeDatagrams : public RxeInterop {};

TEST_F(RxeDatagrams, KernelFindsNobodyWhereNobodyListens) {
  ASSERT_OK_AND_ASSIGN(ChildProcess udaddy, StartKernel(absl::StrCat("udaddy -s ", kIpv4.ours)));
  const std::optional<ExitStatus> ended = udaddy.Wait(kPatience);
  ASSERT_TRUE(ended.has_value());
  EXPECT_FALSE(ended->ok());
  // The kernel's event for any SIDR reply but a good one, with the reply's status: not supported.
  const std::string output = ReadFile(output_file());
  EXPECT_NE(output.find("RDMA_CM_EVENT_UNREACHABLE"), std::string::npos) << output;
}

TEST_F(RxeDatagrams, WeFindNobodyWhereNobodyListens) {
  ASSERT_OK_AND_ASSIGN(const auto id, CmId::Create(client(), nullptr, PortSpace::kUdp));
  ASSERT_OK_AND_ASSIGN(const Address peer, Address::Parse(WithPort(kIpv4.kernel, 7999)));
  ASSERT_OK(id->ResolveAddr({}, peer, kPatience));
  ASSERT_OK(id->ResolveRoute(kPatience));
  ASSERT_OK_AND_ASSIGN(const Datagrams end, Datagrams::Open(client(), *id, pool(), 1, 64));
  const absl::Status status = id->Connect();
  EXPECT_FALSE(status.ok());
  ASSERT_NE(id->event(), nullptr);
  EXPECT_EQ(id->event()->type(), CmEventType::kUnreachable) << EventString(id->event()->type());
}

// Groups. The kernel's rdma_cm joins groups of IPv4 only.
constexpr char kGroup[] = "239.77.0.9";

class RxeMckey : public RxeInterop {
 protected:
  void SetUp() override {
    RxeInterop::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ASSERT_OK(RunProgram({"ip", "route", "replace", "239.0.0.0/8", "dev", "vA"}));
    ASSERT_OK_AND_ASSIGN(id_, CmId::Create(client(), nullptr, PortSpace::kUdp));
    ASSERT_OK_AND_ASSIGN(const Address local, Address::Parse(kIpv4.ours));
    ASSERT_OK(id_->BindAddr(local));
    ASSERT_OK_AND_ASSIGN(group_, Address::Parse(kGroup));
  }

  void TearDown() override {
    id_.reset();
    RxeInterop::TearDown();
  }

  // Joins with a QP that has `slots` receives.
  void Join(uint32_t slots, size_t size_bytes) {
    ASSERT_OK_AND_ASSIGN(Datagrams end, Datagrams::Open(client(), *id_, pool(), slots, size_bytes));
    ASSERT_OK(id_->JoinMulticast(group_, 77));
    end_.emplace(std::move(end));
    ud_ = id_->event()->ud();
    EXPECT_EQ(id_->event()->multicast_cookie(), 77u);
    EXPECT_EQ(ud_.qpn, kMulticastQpn);
    EXPECT_EQ(ud_.qkey, kUdpQkey);
  }

  std::unique_ptr<CmId> id_;
  Address group_;
  std::optional<Datagrams> end_;
  UdParam ud_;
};

TEST_F(RxeMckey, KernelSendsToTheGroupThatWeAreIn) {
  Join(kUnreliableTries * kMessages, 1000);
  ASSERT_FALSE(HasFatalFailure());
  // Until all of one run arrive.
  for (int i = 0, received = 0; received < kMessages && !HasFailure(); ++i) {
    ASSERT_LT(i, kUnreliableTries);
    ASSERT_OK_AND_ASSIGN(ChildProcess mckey, StartKernel(absl::StrCat("mckey -s -m ", kGroup, " -b ", kIpv4.kernel,
                                                                      " -C ", kMessages, " -S 1000")));
    for (received = 0; received < kMessages; ++received) {
      const absl::StatusOr<Wc> wc = end_->Receive(kPatience);
      if (absl::IsDeadlineExceeded(wc.status())) break;
      ASSERT_OK(wc);
    }
    ExpectGoodEnd(mckey);
  }
}

TEST_F(RxeMckey, WeSendToTheGroupThatTheKernelIsIn) {
  // Our own sends come back to us, and there is no receive for them: they are dropped.
  Join(1, 1000);
  ASSERT_FALSE(HasFatalFailure());
  ASSERT_OK_AND_ASSIGN(
      ChildProcess mckey,
      StartKernel(absl::StrCat("mckey -m ", kGroup, " -b ", kIpv4.kernel, " -C ", kMessages, " -S 1000")));
  ASSERT_OK_AND_ASSIGN(const ProtectionDomain pd, id_->pd());
  ASSERT_OK_AND_ASSIGN(const AddressHandle ah, AddressHandle::Create(pd, ud_.ah));
  // Until it has joined, it misses what is sent.
  const absl::Time deadline = absl::Now() + kPatience;
  while (mckey.IsRunning() && absl::Now() < deadline) {
    ASSERT_OK(end_->Send(ah, ud_.qpn, ud_.qkey));
    absl::SleepFor(absl::Milliseconds(50));
  }
  ExpectGoodEnd(mckey);
}

TEST_F(RxeMckey, WhoHasLeftGetsNothing) {
  Join(kMessages, 1000);
  ASSERT_FALSE(HasFatalFailure());
  ASSERT_OK(id_->LeaveMulticast(group_));
  ASSERT_OK_AND_ASSIGN(ChildProcess mckey, StartKernel(absl::StrCat("mckey -s -m ", kGroup, " -b ", kIpv4.kernel,
                                                                    " -C ", kMessages, " -S 1000")));
  ExpectGoodEnd(mckey);
  EXPECT_TRUE(absl::IsDeadlineExceeded(end_->Receive(absl::Milliseconds(300)).status()));
}

}  // namespace
}  // namespace rdmad::testing
