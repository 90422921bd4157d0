// Connection management as people met it in practice: cases 1, 3, 6, 9 and 11.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "tests/integration/application.h"
#include "tests/integration/cm_pair.h"
#include "tests/integration/testbed.h"
#include "tests/integration/wired.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr int kNobodyListens = 8;       // reject reason "invalid service id" of IBTA vol. 1
constexpr int kApplicationSaysNo = 28;  // "consumer reject"
constexpr uint16_t kClosedPort = 9;

class CmCasesTest : public PathTest {
 protected:
  // 0: the active application.
  const Client& client(int index) const { return index == 0 ? active() : passive(); }

  static Address At(const std::string& address, uint16_t port) {
    return Address::Parse(WithPort(address, port)).value();
  }

  // Connects an id without a QP of its own through to the event that answers it.
  static absl::Status ConnectWithQp(ActiveId& active, const ConnParam& param = {}) {
    const absl::Status created = active.id->CreateQp(nullptr, {});
    return created.ok() ? active.id->Connect(param) : created;
  }
};

INSTANTIATE_TEST_SUITE_P(Paths, CmCasesTest, ::testing::ValuesIn(kIpv4Paths), NameOfPath);

// ---- Case 1: destroying an id hangs after a failed connect

TEST_P(CmCasesTest, DestroyingAnIdWaitsForTheAcknowledgementOfItsEvents) {
  ASSERT_OK_AND_ASSIGN(ActiveId active, Resolve(client(0), At(passive_address(), kClosedPort)));
  ASSERT_OK(ConnectWithQp(active));
  ASSERT_OK_AND_ASSIGN(auto rejected, ExpectEvent(*active.channel, CmEventType::kRejected));

  std::future<absl::Status> destroyed =
      std::async(std::launch::async, [&] { return active.id->DestroyId(); });
  EXPECT_EQ(destroyed.wait_for(std::chrono::milliseconds(500)), std::future_status::timeout);
  // Meanwhile the daemon serves others.
  ASSERT_OK_AND_ASSIGN(Client other, AttachTo(Daemon(0), "other"));
  EXPECT_OK(ConnectApps(other, client(1), passive_address()));
  EXPECT_EQ(destroyed.wait_for(std::chrono::milliseconds(0)), std::future_status::timeout);

  rejected.reset();  // acknowledges it

  EXPECT_EQ(destroyed.wait_for(std::chrono::seconds(kSlowness)), std::future_status::ready);
  EXPECT_OK(destroyed.get());
}

TEST_P(CmCasesTest, DestroyingAnIdWithoutUnacknowledgedEventsReturnsAtOnce) {
  ASSERT_OK_AND_ASSIGN(ActiveId active, Resolve(client(0), At(passive_address(), kClosedPort)));
  ASSERT_OK(ConnectWithQp(active));
  ASSERT_OK(ExpectEvent(*active.channel, CmEventType::kRejected));
  const absl::Time start = absl::Now();
  EXPECT_OK(active.id->DestroyId());
  EXPECT_LT(absl::Now() - start, Slow(absl::Milliseconds(200)));
}

// ---- Case 3: reject reasons and private data

TEST_P(CmCasesTest, WithoutAListenerTheReasonIsThatNobodyListens) {
  for (const std::string& address : {active_address(), passive_address()}) {
    SCOPED_TRACE(address);
    ASSERT_OK_AND_ASSIGN(ActiveId active, Resolve(client(0), At(address, kClosedPort)));
    ASSERT_OK(ConnectWithQp(active));
    ASSERT_OK_AND_ASSIGN(auto event, ExpectEvent(*active.channel, CmEventType::kRejected));
    EXPECT_EQ(event->status(), kNobodyListens);
    // Both ends are named.
    const std::string text = event->ToStatus().ToString();
    EXPECT_NE(text.find(WithPort(address, kClosedPort)), std::string::npos) << text;
    EXPECT_NE(text.find(active.id->local_addr().ToString()), std::string::npos) << text;
  }
}

TEST_P(CmCasesTest, AnApplicationsRejectionCarriesItsPrivateData) {
  ASSERT_OK_AND_ASSIGN(ListeningId listening, ListenOn(client(1), passive_address()));
  ASSERT_OK_AND_ASSIGN(ActiveId active, Resolve(client(0), listening.address));
  ASSERT_OK(ConnectWithQp(active));
  ASSERT_OK_AND_ASSIGN(auto request, ExpectEvent(*listening.channel, CmEventType::kConnectRequest));
  const std::vector<uint8_t> no = {'n', 'o', ' ', 'r', 'o', 'o', 'm', '!'};
  ASSERT_OK(request->id()->Reject(no));

  ASSERT_OK_AND_ASSIGN(auto rejected, ExpectEvent(*active.channel, CmEventType::kRejected));

  EXPECT_EQ(rejected->status(), kApplicationSaysNo);
  const std::vector<uint8_t>& data = rejected->param().private_data;
  ASSERT_GE(data.size(), no.size());
  EXPECT_TRUE(std::equal(no.begin(), no.end(), data.begin()));
}

TEST_P(CmCasesTest, ARequestThatNobodyTakesIsRejectedWhenItsEventGoes) {
  ASSERT_OK_AND_ASSIGN(ListeningId listening, ListenOn(client(1), passive_address()));
  ASSERT_OK_AND_ASSIGN(ActiveId active, Resolve(client(0), listening.address));
  ASSERT_OK(ConnectWithQp(active));
  ASSERT_OK(ExpectEvent(*listening.channel, CmEventType::kConnectRequest));
  EXPECT_OK(ExpectEvent(*active.channel, CmEventType::kRejected));
}

TEST_P(CmCasesTest, PrivateDataArrivesBothWaysPaddedWithZeros) {
  ASSERT_OK_AND_ASSIGN(ListeningId listening, ListenOn(client(1), passive_address()));
  ASSERT_OK_AND_ASSIGN(ActiveId active, Resolve(client(0), listening.address));
  ConnParam param;
  for (uint8_t i = 1; i <= 16; ++i) param.private_data.push_back(i);
  ASSERT_OK(ConnectWithQp(active, param));
  ASSERT_OK_AND_ASSIGN(auto request, ExpectEvent(*listening.channel, CmEventType::kConnectRequest));
  const auto expect_padded = [](const std::vector<uint8_t>& got, const std::vector<uint8_t>& sent) {
    ASSERT_GE(got.size(), sent.size());
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), got.begin()));
    for (size_t i = sent.size(); i < got.size(); ++i) EXPECT_EQ(got[i], 0) << i;
  };
  expect_padded(request->param().private_data, param.private_data);

  std::unique_ptr<CmId> passive = request->TakeId();
  ASSERT_OK(passive->CreateQp(nullptr, {}));
  ConnParam answer;
  answer.private_data = {0xaa, 0xbb, 0xcc};
  ASSERT_OK(passive->Accept(answer));
  ASSERT_OK_AND_ASSIGN(auto established, ExpectEvent(*active.channel, CmEventType::kEstablished));
  expect_padded(established->param().private_data, answer.private_data);
}

TEST_P(CmCasesTest, PrivateDataThatDoesNotFitIsRefused) {
  ASSERT_OK_AND_ASSIGN(ListeningId listening, ListenOn(client(1), passive_address()));
  ASSERT_OK_AND_ASSIGN(ActiveId active, Resolve(client(0), listening.address));
  ASSERT_OK(active.id->CreateQp(nullptr, {}));
  ConnParam param;
  param.private_data.resize(57);
  EXPECT_TRUE(absl::IsInvalidArgument(active.id->Connect(param)));
  param.private_data.resize(56);
  EXPECT_OK(active.id->Connect(param));
}

// ---- Case 6: event descriptors are real descriptors

class Epoll {
 public:
  void Add(int fd, uint32_t events, uint64_t name) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = name;
    ASSERT_EQ(::epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event), 0) << std::strerror(errno);
  }
  void Remove(int fd) { ASSERT_EQ(::epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr), 0); }
  // The names that are ready.
  std::vector<uint64_t> Wait(int timeout_ms) {
    epoll_event events[16];
    const int count = ::epoll_wait(fd_.get(), events, 16, timeout_ms);
    std::vector<uint64_t> names;
    for (int i = 0; i < count; ++i) names.push_back(events[i].data.u64);
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  const UniqueFd fd_{::epoll_create1(EPOLL_CLOEXEC)};
};

TEST_P(CmCasesTest, EventDescriptorsWorkWithEpollDupAndNonBlocking) {
  ASSERT_OK_AND_ASSIGN(auto cm_channel, EventChannel::Create(client(0)));
  ASSERT_OK_AND_ASSIGN(CompletionChannel completions, CompletionChannel::Create(client(0)));
  const int fds[] = {cm_channel->fd(), completions.fd(), client(0).async_fd()};
  for (const int fd : fds) {
    ASSERT_EQ(::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK), 0);
  }
  // Nothing is pending: "try again" instead of waiting for ever.
  EXPECT_TRUE(absl::IsDeadlineExceeded(cm_channel->GetEvent().status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(completions.GetEvent().status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(Client(client(0)).GetAsyncEvent().status()));

  Epoll epoll;
  UniqueFd copy(::dup(cm_channel->fd()));
  epoll.Add(cm_channel->fd(), EPOLLIN, 0);
  epoll.Add(completions.fd(), EPOLLIN | EPOLLET, 1);
  epoll.Add(client(0).async_fd(), EPOLLIN, 2);
  epoll.Add(copy.get(), EPOLLIN | EPOLLET, 3);
  EXPECT_EQ(epoll.Wait(0), std::vector<uint64_t>{});

  ASSERT_OK_AND_ASSIGN(auto id, CmId::Create(client(0), cm_channel.get()));
  ASSERT_OK(id->ResolveAddr(Address(), At(passive_address(), 1), absl::Seconds(2)));

  // Level and edge both wake; the edge only once.
  EXPECT_TRUE(Eventually(absl::Seconds(2), [&] {
    pollfd poll{cm_channel->fd(), POLLIN, 0};
    return ::poll(&poll, 1, 0) == 1;
  }));
  EXPECT_EQ(epoll.Wait(0), (std::vector<uint64_t>{0, 3}));
  EXPECT_EQ(epoll.Wait(0), std::vector<uint64_t>{0});
  ASSERT_OK(ExpectEvent(*cm_channel, CmEventType::kAddrResolved));
  EXPECT_EQ(epoll.Wait(0), std::vector<uint64_t>{});

  // Closing one leaves the other working. (An epoll entry would stay with the open file.)
  epoll.Remove(copy.get());
  copy.Reset();
  ASSERT_OK(id->ResolveRoute(absl::Seconds(2)));
  EXPECT_EQ(epoll.Wait(2000 * kSlowness), std::vector<uint64_t>{0});
  EXPECT_OK(ExpectEvent(*cm_channel, CmEventType::kRouteResolved));
}

TEST_P(CmCasesTest, EachCompletionEventWakesAnEdgeTriggeredWaiterOnce) {
  ASSERT_OK_AND_ASSIGN(CompletionChannel channel, CompletionChannel::Create(client(0)));
  QpPairOptions options;
  options.active_channel = &channel;
  ASSERT_OK_AND_ASSIGN(QpPair pair, ConnectQps(client(0), client(1), passive_address(), options));
  Epoll epoll;
  epoll.Add(channel.fd(), EPOLLIN | EPOLLET, 7);
  for (int round = 0; round < 5; ++round) {
    pair.active_cq.RequestNotify();
    EXPECT_EQ(epoll.Wait(0), std::vector<uint64_t>{});
    // To the peer goes nothing; the send completes when it is acknowledged.
    ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(client(1), 4096));
    ASSERT_OK(pair.passive->qp().PostRecv(1, nullptr, 0, nullptr));
    ASSERT_OK(pair.active.id->qp().PostSend(2, nullptr, 0, nullptr, kSendSignaled));
    EXPECT_EQ(epoll.Wait(2000 * kSlowness), std::vector<uint64_t>{7});
    EXPECT_EQ(epoll.Wait(0), std::vector<uint64_t>{});
    ASSERT_OK_AND_ASSIGN(CompletionQueue told, channel.GetEvent(Slow(absl::Seconds(1))));
    EXPECT_TRUE(told == pair.active_cq);
    told.AckEvents();
    ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(pair.active_cq));
    EXPECT_EQ(wc.status, WcStatus::kSuccess);
    ASSERT_OK(WaitForWc(pair.passive_cq));
  }
}

// ---- Case 9: both sides hear about the disconnect

TEST_P(CmCasesTest, EachSideHearsOfADisconnectOnceAndThenOfTheEndOfTimewait) {
  ASSERT_OK_AND_ASSIGN(QpPair pair, ConnectQps(client(0), client(1), passive_address()));

  ASSERT_OK(pair.active.id->Disconnect());
  ASSERT_OK(ExpectEvent(*pair.listener.channel, CmEventType::kDisconnected));
  EXPECT_OK(pair.passive->Disconnect());
  ASSERT_OK(ExpectEvent(*pair.active.channel, CmEventType::kDisconnected));

  // Nothing else is told a second time.
  EXPECT_OK(ExpectEvent(*pair.active.channel, CmEventType::kTimewaitExit));
  EXPECT_OK(ExpectEvent(*pair.listener.channel, CmEventType::kTimewaitExit));
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(pair.active.channel->GetEvent(absl::Milliseconds(200)).status()));
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(pair.listener.channel->GetEvent(absl::Milliseconds(200)).status()));
}

TEST_P(CmCasesTest, CrossedDisconnectsTellEachSideOnce) {
  ASSERT_OK_AND_ASSIGN(QpPair pair, ConnectQps(client(0), client(1), passive_address()));
  std::future<absl::Status> other =
      std::async(std::launch::async, [&] { return pair.passive->Disconnect(); });
  EXPECT_OK(pair.active.id->Disconnect());
  EXPECT_OK(other.get());
  for (EventChannel* channel : {pair.active.channel.get(), pair.listener.channel.get()}) {
    ASSERT_OK(ExpectEvent(*channel, CmEventType::kDisconnected));
    ASSERT_OK(ExpectEvent(*channel, CmEventType::kTimewaitExit));
    EXPECT_TRUE(absl::IsDeadlineExceeded(channel->GetEvent(absl::Milliseconds(100)).status()));
  }
}

TEST_P(CmCasesTest, AnOrderedEndFlushesReceivesOnBothSides) {
  ASSERT_OK_AND_ASSIGN(QpPair pair, ConnectQps(client(0), client(1), passive_address()));
  ASSERT_OK(pair.active.id->qp().PostRecv(5, nullptr, 0, nullptr));
  ASSERT_OK(pair.passive->qp().PostRecv(6, nullptr, 0, nullptr));

  ASSERT_OK(pair.active.id->Disconnect());

  ASSERT_OK_AND_ASSIGN(const Wc active, WaitForWc(pair.active_cq));
  EXPECT_EQ(active.status, WcStatus::kWrFlushErr);
  EXPECT_EQ(active.wr_id, 5u);
  ASSERT_OK_AND_ASSIGN(const Wc passive, WaitForWc(pair.passive_cq));
  EXPECT_EQ(passive.status, WcStatus::kWrFlushErr);
  EXPECT_EQ(passive.wr_id, 6u);
}

// ---- Case 11: wildcard bind, port zero, loopback, port in use

TEST_P(CmCasesTest, AWildcardListenerIsReachedThroughEveryAddress) {
  ASSERT_OK_AND_ASSIGN(Listener listener, Listener::Listen(client(0), ":0"));
  const uint16_t port = listener.local_addr().port;
  EXPECT_NE(port, 0);
  for (const int from : {0, 1}) {
    std::future<absl::StatusOr<Endpoint>> accepted =
        std::async(std::launch::async, [&] { return listener.Accept(Slow(absl::Seconds(10))); });
    absl::StatusOr<Endpoint> endpoint =
        Endpoint::Connect(client(from), WithPort(active_address(), port));
    EXPECT_OK(endpoint) << "from application " << from;
    absl::StatusOr<Endpoint> passive = accepted.get();
    ASSERT_OK(passive);
    EXPECT_EQ(passive->local_addr().ToString(), WithPort(active_address(), port));
  }
}

TEST_P(CmCasesTest, APortInUseIsRefusedAndSaysSo) {
  ASSERT_OK_AND_ASSIGN(ListeningId first, ListenOn(client(0), active_address()));
  ASSERT_OK_AND_ASSIGN(Client other, AttachTo(Daemon(0), "other"));
  for (const Address& taken : {first.address, At("0.0.0.0", first.address.port)}) {
    ASSERT_OK_AND_ASSIGN(auto id, CmId::Create(other));
    absl::Status status = id->BindAddr(taken);
    if (status.ok()) status = id->Listen();
    EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
    EXPECT_NE(status.ToString().find(std::to_string(taken.port)), std::string::npos) << status;
  }
  if (passive_address() == active_address()) return;
  // Another address is another port space.
  ASSERT_OK_AND_ASSIGN(auto elsewhere, CmId::Create(client(1)));
  EXPECT_OK(elsewhere->BindAddr(At(passive_address(), first.address.port)));
}

TEST_P(CmCasesTest, AnAddressThatNoDeviceHasIsRefusedAndSaysSo) {
  ASSERT_OK_AND_ASSIGN(auto id, CmId::Create(client(0)));
  const absl::Status status = id->BindAddr(At("192.0.2.1", 0));
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_NE(status.ToString().find("192.0.2.1"), std::string::npos) << status;
}

TEST_P(CmCasesTest, APortIsFreeAsSoonAsItsListenerWasKilled) {
  ASSERT_OK_AND_ASSIGN(Application app, Application::Listen(Daemon(0), active_address(), 1));
  app.Kill();
  EXPECT_TRUE(Eventually(absl::Seconds(1), [&] {
    return Listener::Listen(client(0), WithPort(active_address(), app.port())).ok();
  }));
}

TEST_P(CmCasesTest, AWildcardListenerForIpv6IsReachedByIpv6) {
  const int passive_index = GetParam().two_daemons ? 1 : 0;
  if (Ipv6(passive_index).empty()) GTEST_SKIP() << EnterPrivateNetwork().message();
  ASSERT_OK_AND_ASSIGN(Listener listener, Listener::Listen(client(1), "[::]:0"));
  std::future<absl::StatusOr<Endpoint>> accepted =
      std::async(std::launch::async, [&] { return listener.Accept(Slow(absl::Seconds(10))); });
  EXPECT_OK(Endpoint::Connect(client(0), WithPort(Ipv6(passive_index), listener.local_addr().port)));
  EXPECT_OK(accepted.get());
}

}  // namespace
}  // namespace rdmad::testing
