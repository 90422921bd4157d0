#include "tests/sim/cm_world.h"

#include <cerrno>

namespace rdmad::sim {

using device::CmEventType;
using device::PortSpace;
using soft::kMs;
using soft::kSecond;
using soft::SeenEvent;
using soft::TestId;

namespace {

constexpr uint16_t kPort = 7000;
constexpr int64_t kSeveralMinutes = 1'200 * kSecond;
// Per call, all its messages and answers, repetitions included: 16 REQs, REPs and RTUs, 7 DREQs and
// DREPs from either side, and what answers each.
constexpr uint64_t kMostMessages = 200;

std::string HostName(size_t host) {
  return "10.0.0." + std::to_string(host + 1);
}

SocketAddress At(const std::string& host, uint16_t port) {
  return soft::Address(host + ":" + std::to_string(port));
}

// What the two tell each other: the call's number, and who says it.
std::vector<uint8_t> Words(uint32_t number, uint8_t who) {
  return {who, static_cast<uint8_t>(number), static_cast<uint8_t>(number >> 8), 0x5a};
}

// The wire pads private data with zeros.
bool Says(const std::vector<uint8_t>& data, const std::vector<uint8_t>& words) {
  return data.size() >= words.size() && std::equal(words.begin(), words.end(), data.begin());
}

bool IsEnd(CmEventType type) {
  return type == CmEventType::kRejected || type == CmEventType::kUnreachable ||
         type == CmEventType::kConnectError || type == CmEventType::kDisconnected ||
         type == CmEventType::kAddrError || type == CmEventType::kRouteError;
}

int Ends(const TestId& id) {
  int count = 0;
  for (const SeenEvent& event : id.events) count += IsEnd(event.type) ? 1 : 0;
  return count;
}

bool Stands(const TestId* id) {
  return id != nullptr && id->endpoint != nullptr &&
         std::string(id->endpoint->state_name()) == "established";
}

// All of its DREQs were lost, so that the other side cannot know.
bool LeftUnheard(const TestId* id) {
  const SeenEvent* const end = id == nullptr ? nullptr : id->Find(CmEventType::kDisconnected);
  return end != nullptr && end->status == -ETIMEDOUT;
}

}  // namespace

CmWorld::CmWorld(const SimOptions& options)
    : options_(options),
      random_(options.seed),
      verdict_(options.trace),
      net_(random_.Next()),
      qpns_(random_.Next()) {
  net_.keep_sent = false;
  net_.pass = [this](const soft::SentMad& sent) {
    ++messages_;
    verdict_.Trace(sent.time, "   message ", static_cast<int>(sent.header.attribute), " from ",
                   sent.flow.local.ToString(), " to ", sent.flow.remote.ToString());
    return !partitioned_;
  };
  for (size_t i = 0; i < kHosts; ++i) {
    hosts_[i] = std::make_unique<soft::TestHost>(&net_, HostName(i));
    for (const bool datagram : {false, true}) Listen(i, datagram);
  }
  MakeWeather();
}

void CmWorld::MakeWeather() {
  if (random_.Chance(0.8)) {
    weather_.loss = random_.Pick({0.0, 0.01, 0.1, 0.3});
    weather_.duplicate = random_.Pick({0.0, 0.1, 0.5});
  }
  weather_.delay_max_ns = random_.Pick({50'000, 1'000'000, 300'000'000});
  net_.faults = weather_;
}

void CmWorld::Listen(size_t host, bool datagram) {
  Service& service = services_[host][datagram ? 1 : 0];
  service.datagram = datagram;
  service.listener =
      std::make_unique<TestId>(hosts_[host].get(), datagram ? PortSpace::kUdp : PortSpace::kTcp);
  service.listener->on_event = [this](TestId& id, const SeenEvent& event) {
    if (event.type == CmEventType::kConnectRequest) OnRequest(*id.requests.back(), event);
  };
  const std::string where = random_.Chance(0.5) ? "0.0.0.0" : HostName(host);
  const absl::Status bound = (*service.listener)->BindAddr(At(where, kPort));
  if (!bound.ok()) return verdict_.Fail("a listener's port is taken: ", bound.ToString());
  service.listener->backlog = 64;
  if (!(*service.listener)->Listen(64).ok()) verdict_.Fail("cannot listen");
}

void CmWorld::StartCall() {
  auto made = std::make_unique<Call>();
  Call& call = *made;
  call.number = static_cast<uint32_t>(calls_.size());
  call.from = random_.Below(kHosts);
  call.datagram = random_.Chance(0.25);
  const auto qpn = qpns_.Allocate(0, net_.now);
  if (!qpn.ok()) return verdict_.Fail("no QP number left");
  call.qpn = *qpn;
  if (!calls_.empty() && random_.Chance(0.05)) {
    call.shares_qpn = calls_.back()->shares_qpn = true;
    call.qpn = calls_.back()->qpn;
  }
  const size_t to = random_.Below(kHosts);
  const uint32_t kind = random_.Below(20);  // a port without a listener, a host that is not there
  const std::string host = kind == 0 ? "10.0.0.99" : HostName(to);
  call.client = std::make_unique<TestId>(hosts_[call.from].get(),
                                         call.datagram ? PortSpace::kUdp : PortSpace::kTcp);
  call.client->on_event = [this, &call](TestId& id, const SeenEvent& event) {
    OnClientEvent(call, id, event);
  };
  verdict_.Trace(net_.now, " call ", call.number, " from ", call.from, " to ", host, " datagram ",
                 call.datagram);
  calls_.push_back(std::move(made));
  const absl::Status asked =
      (*call.client)->ResolveAddr(SocketAddress(), At(host, kind == 1 ? kPort + 1 : kPort), 2000);
  if (!asked.ok()) verdict_.Fail("resolve refused: ", asked.ToString());
}

void CmWorld::OnClientEvent(Call& call, TestId& id, const SeenEvent& event) {
  ++events_;
  verdict_.Mix(call.number * 64 + static_cast<uint32_t>(event.type));
  verdict_.Trace(net_.now, "  call ", call.number, " event ", static_cast<int>(event.type),
                 " status ", event.status);
  if (event.type == CmEventType::kAddrResolved) {
    if (!id->ResolveRoute(2000).ok()) verdict_.Fail("no route");
  } else if (event.type == CmEventType::kRouteResolved) {
    call.begun = true;
    if (!id->Connect(soft::Param(call.qpn, Words(call.number, 1))).ok()) {
      verdict_.Fail("connect refused");
    }
  } else if (event.type == CmEventType::kConnectResponse) {
    if (!call.accepted) verdict_.Fail("call ", call.number, ": accepted by nobody");
    if (!Says(event.param.private_data, Words(call.number, 2))) {
      verdict_.Fail("call ", call.number, ": what the acceptor says is lost");
    }
    (void)id->Establish();
  } else if (event.type == CmEventType::kEstablished && call.datagram) {
    if (!call.accepted) verdict_.Fail("call ", call.number, ": answered by nobody");
  } else if (event.type == CmEventType::kRejected) {
    constexpr int kStale = 10;
    constexpr int kByConsumer = 28;
    if (event.status == kStale && !call.shares_qpn) {
      verdict_.Fail("call ", call.number, ": its QP number is taken for an old one");
    }
    if (event.status == kByConsumer && call.rejected &&
        !Says(event.param.private_data, Words(call.number, 3))) {
      verdict_.Fail("call ", call.number, ": what the rejecting side says is lost");
    }
  }
}

void CmWorld::OnRequest(TestId& request, const SeenEvent& event) {
  ++events_;
  const auto& data = event.param.private_data;
  const uint32_t number = data.size() < 3 ? UINT32_MAX : data[1] | uint32_t{data[2]} << 8;
  if (number >= calls_.size() || !Says(data, Words(number, 1))) {
    return verdict_.Fail("a request of nobody");
  }
  Call& call = *calls_[number];
  // What was answered is not remembered for ever: only as long as repetitions come.
  const bool may_be_forgotten = was_partitioned_ || (call.datagram && weather_.loss > 0);
  if (++call.requests > 1 && !may_be_forgotten && !call.shares_qpn) {
    verdict_.Fail("call ", number, ": a second request; ", Story(call));
  }
  call.server = &request;
  call.answered = false;
  if (random_.Chance(0.3)) Answer(call);
}

void CmWorld::Answer(Call& call) {
  if (call.answered || call.server == nullptr || call.server->endpoint == nullptr) return;
  call.answered = true;
  TestId& server = *call.server;
  const uint32_t how = random_.Below(10);
  verdict_.Trace(net_.now, "  answer to ", call.number, ": ", how);
  if (how < 7) {
    const auto qpn = qpns_.Allocate(0, net_.now);
    call.accepted = true;  // a later error, of a peer that has gone, is no matter
    (void)server->Accept(soft::Param(*qpn, Words(call.number, 2)));
  } else if (how < 9) {
    call.rejected = true;
    const std::vector<uint8_t> words = Words(call.number, 3);
    (void)server->Reject(words);
  } else {
    server.endpoint.reset();
  }
}

// One of the two leaves, politely or not.
void CmWorld::Part(Call& call) {
  TestId* const id = random_.Chance(0.5) ? call.client.get() : call.server;
  if (id == nullptr || id->endpoint == nullptr || call.datagram) return;
  verdict_.Trace(net_.now, "  call ", call.number, " parts, client ", id == call.client.get());
  if (random_.Chance(0.7)) {
    (void)(*id)->Disconnect();
  } else if (id == call.client.get() || call.answered) {
    id->endpoint.reset();
    if (id == call.client.get() && !call.shares_qpn) qpns_.Free(call.qpn, net_.now);
  }
}

CmWorld::Call* CmWorld::PickCall() {
  return calls_.empty() ? nullptr : calls_[random_.Below(calls_.size())].get();
}

void CmWorld::ChangeWeather() {
  if (random_.Chance(0.3)) {
    partitioned_ = !partitioned_;
    was_partitioned_ = true;
    verdict_.Trace(net_.now, " partition ", partitioned_);
    return;
  }
  net_.faults = random_.Chance(0.3) ? soft::Faults{} : weather_;
}

void CmWorld::Act() {
  Call* const call = PickCall();
  switch (random_.Below(8)) {
    case 0:
    case 1:
      if (calls_.size() < 60) StartCall();
      break;
    case 2:
    case 3:
      if (call != nullptr) Answer(*call);
      break;
    case 4:
      if (call != nullptr) Part(*call);
      break;
    case 5:
      if (call != nullptr && call->accepted && call->server->endpoint != nullptr &&
          call->client->Saw(CmEventType::kConnectResponse)) {
        (void)(*call->server)->NotifyCommEstablished();
      }
      break;
    case 6:
      if (random_.Chance(0.3)) ChangeWeather();
      break;
    case 7:
      if (random_.Chance(0.1)) {
        const size_t host = random_.Below(kHosts);
        const bool datagram = random_.Chance(0.5);
        auto& listener = services_[host][datagram ? 1 : 0].listener;
        listener->endpoint.reset();
        old_listeners_.push_back(std::move(listener));
        Listen(host, datagram);
      }
      break;
  }
  net_.RunFor(random_.Below(random_.Pick({1'000'000u, 50'000'000u, 2'000'000'000u})));
}

void CmWorld::ComeToRest(const char* when) {
  partitioned_ = false;
  net_.faults = {};
  if (!net_.Run(kSeveralMinutes)) verdict_.Fail("does not come to rest ", when);
}

void CmWorld::CheckAgreement() {
  for (const auto& call : calls_) {
    const bool one_is_gone = call->client->endpoint == nullptr || call->server == nullptr ||
                             call->server->endpoint == nullptr;
    if (call->requests > 1 || call->shares_qpn || (was_partitioned_ && one_is_gone)) continue;
    if (LeftUnheard(call->client.get()) || LeftUnheard(call->server)) continue;
    if (Stands(call->client.get()) != Stands(call->server) && !call->datagram) {
      verdict_.Fail("call ", call->number, " stands on one side only; ", Story(*call));
    }
  }
}

void CmWorld::EndAll() {
  for (const auto& call : calls_) {
    if (!call->answered) Answer(*call);
  }
  ComeToRest("after the answers");
  if (!verdict_.failed()) CheckAgreement();
  for (const auto& call : calls_) {
    for (TestId* id : {call->client.get(), call->server}) {
      if (id != nullptr && id->endpoint != nullptr && !call->datagram) (void)(*id)->Disconnect();
    }
  }
  ComeToRest("after the end");
}

void CmWorld::CheckCall(const Call& call) {
  const TestId& client = *call.client;
  if (call.datagram) {
    // Established is the end, too.
    const int ends = Ends(client) + client.Count(CmEventType::kEstablished);
    if (ends > 1 || (ends == 0 && client.endpoint != nullptr)) {
      verdict_.Fail("call ", call.number, " has ", ends, " ends; ", Story(call));
    }
    return;
  }
  const int ends = Ends(client);
  if (ends > 1 || (ends == 0 && client.endpoint != nullptr)) {
    verdict_.Fail("call ", call.number, " has ", ends, " ends; ", Story(call));
  }
  if (call.server == nullptr || call.requests > 1) return;
  const TestId& server = *call.server;
  const int server_ends = Ends(server);
  // Who rejects hears nothing more.
  const bool silent = call.rejected || server.endpoint == nullptr;
  if (server_ends > 1 || (server_ends == 0 && !silent) ||
      server.Count(CmEventType::kEstablished) > 1) {
    verdict_.Fail("call ", call.number, " has ", server_ends, " ends at its server; ", Story(call));
  }
}

void CmWorld::CheckNothingIsLeft() {
  for (const auto& call : calls_) CheckCall(*call);
  if (messages_ > kMostMessages * (calls_.size() + 1)) {
    verdict_.Fail(messages_, " messages for ", calls_.size(), " calls");
  }
  for (auto& host : hosts_) {
    const soft::SoftConnectionManager& manager = *host->manager;
    if (manager.connection_count() + manager.sidr_count() + manager.pending_requests() != 0) {
      verdict_.Fail(manager.connection_count(), " connections, ", manager.sidr_count(),
                    " questions, ", manager.pending_requests(), " requests are left");
    }
  }
  calls_.clear();
  old_listeners_.clear();
  for (auto& services : services_) {
    for (Service& service : services) service.listener.reset();
  }
  for (auto& host : hosts_) {
    const soft::SoftConnectionManager& manager = *host->manager;
    if (manager.bound_ports() + manager.endpoint_count() != 0) {
      verdict_.Fail(manager.bound_ports(), " ports, ", manager.endpoint_count(),
                    " endpoints are left");
    }
  }
}

std::string CmWorld::Story(const Call& call) const {
  return "client: " + call.client->History() +
         "server: " + (call.server == nullptr ? "(no request)" : call.server->History());
}

SimResult CmWorld::Run() {
  SimResult result;
  const device::TimeNs start = net_.now;
  const uint32_t planned = random_.Between(20, 200);
  result.operations = options_.operations == 0 ? planned : std::min(planned, options_.operations);
  for (uint32_t i = 0; i < result.operations && !verdict_.failed(); ++i) Act();
  if (!verdict_.failed()) EndAll();
  result.connections = calls_.size();
  if (!verdict_.failed()) CheckNothingIsLeft();
  result.packets = messages_;
  result.completions = result.successes = events_;
  verdict_.Mix(messages_);
  verdict_.Mix(static_cast<uint64_t>(net_.now));
  result.fingerprint = verdict_.fingerprint();
  result.failure = verdict_.failure();
  result.virtual_seconds = static_cast<double>(net_.now - start) / 1e9;
  return result;
}

}  // namespace rdmad::sim
