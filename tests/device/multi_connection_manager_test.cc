// The rule that says which of several managers an id belongs to, with managers that do as they are
// told.
#include "daemon/device/multi_connection_manager.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/unique_fd.h"
#include "tests/support/status_testing.h"

namespace rdmad::device {
namespace {

const IpAddress kVerbsIp = IpAddress::FromV4(10, 0, 0, 1);
const IpAddress kSoftIp = IpAddress::FromV4(192, 0, 2, 1);
const IpAddress kBothIp = IpAddress::FromV4(172, 16, 0, 1);
const IpAddress kNobodysIp = IpAddress::FromV4(203, 0, 113, 1);
// Peers, and the addresses from which the kernel's route goes there.
const IpAddress kPeerByVerbs = IpAddress::FromV4(10, 0, 0, 2);
const IpAddress kPeerBySoft = IpAddress::FromV4(192, 0, 2, 2);
const IpAddress kPeerByNobody = IpAddress::FromV4(203, 0, 113, 2);
const IpAddress kPeerWithoutRoute = IpAddress::FromV4(198, 51, 100, 1);

class ScriptedManager;

class ScriptedEndpoint final : public CmEndpoint {
 public:
  ScriptedEndpoint(ScriptedManager* manager, CmEventSink* sink);
  ~ScriptedEndpoint() override;

  void SetSink(CmEventSink* sink) noexcept override { sink_ = sink; }
  absl::Status BindAddr(const SocketAddress& local) override;
  absl::Status ResolveAddr(const SocketAddress& local, const SocketAddress& peer,
                           uint32_t) override;
  absl::Status ResolveRoute(uint32_t) override { return Note("resolve_route"); }
  absl::Status Listen(int backlog) override;
  absl::Status Connect(const ConnParam&) override { return Note("connect"); }
  absl::Status Establish() override { return Note("establish"); }
  absl::Status Accept(const ConnParam&) override { return Note("accept"); }
  absl::Status Reject(std::span<const uint8_t>) override { return Note("reject"); }
  absl::Status Disconnect() override { return Note("disconnect"); }
  absl::Status NotifyCommEstablished() override { return Note("notify"); }
  absl::Status SetOption(uint32_t option, std::span<const uint8_t> value) override;
  absl::Status JoinMulticast(const SocketAddress&, uint32_t, uint64_t) override {
    return Note("join_multicast");
  }
  absl::Status LeaveMulticast(const SocketAddress&) override { return Note("leave_multicast"); }
  absl::StatusOr<QpAttr> InitQpAttr(QpState) const override { return QpAttr(); }
  Device* device() const noexcept override { return nullptr; }
  SocketAddress local() const noexcept override { return local_; }
  SocketAddress peer() const noexcept override { return peer_; }
  const char* state_name() const noexcept override { return "scripted"; }
  uint32_t remote_qpn() const noexcept override { return 7; }

  void Report(CmEvent event) { sink_->OnCmEvent(std::move(event)); }
  std::shared_ptr<const void> TakeBacklogPlace() { return sink_->TakeBacklogPlace(); }

  std::vector<std::string> calls;
  std::map<uint32_t, uint8_t> options;
  bool listening = false;

 private:
  absl::Status Note(const char* call) {
    calls.emplace_back(call);
    return absl::OkStatus();
  }

  ScriptedManager* const manager_;
  CmEventSink* sink_;
  SocketAddress local_;
  SocketAddress peer_;
};

class ScriptedManager final : public ConnectionManager {
 public:
  ScriptedManager(std::set<IpAddress> addresses, uint16_t first_port)
      : next_port(first_port), addresses_(std::move(addresses)) {}

  std::unique_ptr<CmEndpoint> CreateEndpoint(PortSpace, CmEventSink* sink) override {
    return std::make_unique<ScriptedEndpoint>(this, sink);
  }
  bool Serves(const IpAddress& address) const override { return addresses_.count(address) != 0; }
  int poll_fd() const noexcept override { return event_.get(); }
  void Poll(TimeNs) override {
    uint64_t count;
    if (::read(event_.get(), &count, sizeof(count)) < 0) return;
    for (auto& [endpoint, event] : std::exchange(queued_, {})) {
      if (std::count(endpoints.begin(), endpoints.end(), endpoint) != 0)
        endpoint->Report(std::move(event));
    }
  }
  TimeNs NextDeadline() const noexcept override { return deadline; }

  void Queue(ScriptedEndpoint* endpoint, CmEventType type,
             std::unique_ptr<CmEndpoint> request = nullptr) {
    CmEvent event;
    event.type = type;
    event.new_endpoint = std::move(request);
    queued_.emplace_back(endpoint, std::move(event));
    const uint64_t one = 1;
    ASSERT_EQ(::write(event_.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  }

  ScriptedEndpoint& only() {
    EXPECT_EQ(endpoints.size(), 1u);
    return *endpoints.front();
  }

  std::vector<ScriptedEndpoint*> endpoints;
  std::set<uint16_t> ports;
  uint16_t next_port;  // the ephemeral port given out next
  absl::Status bind_answer;
  absl::Status listen_answer;
  absl::Status resolve_answer;
  absl::Status option_answer;
  TimeNs deadline = kNever;

 private:
  const std::set<IpAddress> addresses_;
  const UniqueFd event_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  std::vector<std::pair<ScriptedEndpoint*, CmEvent>> queued_;
};

ScriptedEndpoint::ScriptedEndpoint(ScriptedManager* manager, CmEventSink* sink)
    : manager_(manager), sink_(sink) {
  manager_->endpoints.push_back(this);
}

ScriptedEndpoint::~ScriptedEndpoint() {
  manager_->ports.erase(local_.port);
  std::erase(manager_->endpoints, this);
}

absl::Status ScriptedEndpoint::BindAddr(const SocketAddress& local) {
  calls.emplace_back("bind");
  if (!manager_->bind_answer.ok()) return manager_->bind_answer;
  const uint16_t port = local.port != 0 ? local.port : manager_->next_port++;
  if (!manager_->ports.insert(port).second) return absl::AlreadyExistsError("port taken");
  local_ = {local.ip, port};
  return absl::OkStatus();
}

absl::Status ScriptedEndpoint::ResolveAddr(const SocketAddress& local, const SocketAddress& peer,
                                           uint32_t) {
  calls.emplace_back("resolve_addr");
  if (!manager_->resolve_answer.ok()) return manager_->resolve_answer;
  if (local_ == SocketAddress()) local_ = local;
  peer_ = peer;
  return absl::OkStatus();
}

absl::Status ScriptedEndpoint::Listen(int) {
  calls.emplace_back("listen");
  listening = manager_->listen_answer.ok();
  return manager_->listen_answer;
}

absl::Status ScriptedEndpoint::SetOption(uint32_t option, std::span<const uint8_t> value) {
  if (!manager_->option_answer.ok()) return manager_->option_answer;
  options[option] = value[0];
  return absl::OkStatus();
}

class Heard final : public CmEventSink {
 public:
  void OnCmEvent(CmEvent event) override {
    types.push_back(event.type);
    if (event.new_endpoint != nullptr) requests.push_back(std::move(event.new_endpoint));
    if (destroy != nullptr) destroy->reset();
  }
  std::shared_ptr<const void> TakeBacklogPlace() override { return place; }

  std::vector<CmEventType> types;
  std::vector<std::unique_ptr<CmEndpoint>> requests;
  std::shared_ptr<const void> place;
  std::unique_ptr<CmEndpoint>* destroy = nullptr;
};

class MultiConnectionManagerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto multi = MultiConnectionManager::Create(
        {&verbs_, &soft_}, [](const IpAddress& peer) { return RouteTo(peer); });
    ASSERT_OK(multi);
    multi_ = *std::move(multi);
    endpoint_ = multi_->CreateEndpoint(PortSpace::kTcp, &heard_);
  }

  static absl::StatusOr<IpAddress> RouteTo(const IpAddress& peer) {
    if (peer == kPeerByVerbs) return kVerbsIp;
    if (peer == kPeerBySoft) return kSoftIp;
    if (peer == kPeerByNobody) return kNobodysIp;
    if (peer.is_loopback()) return IpAddress::FromV4(127, 0, 0, 1);
    return absl::NotFoundError("no route");
  }

  void BindWildcard() { ASSERT_OK(endpoint_->BindAddr({IpAddress::AnyV4(), 0})); }

  ScriptedManager verbs_{{kVerbsIp, kBothIp}, 40'000};
  ScriptedManager soft_{{kSoftIp, kBothIp}, 50'000};
  std::unique_ptr<MultiConnectionManager> multi_;
  Heard heard_;
  std::unique_ptr<CmEndpoint> endpoint_;
};

// ---- binding ----

TEST_F(MultiConnectionManagerTest, AnAddressBelongsToTheManagerThatServesIt) {
  ASSERT_OK(endpoint_->BindAddr({kSoftIp, 7}));
  EXPECT_TRUE(verbs_.endpoints.empty());
  EXPECT_EQ(soft_.only().local(), (SocketAddress{kSoftIp, 7}));
}

TEST_F(MultiConnectionManagerTest, TheFirstManagerWinsAnAddressThatBothServe) {
  ASSERT_OK(endpoint_->BindAddr({kBothIp, 7}));
  EXPECT_EQ(verbs_.endpoints.size(), 1u);
  EXPECT_TRUE(soft_.endpoints.empty());
}

TEST_F(MultiConnectionManagerTest, AnAddressThatNobodyServesIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(endpoint_->BindAddr({kNobodysIp, 7})));
  EXPECT_STREQ(endpoint_->state_name(), "idle");
  EXPECT_OK(endpoint_->BindAddr({kVerbsIp, 7}));
}

TEST_F(MultiConnectionManagerTest, AfterAFailedBindTheIdIsUndecidedAgain) {
  verbs_.ports.insert(7);
  EXPECT_TRUE(absl::IsAlreadyExists(endpoint_->BindAddr({kVerbsIp, 7})));
  EXPECT_TRUE(verbs_.endpoints.empty());
  EXPECT_OK(endpoint_->BindAddr({kSoftIp, 7}));
}

TEST_F(MultiConnectionManagerTest, AWildcardIsBoundInAllOnThePortThatTheFirstPicks) {
  BindWildcard();
  EXPECT_EQ(verbs_.only().local().port, 40'000);
  EXPECT_EQ(soft_.only().local().port, 40'000);
  EXPECT_EQ(endpoint_->local(), (SocketAddress{IpAddress::AnyV4(), 40'000}));
}

TEST_F(MultiConnectionManagerTest, APortThatTheSecondHasTakenIsPickedAnew) {
  soft_.ports = {40'000, 40'001};
  BindWildcard();
  EXPECT_EQ(endpoint_->local().port, 40'002);
  EXPECT_EQ(soft_.only().local().port, 40'002);
  // Those of the attempts that failed are free again.
  EXPECT_EQ(verbs_.ports, std::set<uint16_t>{40'002});
}

TEST_F(MultiConnectionManagerTest, AttemptsToFindACommonPortEnd) {
  for (uint16_t port = 40'000; port < 41'000; ++port) soft_.ports.insert(port);
  EXPECT_TRUE(absl::IsAlreadyExists(endpoint_->BindAddr({IpAddress::AnyV4(), 0})));
  EXPECT_TRUE(verbs_.endpoints.empty());
  EXPECT_TRUE(verbs_.ports.empty());
}

TEST_F(MultiConnectionManagerTest, AGivenPortThatOneHasTakenIsTaken) {
  soft_.ports.insert(99);
  EXPECT_TRUE(absl::IsAlreadyExists(endpoint_->BindAddr({IpAddress::AnyV4(), 99})));
  EXPECT_TRUE(verbs_.endpoints.empty());
}

TEST_F(MultiConnectionManagerTest, AManagerWithoutADeviceIsLeftOut) {
  verbs_.bind_answer = absl::NotFoundError("no device");
  BindWildcard();
  EXPECT_TRUE(verbs_.endpoints.empty());
  EXPECT_EQ(endpoint_->local().port, 50'000);
}

TEST_F(MultiConnectionManagerTest, WithoutAnyDeviceAWildcardIsNotFound) {
  verbs_.bind_answer = absl::NotFoundError("no device");
  soft_.bind_answer = absl::NotFoundError("no device");
  EXPECT_TRUE(absl::IsNotFound(endpoint_->BindAddr({IpAddress::AnyV4(), 0})));
}

// ---- listening ----

TEST_F(MultiConnectionManagerTest, AWildcardListensInAll) {
  BindWildcard();
  ASSERT_OK(endpoint_->Listen(4));
  EXPECT_TRUE(verbs_.only().listening);
  EXPECT_TRUE(soft_.only().listening);
}

TEST_F(MultiConnectionManagerTest, ListeningUnboundTakesAWildcard) {
  ASSERT_OK(endpoint_->Listen(4));
  EXPECT_EQ(endpoint_->local(), (SocketAddress{IpAddress::AnyV4(), 40'000}));
  EXPECT_TRUE(soft_.only().listening);
}

TEST_F(MultiConnectionManagerTest, AManagerThatCannotListenIsLeftOut) {
  BindWildcard();
  soft_.listen_answer = absl::UnimplementedError("port space");
  ASSERT_OK(endpoint_->Listen(4));
  EXPECT_TRUE(verbs_.only().listening);
  EXPECT_TRUE(soft_.endpoints.empty());
}

TEST_F(MultiConnectionManagerTest, WhereNoneCanListenTheErrorIsTheirs) {
  verbs_.listen_answer = absl::UnimplementedError("port space");
  soft_.listen_answer = absl::UnimplementedError("port space");
  EXPECT_TRUE(absl::IsUnimplemented(endpoint_->Listen(4)));
}

TEST_F(MultiConnectionManagerTest, WhenOneRefusesToListenNoneListens) {
  BindWildcard();
  soft_.listen_answer = absl::AlreadyExistsError("someone listens");
  EXPECT_TRUE(absl::IsAlreadyExists(endpoint_->Listen(4)));
  EXPECT_FALSE(verbs_.only().listening);
  EXPECT_EQ(endpoint_->local().port, 40'000);
  soft_.listen_answer = absl::OkStatus();
  ASSERT_OK(endpoint_->Listen(4));
  EXPECT_TRUE(verbs_.only().listening);
}

TEST_F(MultiConnectionManagerTest, RequestsOfEachManagerAreHandedOnAsTheyAre) {
  ASSERT_OK(endpoint_->Listen(4));
  ScriptedEndpoint* const verbs_listener = &verbs_.only();
  ScriptedEndpoint* const soft_listener = &soft_.only();
  auto by_verbs = verbs_.CreateEndpoint(PortSpace::kTcp, nullptr);
  auto by_soft = soft_.CreateEndpoint(PortSpace::kTcp, nullptr);
  const std::vector<CmEndpoint*> sent = {by_verbs.get(), by_soft.get()};
  verbs_.Queue(verbs_listener, CmEventType::kConnectRequest, std::move(by_verbs));
  soft_.Queue(soft_listener, CmEventType::kConnectRequest, std::move(by_soft));
  multi_->Poll(0);
  ASSERT_EQ(heard_.requests.size(), 2u);
  EXPECT_EQ(heard_.requests[0].get(), sent[0]);
  EXPECT_EQ(heard_.requests[1].get(), sent[1]);
  heard_.requests.clear();
}

TEST_F(MultiConnectionManagerTest, EachManagerAsksTheOneListenerForAPlaceInItsBacklog) {
  BindWildcard();
  ASSERT_OK(endpoint_->Listen(8));
  EXPECT_EQ(soft_.only().TakeBacklogPlace(), nullptr);
  heard_.place = std::make_shared<int>(0);
  EXPECT_EQ(soft_.only().TakeBacklogPlace(), heard_.place);
  EXPECT_EQ(verbs_.only().TakeBacklogPlace(), heard_.place);
}

TEST_F(MultiConnectionManagerTest, AListenerGoesOnWhenOneManagersPartIsLost) {
  ASSERT_OK(endpoint_->Listen(4));
  verbs_.Queue(&verbs_.only(), CmEventType::kDeviceRemoval);
  multi_->Poll(0);
  EXPECT_TRUE(heard_.types.empty());
  EXPECT_TRUE(verbs_.endpoints.empty());
  soft_.Queue(&soft_.only(), CmEventType::kConnectRequest);
  multi_->Poll(0);
  EXPECT_EQ(heard_.types, std::vector{CmEventType::kConnectRequest});
  // The last one's loss is the id's.
  soft_.Queue(&soft_.only(), CmEventType::kDeviceRemoval);
  multi_->Poll(0);
  EXPECT_EQ(heard_.types.back(), CmEventType::kDeviceRemoval);
}

TEST_F(MultiConnectionManagerTest, DestroyingTheEndpointEndsAllParts) {
  ASSERT_OK(endpoint_->Listen(4));
  endpoint_.reset();
  EXPECT_TRUE(verbs_.endpoints.empty());
  EXPECT_TRUE(soft_.endpoints.empty());
}

TEST_F(MultiConnectionManagerTest, TheEndpointMayBeDestroyedInItsEvent) {
  ASSERT_OK(endpoint_->Listen(4));
  heard_.destroy = &endpoint_;
  verbs_.Queue(&verbs_.only(), CmEventType::kConnectRequest);
  soft_.Queue(&soft_.only(), CmEventType::kConnectRequest);
  multi_->Poll(0);
  EXPECT_EQ(heard_.types.size(), 1u);
  EXPECT_TRUE(verbs_.endpoints.empty());
  EXPECT_TRUE(soft_.endpoints.empty());
}

// ---- resolving ----

struct RouteCase {
  const char* name;
  IpAddress peer;
  bool to_verbs;
};

class MultiRoutes : public MultiConnectionManagerTest,
                    public ::testing::WithParamInterface<RouteCase> {
 protected:
  const ScriptedManager& chosen() const { return GetParam().to_verbs ? verbs_ : soft_; }
  const ScriptedManager& other() const { return GetParam().to_verbs ? soft_ : verbs_; }
};

INSTANTIATE_TEST_SUITE_P(, MultiRoutes,
                         ::testing::Values(RouteCase{"ByVerbs", kPeerByVerbs, true},
                                           RouteCase{"BySoft", kPeerBySoft, false},
                                           RouteCase{"BySourceThatNobodyServes", kPeerByNobody,
                                                     false},
                                           RouteCase{"WithoutRoute", kPeerWithoutRoute, false},
                                           RouteCase{"ThisHost", IpAddress::AnyV4(), false}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(MultiRoutes, TheRouteDecidesForAnUnboundId) {
  ASSERT_OK(endpoint_->ResolveAddr({}, {GetParam().peer, 5}, 100));
  EXPECT_EQ(chosen().endpoints.size(), 1u);
  EXPECT_TRUE(other().endpoints.empty());
  EXPECT_EQ(endpoint_->peer(), (SocketAddress{GetParam().peer, 5}));
}

TEST_P(MultiRoutes, TheRouteDecidesForAnIdBoundToAWildcard) {
  BindWildcard();
  ASSERT_OK(endpoint_->ResolveAddr({}, {GetParam().peer, 5}, 100));
  EXPECT_EQ(chosen().endpoints.size(), 1u);
  EXPECT_TRUE(other().endpoints.empty());
  EXPECT_EQ(endpoint_->local().port, 40'000);
}

TEST_F(MultiConnectionManagerTest, AGivenLocalAddressDecidesBeforeTheRoute) {
  ASSERT_OK(endpoint_->ResolveAddr({kSoftIp, 0}, {kPeerByVerbs, 5}, 100));
  EXPECT_TRUE(verbs_.endpoints.empty());
  EXPECT_EQ(soft_.only().local().ip, kSoftIp);
}

TEST_F(MultiConnectionManagerTest, ResolvingFromAnAddressThatNobodyServesIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(endpoint_->ResolveAddr({kNobodysIp, 0}, {kPeerByVerbs, 5}, 100)));
}

TEST_F(MultiConnectionManagerTest, AfterARefusedResolveAWildcardIsStillBoundInAll) {
  BindWildcard();
  verbs_.resolve_answer = absl::InvalidArgumentError("no");
  EXPECT_TRUE(absl::IsInvalidArgument(endpoint_->ResolveAddr({}, {kPeerByVerbs, 5}, 100)));
  ASSERT_OK(endpoint_->ResolveAddr({}, {kPeerBySoft, 5}, 100));
  EXPECT_TRUE(verbs_.endpoints.empty());
  EXPECT_EQ(soft_.endpoints.size(), 1u);
}

TEST_F(MultiConnectionManagerTest, ADecidedIdStaysWithItsManager) {
  ASSERT_OK(endpoint_->ResolveAddr({}, {kPeerByVerbs, 5}, 100));
  verbs_.Queue(&verbs_.only(), CmEventType::kAddrError);
  multi_->Poll(0);
  EXPECT_EQ(heard_.types, std::vector{CmEventType::kAddrError});
  ASSERT_OK(endpoint_->ResolveAddr({}, {kPeerBySoft, 5}, 100));
  EXPECT_EQ(verbs_.endpoints.size(), 1u);
  EXPECT_TRUE(soft_.endpoints.empty());
}

TEST_F(MultiConnectionManagerTest, CallsOfADecidedIdAreItsManagers) {
  ASSERT_OK(endpoint_->ResolveAddr({}, {kPeerByVerbs, 5}, 100));
  EXPECT_OK(endpoint_->ResolveRoute(100));
  EXPECT_OK(endpoint_->Connect({}));
  EXPECT_OK(endpoint_->Establish());
  EXPECT_OK(endpoint_->NotifyCommEstablished());
  EXPECT_OK(endpoint_->Disconnect());
  EXPECT_OK(endpoint_->JoinMulticast({IpAddress::FromV4(239, 0, 0, 1), 0}, 0, 1));
  EXPECT_OK(endpoint_->LeaveMulticast({IpAddress::FromV4(239, 0, 0, 1), 0}));
  EXPECT_EQ(endpoint_->remote_qpn(), 7u);
  EXPECT_EQ(verbs_.only().calls, (std::vector<std::string>{
                                     "resolve_addr", "resolve_route", "connect", "establish",
                                     "notify", "disconnect", "join_multicast", "leave_multicast"}));
}

TEST_F(MultiConnectionManagerTest, WhatNeedsADecisionIsRefusedBeforeOne) {
  EXPECT_TRUE(absl::IsFailedPrecondition(endpoint_->ResolveRoute(100)));
  EXPECT_TRUE(absl::IsFailedPrecondition(endpoint_->Connect({})));
  EXPECT_TRUE(absl::IsFailedPrecondition(endpoint_->Disconnect()));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      endpoint_->JoinMulticast({IpAddress::FromV4(239, 0, 0, 1), 0}, 0, 1)));
  EXPECT_TRUE(absl::IsFailedPrecondition(endpoint_->InitQpAttr(QpState::kInit).status()));
  EXPECT_EQ(endpoint_->device(), nullptr);
}

// ---- options ----

TEST_F(MultiConnectionManagerTest, OptionsSetBeforeReachWhoGetsTheId) {
  ASSERT_OK(endpoint_->SetOption(0, std::array<uint8_t, 1>{1}));
  ASSERT_OK(endpoint_->SetOption(0, std::array<uint8_t, 1>{2}));
  ASSERT_OK(endpoint_->SetOption(3, std::array<uint8_t, 1>{9}));
  EXPECT_TRUE(verbs_.endpoints.empty());
  ASSERT_OK(endpoint_->Listen(1));
  const std::map<uint32_t, uint8_t> expected = {{0, 2}, {3, 9}};
  EXPECT_EQ(verbs_.only().options, expected);
  EXPECT_EQ(soft_.only().options, expected);
}

TEST_F(MultiConnectionManagerTest, AnOptionThatOneManagerDoesNotHaveIsRefusedAtOnce) {
  soft_.option_answer = absl::UnimplementedError("option");
  EXPECT_TRUE(absl::IsUnimplemented(endpoint_->SetOption(77, std::array<uint8_t, 1>{1})));
  soft_.option_answer = absl::OkStatus();
  ASSERT_OK(endpoint_->Listen(1));
  EXPECT_TRUE(verbs_.only().options.empty());
}

TEST_F(MultiConnectionManagerTest, OptionsOfAWildcardReachAll) {
  BindWildcard();
  ASSERT_OK(endpoint_->SetOption(0, std::array<uint8_t, 1>{5}));
  EXPECT_EQ(verbs_.only().options[0], 5);
  EXPECT_EQ(soft_.only().options[0], 5);
}

// ---- the manager ----

TEST_F(MultiConnectionManagerTest, ServesWhatSomeManagerServes) {
  EXPECT_TRUE(multi_->Serves(kVerbsIp));
  EXPECT_TRUE(multi_->Serves(kSoftIp));
  EXPECT_FALSE(multi_->Serves(kNobodysIp));
}

TEST_F(MultiConnectionManagerTest, IsReadableWhileSomeManagerIs) {
  pollfd poller{multi_->poll_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&poller, 1, 0), 0);
  ASSERT_OK(endpoint_->BindAddr({kSoftIp, 0}));
  soft_.Queue(&soft_.only(), CmEventType::kAddrChange);
  EXPECT_EQ(::poll(&poller, 1, 0), 1);
  multi_->Poll(0);
  EXPECT_EQ(::poll(&poller, 1, 0), 0);
}

TEST_F(MultiConnectionManagerTest, TheNextDeadlineIsTheEarliest) {
  EXPECT_EQ(multi_->NextDeadline(), kNever);
  soft_.deadline = 20;
  verbs_.deadline = 30;
  EXPECT_EQ(multi_->NextDeadline(), 20);
}

}  // namespace
}  // namespace rdmad::device
