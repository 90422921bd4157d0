// The rarer outcomes of making a connection, each with the cause that an application can give it:
// requests that are taken back, QPs that cannot follow, options, and UC.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "tests/integration/cm_pair.h"
#include "tests/integration/pattern.h"
#include "tests/integration/testbed.h"
#include "tests/integration/wired.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr uint32_t kLevelId = 0;  // RDMA_OPTION_ID
enum : uint32_t { kTos = 0, kReuseAddr = 1, kAfOnly = 2, kAckTimeout = 3 };

class CmEventsTest : public PathTest {
 protected:
  // 0: the active application.
  const Client& client(int index) const { return index == 0 ? active() : passive(); }

  template <typename T>
  static absl::Status SetOption(CmId& id, uint32_t option, T value) {
    std::byte bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(value));
    return id.SetOption(kLevelId, option, bytes);
  }

  // A listener of application 1, whom application 0 has asked; nothing is answered yet.
  struct Asked {
    ListeningId listening;
    ActiveId active;
    std::unique_ptr<CmId> passive;
  };
  void Ask(Asked* out, const QpInit& init = {}) {
    ASSERT_OK_AND_ASSIGN(out->listening, ListenOn(client(1), passive_address()));
    ASSERT_OK_AND_ASSIGN(out->active, Resolve(client(0), out->listening.address));
    ASSERT_OK(out->active.id->CreateQp(nullptr, init));
    ASSERT_OK(out->active.id->Connect());
    ASSERT_OK_AND_ASSIGN(auto request,
                         ExpectEvent(*out->listening.channel, CmEventType::kConnectRequest));
    out->passive = request->TakeId();
  }
};

INSTANTIATE_TEST_SUITE_P(Paths, CmEventsTest, ::testing::ValuesIn(kIpv4Paths), NameOfPath);

// ---- Requests

TEST_P(CmEventsTest, ARequestThatIsTakenBackIsARejectionToTheAcceptingSide) {
  Asked asked;
  ASSERT_NO_FATAL_FAILURE(Ask(&asked));
  ASSERT_OK(asked.active.id->DestroyId());
  ASSERT_OK(asked.passive->CreateQp(nullptr, {}));
  if (OnVerbs()) {
    // The kernel's rdma_ucm has no events of an id that nobody has accepted: the accept fails, as soon
    // as it has heard.
    absl::SleepFor(Slow(absl::Milliseconds(200)));
    EXPECT_FALSE(asked.passive->Accept().ok());
    return;
  }
  ASSERT_OK_AND_ASSIGN(auto rejected,
                       ExpectEvent(*asked.listening.channel, CmEventType::kRejected));
  EXPECT_EQ(rejected->id(), asked.passive.get());
  EXPECT_EQ(rejected->status(), 4);  // "timeout" of IBTA vol. 1, as the kernel's rdma_cm says it
  EXPECT_FALSE(asked.passive->Accept().ok());
}

// The asking side repeats its question, and is told that the answer takes a while.
TEST_P(CmEventsTest, AnApplicationMayTakeItsTimeToAccept) {
  Asked asked;
  ASSERT_NO_FATAL_FAILURE(Ask(&asked));
  // Nothing is to happen, however slow the machine.
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      asked.active.channel->GetEvent(absl::Milliseconds(2500)).status()));
  ASSERT_OK(asked.passive->CreateQp(nullptr, {}));
  ASSERT_OK(asked.passive->Accept());
  EXPECT_OK(ExpectEvent(*asked.active.channel, CmEventType::kEstablished));
  EXPECT_OK(ExpectEvent(*asked.listening.channel, CmEventType::kEstablished));
}

// Two ids that connect by one QP of the application's: it can have one connection only.
TEST_P(CmEventsTest, ASecondRequestOfAQpEndsTheConnectionThatItHad) {
  ASSERT_OK_AND_ASSIGN(ListeningId listening, ListenOn(client(1), passive_address()));
  ASSERT_OK_AND_ASSIGN(WiredEnd end, MakeEnd(client(0), active_address()));
  ConnParam param;
  param.qpn = end.qp.qpn();
  std::unique_ptr<CmId> passive[2];
  ActiveId active[2];
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(active[i], Resolve(client(0), listening.address));
    ASSERT_OK(active[i].id->Connect(param));
    if (i == 1) {
      ASSERT_OK_AND_ASSIGN(auto over,
                           ExpectEvent(*listening.channel, CmEventType::kDisconnected));
      EXPECT_EQ(over->id(), passive[0].get());
      if (OnVerbs()) {
        // The kernel says no to the second, and leaves it to the application to ask again.
        ASSERT_OK_AND_ASSIGN(auto stale, ExpectEvent(*active[1].channel, CmEventType::kRejected));
        EXPECT_EQ(stale->status(), 10);
        return;
      }
    }
    ASSERT_OK_AND_ASSIGN(auto request,
                         ExpectEvent(*listening.channel, CmEventType::kConnectRequest));
    passive[i] = request->TakeId();
    request.reset();
    ASSERT_OK(passive[i]->CreateQp(nullptr, {}));
    ASSERT_OK(passive[i]->Accept());
    ASSERT_OK(ExpectEvent(*active[i].channel, CmEventType::kConnectResponse));
    ASSERT_OK(active[i].id->Establish());
    ASSERT_OK(ExpectEvent(*listening.channel, CmEventType::kEstablished));
  }
}

// As TCP does it: what finds no room is asked again.
TEST_P(CmEventsTest, RequestsBeyondTheBacklogGetInWhenThereIsRoom) {
  constexpr size_t kBacklog = 2;
  ListeningId listening;
  ASSERT_OK_AND_ASSIGN(listening.channel, EventChannel::Create(client(1)));
  ASSERT_OK_AND_ASSIGN(listening.id, CmId::Create(client(1), listening.channel.get()));
  ASSERT_OK(listening.id->BindAddr(*Address::Parse(WithPort(passive_address(), 0))));
  ASSERT_OK(listening.id->Listen(kBacklog));
  ActiveId active[2 * kBacklog];
  for (ActiveId& id : active) {
    ASSERT_OK_AND_ASSIGN(id, Resolve(client(0), listening.id->local_addr()));
    ASSERT_OK(id.id->CreateQp(nullptr, {}));
    ASSERT_OK(id.id->Connect());
  }
  std::vector<std::unique_ptr<CmId>> passive;
  for (size_t i = 0; i < kBacklog; ++i) {
    ASSERT_OK_AND_ASSIGN(auto request,
                         ExpectEvent(*listening.channel, CmEventType::kConnectRequest));
    passive.push_back(request->TakeId());
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      listening.channel->GetEvent(Slow(absl::Milliseconds(300))).status()));
  if (OnVerbs()) {
    // The kernel hands over at once what comes; the daemon can only refuse it.
    for (size_t i = kBacklog; i < 2 * kBacklog; ++i) {
      EXPECT_OK(ExpectEvent(*active[i].channel, CmEventType::kRejected));
    }
    return;
  }
  const auto accept = [](CmId& id) {
    ASSERT_OK(id.CreateQp(nullptr, {}));
    ASSERT_OK(id.Accept());
  };
  for (const auto& id : passive) ASSERT_NO_FATAL_FAILURE(accept(*id));
  for (size_t established = 0; established < 2 * kBacklog;) {
    ASSERT_OK_AND_ASSIGN(auto event, listening.channel->GetEvent(Slow(absl::Seconds(20))));
    if (event->type() == CmEventType::kConnectRequest) {
      passive.push_back(event->TakeId());
      ASSERT_NO_FATAL_FAILURE(accept(*passive.back()));
    } else {
      ASSERT_EQ(event->type(), CmEventType::kEstablished) << EventString(event->type());
      ++established;
    }
  }
  for (ActiveId& id : active) EXPECT_OK(ExpectEvent(*id.channel, CmEventType::kEstablished));
}

// rdma_notify: who has seen the peer's data need not wait until it says that it is ready.
TEST_P(CmEventsTest, AnApplicationThatHasSeenDataMaySaySo) {
  ASSERT_OK_AND_ASSIGN(ListeningId listening, ListenOn(client(1), passive_address()));
  ASSERT_OK_AND_ASSIGN(ActiveId active, Resolve(client(0), listening.address));
  ASSERT_OK_AND_ASSIGN(WiredEnd end, MakeEnd(client(0), active_address()));
  ConnParam param;
  param.qpn = end.qp.qpn();
  ASSERT_OK(active.id->Connect(param));
  ASSERT_OK_AND_ASSIGN(auto request, ExpectEvent(*listening.channel, CmEventType::kConnectRequest));
  std::unique_ptr<CmId> passive = request->TakeId();
  EXPECT_FALSE(passive->Notify(kAsyncCommEst).ok()) << "it is not accepted";
  ASSERT_OK(passive->CreateQp(nullptr, {}));
  ASSERT_OK(passive->Accept());
  ASSERT_OK(ExpectEvent(*active.channel, CmEventType::kConnectResponse));
  ASSERT_OK(passive->Notify(kAsyncCommEst));
  EXPECT_OK(ExpectEvent(*listening.channel, CmEventType::kEstablished));
  // It says it at last, which is no news.
  ASSERT_OK(active.id->Establish());
  ASSERT_OK(active.id->Disconnect());
  EXPECT_OK(ExpectEvent(*listening.channel, CmEventType::kDisconnected));
}

// ---- QPs that cannot follow

TEST_P(CmEventsTest, AQpThatCannotBeConnectedIsAConnectErrorAndThePeerHearsOfIt) {
  Asked asked;
  ASSERT_NO_FATAL_FAILURE(Ask(&asked));
  QpAttr attr;
  attr.mask = kQpAttrState;
  attr.state = QpState::kErr;
  ASSERT_OK(asked.active.id->qp().Modify(attr));
  ASSERT_OK(asked.passive->CreateQp(nullptr, {}));
  ASSERT_OK(asked.passive->Accept());

  ASSERT_OK_AND_ASSIGN(auto error, ExpectEvent(*asked.active.channel, CmEventType::kConnectError));
  EXPECT_EQ(error->status(), -EINVAL);
  EXPECT_FALSE(error->ToStatus().ok());
  ASSERT_OK_AND_ASSIGN(auto rejected,
                       ExpectEvent(*asked.listening.channel, CmEventType::kRejected));
  EXPECT_EQ(rejected->status(), 28);
}

TEST_P(CmEventsTest, AQpThatCannotBeAcceptedFailsTheCallAndThePeerIsToldByReject) {
  Asked asked;
  ASSERT_NO_FATAL_FAILURE(Ask(&asked));
  ASSERT_OK(asked.passive->CreateQp(nullptr, {}));
  QpAttr attr;
  attr.mask = kQpAttrState;
  attr.state = QpState::kErr;
  ASSERT_OK(asked.passive->qp().Modify(attr));
  EXPECT_FALSE(asked.passive->Accept().ok());
  ASSERT_OK(asked.passive->Reject());
  ASSERT_OK_AND_ASSIGN(auto rejected, ExpectEvent(*asked.active.channel, CmEventType::kRejected));
  EXPECT_EQ(rejected->status(), 28);
}

// ---- UC

TEST_P(CmEventsTest, UcQueuePairsConnect) {
  if (OnVerbs()) GTEST_SKIP() << "the kernel's rdma_cm connects RC for this port space";
  const QpInit uc = [] {
    QpInit init;
    init.type = QpType::kUc;
    init.cap.max_inline_bytes = 16;
    return init;
  }();
  Asked asked;
  ASSERT_NO_FATAL_FAILURE(Ask(&asked, uc));
  ASSERT_OK(asked.passive->CreateQp(nullptr, uc));
  ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(client(1), 4096));
  ASSERT_OK_AND_ASSIGN(Buffer to, pool.Allocate(16));
  ASSERT_OK_AND_ASSIGN(MemoryRegion region, asked.passive->RegMsgs(to.data(), 16));
  ASSERT_OK(asked.passive->qp().PostRecv(1, to.data(), 16, &region));
  ASSERT_OK(asked.passive->Accept());
  ASSERT_OK(ExpectEvent(*asked.active.channel, CmEventType::kEstablished));
  ASSERT_OK(ExpectEvent(*asked.listening.channel, CmEventType::kEstablished));
  ASSERT_OK(asked.active.id->qp().PostSend(2, "sixteen bytes...", 16, nullptr,
                                           kSendInline | kSendSignaled));
  ASSERT_OK_AND_ASSIGN(const Wc received, asked.passive->GetRecvComp(Slow(absl::Seconds(5))));
  EXPECT_EQ(received.status, WcStatus::kSuccess);
  EXPECT_EQ(std::memcmp(to.data(), "sixteen bytes...", 16), 0);
  ASSERT_OK(asked.passive->Disconnect());
  EXPECT_OK(ExpectEvent(*asked.active.channel, CmEventType::kDisconnected));
}

// Who moves its QP by itself need not say more of it than its number.
TEST_P(CmEventsTest, AUcQueuePairThatIsNotTheIdsIsAcceptedAsThePeerHasIt) {
  if (OnVerbs()) GTEST_SKIP() << "the kernel's rdma_cm connects RC for this port space";
  QpInit uc;
  uc.type = QpType::kUc;
  Asked asked;
  ASSERT_NO_FATAL_FAILURE(Ask(&asked, uc));
  ASSERT_OK_AND_ASSIGN(const ProtectionDomain pd, asked.passive->pd());
  ASSERT_OK_AND_ASSIGN(uc.send_cq,
                       CompletionQueue::Create(client(1), *asked.passive->device_index(), 4));
  uc.recv_cq = uc.send_cq;
  ASSERT_OK_AND_ASSIGN(QueuePair qp, QueuePair::Create(pd, uc));
  for (const QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
    ASSERT_OK_AND_ASSIGN(const QpAttr attr, asked.passive->InitQpAttr(state));
    ASSERT_OK(qp.Modify(attr));
  }
  ConnParam param;
  param.qpn = qp.qpn();
  ASSERT_OK(asked.passive->Accept(param));
  ASSERT_OK(ExpectEvent(*asked.active.channel, CmEventType::kEstablished));
}

TEST_P(CmEventsTest, AQpOfAnotherTypeThanThePeersIsRefused) {
  if (OnVerbs()) GTEST_SKIP() << "the kernel's rdma_cm connects RC for this port space";
  Asked asked;
  ASSERT_NO_FATAL_FAILURE(Ask(&asked));
  QpInit uc;
  uc.type = QpType::kUc;
  ASSERT_OK(asked.passive->CreateQp(nullptr, uc));
  EXPECT_TRUE(absl::IsInvalidArgument(asked.passive->Accept()));
  ASSERT_OK_AND_ASSIGN(auto rejected, ExpectEvent(*asked.active.channel, CmEventType::kRejected));
  EXPECT_EQ(rejected->status(), 9);  // "invalid transport service type"
}

// ---- Options

TEST_P(CmEventsTest, TheAckTimeoutIsTheQpsAndDecidesWhenAPeerIsGivenUp) {
  const struct {
    uint8_t code;
    absl::Duration at_least, at_most;
  } rows[] = {{13, absl::Milliseconds(33), absl::Milliseconds(500)},
              {18, absl::Milliseconds(1073), absl::Seconds(9)}};  // 33.6 ms; 1.07 s
  for (const auto& row : rows) {
    SCOPED_TRACE(static_cast<int>(row.code));
    ASSERT_OK_AND_ASSIGN(ListeningId listening, ListenOn(client(1), passive_address()));
    ASSERT_OK_AND_ASSIGN(ActiveId active, Resolve(client(0), listening.address));
    ASSERT_OK(SetOption(*active.id, kAckTimeout, row.code));
    ASSERT_OK(active.id->CreateQp(nullptr, {}));
    ConnParam param;
    param.retry_count = 1;
    ASSERT_OK(active.id->Connect(param));
    ASSERT_OK_AND_ASSIGN(auto request,
                         ExpectEvent(*listening.channel, CmEventType::kConnectRequest));
    std::unique_ptr<CmId> passive = request->TakeId();
    request.reset();
    ASSERT_OK(passive->CreateQp(nullptr, {}));
    ASSERT_OK(passive->Accept(param));
    ASSERT_OK(ExpectEvent(*active.channel, CmEventType::kEstablished));
    ASSERT_OK_AND_ASSIGN(const QpAttr attr, active.id->qp().Query());
    EXPECT_EQ(attr.timeout, row.code);
    passive->DestroyQp();  // nobody answers any more
    const absl::Time start = absl::Now();
    ASSERT_OK(active.id->qp().PostSend(1, nullptr, 0, nullptr, kSendSignaled));
    ASSERT_OK_AND_ASSIGN(const Wc wc, active.id->GetSendComp(Slow(absl::Seconds(20))));
    EXPECT_EQ(wc.status, WcStatus::kRetryExcErr);
    EXPECT_GE(absl::Now() - start, row.at_least);
    EXPECT_LE(absl::Now() - start, Slow(row.at_most));
  }
}

// Whoever wants to listen must be alone, as with the kernel's rdma_cm.
TEST_P(CmEventsTest, AfOnlyLeavesTheOtherFamilyToOthers) {
  for (const bool only : {true, false}) {
    SCOPED_TRACE(only);
    ASSERT_OK_AND_ASSIGN(const auto six, CmId::Create(client(0)));
    ASSERT_OK(SetOption(*six, kAfOnly, int{only}));
    ASSERT_OK(six->BindAddr(*Address::Parse("[::]:0")));
    ASSERT_OK(six->Listen());
    ASSERT_OK_AND_ASSIGN(const auto four, CmId::Create(client(0)));
    absl::Status taken = four->BindAddr(*Address::Parse(WithPort("0.0.0.0", six->src_port())));
    if (taken.ok()) taken = four->Listen();
    if (only) {
      EXPECT_OK(taken);
    } else {
      EXPECT_TRUE(absl::IsAlreadyExists(taken)) << taken;
    }
  }
}

TEST_P(CmEventsTest, ReuseAddrSharesAPortUntilOneListens) {
  ASSERT_OK_AND_ASSIGN(auto first, CmId::Create(client(0)));
  ASSERT_OK_AND_ASSIGN(auto second, CmId::Create(client(0)));
  ASSERT_OK_AND_ASSIGN(auto third, CmId::Create(client(0)));
  for (CmId* id : {first.get(), second.get()}) ASSERT_OK(SetOption(*id, kReuseAddr, int{1}));
  ASSERT_OK(first->BindAddr(*Address::Parse(WithPort(active_address(), 0))));
  const Address address = first->local_addr();
  EXPECT_OK(second->BindAddr(address));
  EXPECT_TRUE(absl::IsAlreadyExists(third->BindAddr(address))) << "it did not ask for it";
  EXPECT_TRUE(absl::IsAlreadyExists(first->Listen()));
  ASSERT_OK(second->DestroyId());
  EXPECT_OK(first->Listen());
}

TEST_P(CmEventsTest, OptionsThatAreNoneOrOutOfRangeAreRefused) {
  ASSERT_OK_AND_ASSIGN(auto id, CmId::Create(client(0)));
  EXPECT_OK(SetOption(*id, kTos, uint8_t{0x20}));
  EXPECT_FALSE(SetOption(*id, kTos, int{0x20}).ok());  // one byte
  EXPECT_FALSE(SetOption(*id, kAckTimeout, uint8_t{32}).ok());
  EXPECT_FALSE(SetOption(*id, 99, uint8_t{1}).ok());
  const std::byte value{1};
  EXPECT_FALSE(id->SetOption(7, kTos, {&value, 1}).ok());  // no such level
}

}  // namespace
}  // namespace rdmad::testing
