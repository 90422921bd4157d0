#include "tests/device/soft/cm/cm_testing.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "gtest/gtest.h"

namespace rdmad::soft {
namespace {

const char* Name(CmEventType type) {
  static constexpr const char* kNames[] = {
      "addr_resolved",   "addr_error",       "route_resolved", "route_error",
      "connect_request", "connect_response", "connect_error",  "unreachable",
      "rejected",        "established",      "disconnected",   "device_removal",
      "multicast_join",  "multicast_error",  "addr_change",    "timewait_exit"};
  return kNames[static_cast<uint32_t>(type)];
}

CmOptions WithClock(CmOptions options, TestNet* net) {
  options.clock = [net] { return net->now; };
  if (options.seed == 0) options.seed = net->Random();
  return options;
}

}  // namespace

// ---- TestNet ----

void TestNet::Send(const Flow& flow, const Mad& mad) {
  SentMad record{now, flow, mad, {}, {}};
  EXPECT_EQ(wire::ParseCmMessage(mad, &record.header, &record.message), wire::MadDropReason::kNone);
  const bool passes = pass == nullptr || pass(record);
  if (keep_sent) sent.push_back(record);
  if (!passes || Chance() < faults.loss) return;
  Enqueue(flow, mad);
  if (Chance() < faults.duplicate) Enqueue(flow, mad);
}

void TestNet::Enqueue(const Flow& flow, const Mad& mad) {
  const auto spread = static_cast<uint64_t>(faults.delay_max_ns - faults.delay_min_ns + 1);
  const TimeNs arrival = now + faults.delay_min_ns + static_cast<int64_t>(random_() % spread);
  in_flight_.push({arrival, ++order_, flow, mad});
}

void TestNet::Inject(const Flow& sender_flow, const Mad& mad) {
  for (TestHost* host : hosts) {
    if (!host->IsLocal(sender_flow.remote)) continue;
    ReceivedMad received;
    received.flow.local = sender_flow.remote;
    received.flow.remote = sender_flow.local;
    received.mad = mad;
    host->inbox.push_back(received);
  }
}

void TestNet::Inject(const Flow& sender_flow, uint64_t transaction_id,
                     const wire::CmMessage& message) {
  Mad mad;
  wire::BuildCmMad(transaction_id, message, mad);
  Inject(sender_flow, mad);
}

bool TestNet::RunUntil(TimeNs end) {
  for (;;) {
    TimeNs next = device::kNever;
    if (!in_flight_.empty()) next = in_flight_.top().time;
    for (TestHost* host : hosts) {
      next = std::min(next, host->HasWork() ? now : host->manager->NextDeadline());
    }
    if (next == device::kNever) return true;
    if (next > end) return false;
    now = std::max(now, next);
    while (!in_flight_.empty() && in_flight_.top().time <= now) {
      const InFlight arriving = in_flight_.top();
      in_flight_.pop();
      Inject(arriving.flow, arriving.mad);
    }
    for (TestHost* host : hosts) host->manager->Poll(now);
  }
}

bool TestNet::Run(int64_t limit_ns) {
  return RunUntil(now + limit_ns);
}

void TestNet::RunFor(int64_t duration_ns) {
  const TimeNs end = now + duration_ns;
  RunUntil(end);
  now = end;
}

int TestNet::Count(wire::CmAttribute attribute) const {
  return static_cast<int>(std::count_if(
      sent.begin(), sent.end(),
      [attribute](const SentMad& record) { return record.header.attribute == attribute; }));
}

const SentMad* TestNet::Last(wire::CmAttribute attribute) const {
  for (auto record = sent.rbegin(); record != sent.rend(); ++record) {
    if (record->header.attribute == attribute) return &*record;
  }
  return nullptr;
}

// ---- TestDevice ----

std::vector<device::GidEntry> TestDevice::Gids() const {
  // Index 0 is taken by an address that nobody uses here.
  std::vector<device::GidEntry> gids{{0, IpAddress::FromV4(192, 0, 2, 254)}};
  for (const IpAddress& address : addresses) {
    gids.push_back({static_cast<uint32_t>(gids.size()), address});
  }
  return gids;
}

bool TestDevice::Has(const IpAddress& address) const {
  return std::find(addresses.begin(), addresses.end(), address) != addresses.end();
}

// ---- TestHost ----

TestHost::TestHost(TestNet* test_net, const std::string& address, CmOptions options)
    : ip(IpAddress::Parse(address).value()), net(test_net), device({ip}) {
  manager = SoftConnectionManager::Create(this, this, WithClock(std::move(options), net)).value();
  net->hosts.push_back(this);
}

TestHost::~TestHost() {
  std::erase(net->hosts, this);
}

bool TestHost::SendMad(const Flow& flow, std::span<const uint8_t, kMadBytes> mad) noexcept {
  Mad copy;
  std::copy(mad.begin(), mad.end(), copy.begin());
  net->Send(flow, copy);
  return true;
}

bool TestHost::HasWork() const {
  pollfd wait{manager->poll_fd(), POLLIN, 0};
  return !inbox.empty() || ::poll(&wait, 1, 0) == 1;
}

bool TestHost::Receive(ReceivedMad* out) noexcept {
  if (inbox.empty()) return false;
  *out = inbox.front();
  inbox.pop_front();
  return true;
}

device::Device* TestHost::FindByAddress(const IpAddress& address) const {
  if (!has_device) return nullptr;
  if (device.Has(address)) return &device;
  return second.Has(address) ? &second : nullptr;
}

absl::StatusOr<IpAddress> TestHost::SourceAddressFor(const IpAddress& peer) const {
  if (!has_route) return absl::NotFoundError("no route");
  return peer.is_loopback() && peer.is_v4() ? IpAddress::FromV4(127, 0, 0, 1) : ip;
}

// ---- TestId ----

TestId::TestId(TestHost* host, device::PortSpace space)
    : endpoint(host->manager->CreateEndpoint(space, this)) {}

TestId::TestId(std::unique_ptr<device::CmEndpoint> taken) : endpoint(std::move(taken)) {
  endpoint->SetSink(this);
}

void TestId::OnCmEvent(device::CmEvent event) {
  events.push_back({event.type, event.status, std::move(event.param), event.path_mtu, event.av,
                    event.multicast_cookie});
  if (event.new_endpoint != nullptr) {
    requests.push_back(std::make_unique<TestId>(std::move(event.new_endpoint)));
    requests.back()->place_ = std::move(event.backlog_place);
    requests.back()->unanswered_ = (*requests.back())->state_name();
  }
  const SeenEvent seen = events.back();
  if (on_event) on_event(*this, seen);
}

std::shared_ptr<const void> TestId::TakeBacklogPlace() {
  for (const std::unique_ptr<TestId>& request : requests) {
    if (request->place_ == nullptr) continue;
    const device::CmEndpoint* const its = request->endpoint.get();
    if (its == nullptr || request->unanswered_ != its->state_name()) request->place_.reset();
  }
  return backlog_.use_count() - 1 < backlog ? backlog_ : nullptr;
}

int TestId::Count(CmEventType type) const {
  return static_cast<int>(std::count_if(
      events.begin(), events.end(), [type](const SeenEvent& event) { return event.type == type; }));
}

const SeenEvent* TestId::Find(CmEventType type) const {
  for (const SeenEvent& event : events) {
    if (event.type == type) return &event;
  }
  return nullptr;
}

std::string TestId::History() const {
  std::string history;
  for (const SeenEvent& event : events) {
    history += std::string(Name(event.type)) + ":" + std::to_string(event.status) + " ";
  }
  return history;
}

void ConnectTo(TestId* client, const SocketAddress& peer, const device::ConnParam& param) {
  client->on_event = [param](TestId& id, const SeenEvent& event) {
    if (event.type == CmEventType::kAddrResolved) {
      EXPECT_TRUE(id->ResolveRoute(2000).ok());
    } else if (event.type == CmEventType::kRouteResolved) {
      EXPECT_TRUE(id->Connect(param).ok());
    } else if (event.type == CmEventType::kConnectResponse) {
      (void)id->Establish();
    }
  };
  ASSERT_TRUE((*client)->ResolveAddr(SocketAddress(), peer, 2000).ok());
}

void ListenOn(TestId* server, const SocketAddress& local, std::function<void(TestId&)> on_request,
              int backlog) {
  server->on_event = [on_request = std::move(on_request)](TestId& id, const SeenEvent& event) {
    if (event.type == CmEventType::kConnectRequest) on_request(*id.requests.back());
  };
  server->backlog = backlog;
  ASSERT_TRUE((*server)->BindAddr(local).ok());
  ASSERT_TRUE((*server)->Listen(backlog).ok());
}

}  // namespace rdmad::soft
