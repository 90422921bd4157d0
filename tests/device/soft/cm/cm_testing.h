// A small world for the connection manager: hosts joined by a network that loses, doubles and
// reorders messages by a seed, under a clock that only the test moves.
//
//   TestNet net(seed);
//   TestHost a(&net, "10.0.0.1"), b(&net, "10.0.0.2");
//   TestId server(&b), client(&a);
//   ...
//   net.Run();   // until nothing is under way and no timer runs
#pragma once

#include <functional>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "daemon/device/soft/cm/soft_connection_manager.h"

namespace rdmad::soft {

using device::CmEventType;

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSecond = 1'000 * kMs;

inline SocketAddress Address(const std::string& text) {
  return SocketAddress::Parse(text).value();
}

inline device::ConnParam Param(uint32_t qpn, std::vector<uint8_t> private_data = {},
                               uint8_t responder_resources = 0, uint8_t initiator_depth = 0) {
  device::ConnParam param;
  param.qpn = qpn;
  param.private_data = std::move(private_data);
  param.responder_resources = responder_resources;
  param.initiator_depth = initiator_depth;
  return param;
}

class TestHost;

struct Faults {
  double loss = 0;
  double duplicate = 0;
  int64_t delay_min_ns = 50'000;
  int64_t delay_max_ns = 50'000;  // more than the minimum reorders
};

struct SentMad {
  TimeNs time;
  Flow flow;
  Mad mad;
  wire::MadHeader header;
  wire::CmMessage message;
};

class TestNet {
 public:
  explicit TestNet(uint64_t seed = 1) : random_(seed) {}

  // Runs until nothing is left to do, at most for `limit_ns` of its time. True if it came to rest.
  bool Run(int64_t limit_ns = 3'600 * kSecond);
  // Exactly this long.
  void RunFor(int64_t duration_ns);

  void Send(const Flow& flow, const Mad& mad);
  // As if it came from the wire, at once.
  void Inject(const Flow& sender_flow, const Mad& mad);
  void Inject(const Flow& sender_flow, uint64_t transaction_id, const wire::CmMessage& message);
  double Chance() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  uint64_t Random() { return random_(); }
  // How many messages of this kind were sent, those that got lost included.
  [[nodiscard]] int Count(wire::CmAttribute attribute) const;
  [[nodiscard]] const SentMad* Last(wire::CmAttribute attribute) const;

  TimeNs now = kSecond;
  Faults faults;
  std::function<bool(const SentMad&)> pass;  // false: the message is lost
  std::vector<SentMad> sent;
  bool keep_sent = true;
  std::vector<TestHost*> hosts;

 private:
  struct InFlight {
    TimeNs time;
    uint64_t order;
    Flow flow;
    Mad mad;
    bool operator>(const InFlight& other) const {
      return std::tie(time, order) > std::tie(other.time, other.order);
    }
  };

  void Enqueue(const Flow& flow, const Mad& mad);
  bool RunUntil(TimeNs end);

  std::mt19937_64 random_;
  uint64_t order_ = 0;
  std::priority_queue<InFlight, std::vector<InFlight>, std::greater<>> in_flight_;
};

// A device that has addresses, an MTU and a GUID, and nothing else.
class TestDevice : public device::Device {
 public:
  explicit TestDevice(std::vector<IpAddress> its) : addresses(std::move(its)) {
    attr_.node_guid = 0x3432d3fffee26ce6;
    attr_.max_qp_rd_atom = 16;
  }
  const std::string& name() const noexcept override { return name_; }
  const std::string& kind() const noexcept override { return name_; }
  const std::string& netdev() const noexcept override { return name_; }
  const device::DeviceAttr& attr() const noexcept override { return attr_; }
  device::PortAttr QueryPort() const override { return {device::PortState::kActive, mtu}; }
  std::vector<device::GidEntry> Gids() const override;
  std::vector<device::CounterValue> Counters() const override { return {}; }
  absl::StatusOr<std::unique_ptr<device::Context>> Open(uint32_t) override {
    return absl::UnimplementedError("a test device");
  }

  [[nodiscard]] bool Has(const IpAddress& address) const;

  device::Mtu mtu = device::Mtu::k4096;
  std::vector<IpAddress> addresses;

 private:
  std::string name_ = "test0";
  device::DeviceAttr attr_;
};

// A machine with one device that has its address and another that has none to begin with, its
// directory, its MadIo and a connection manager.
class TestHost : public MadIo, public DeviceDirectory {
 public:
  TestHost(TestNet* net, const std::string& address, CmOptions options = {});
  ~TestHost() override;

  // Poll() has something to do, whatever the time.
  [[nodiscard]] bool HasWork() const;

  // MadIo
  bool SendMad(const Flow& flow, std::span<const uint8_t, kMadBytes> mad) noexcept override;
  bool Receive(ReceivedMad* out) noexcept override;
  int poll_fd() const noexcept override { return -1; }
  bool IsLocal(const IpAddress& address) const noexcept override {
    return device.Has(address) || second.Has(address);
  }
  // DeviceDirectory
  device::Device* FindByAddress(const IpAddress& address) const override;
  std::vector<IpAddress> Addresses() const override { return {ip}; }
  absl::StatusOr<IpAddress> SourceAddressFor(const IpAddress& peer) const override;
  uint32_t RouteMtuBytes(const IpAddress&, const IpAddress&) const override {
    return route_mtu_bytes;
  }

  const IpAddress ip;
  TestNet* const net;
  mutable TestDevice device;
  mutable TestDevice second{{}};
  bool has_route = true;
  uint32_t route_mtu_bytes = 0;
  bool has_device = true;
  std::deque<ReceivedMad> inbox;
  std::unique_ptr<SoftConnectionManager> manager;
};

struct SeenEvent {
  CmEventType type;
  int status;
  device::ConnParam param;
  device::Mtu path_mtu;
  device::AddressVector av;
  uint64_t multicast_cookie;
};

// An id as an application would hold it; writes down what it hears.
class TestId : public device::CmEventSink {
 public:
  explicit TestId(TestHost* host, device::PortSpace space = device::PortSpace::kTcp);
  explicit TestId(std::unique_ptr<device::CmEndpoint> taken);

  void OnCmEvent(device::CmEvent event) override;
  std::shared_ptr<const void> TakeBacklogPlace() override;

  device::CmEndpoint& operator*() { return *endpoint; }
  device::CmEndpoint* operator->() { return endpoint.get(); }
  [[nodiscard]] int Count(CmEventType type) const;
  [[nodiscard]] bool Saw(CmEventType type) const { return Count(type) > 0; }
  [[nodiscard]] const SeenEvent* Find(CmEventType type) const;
  // "addr_resolved connect_response", for messages.
  [[nodiscard]] std::string History() const;

  std::vector<SeenEvent> events;
  std::vector<std::unique_ptr<TestId>> requests;  // what a listener got
  // Called after an event was written down. May destroy the endpoint.
  std::function<void(TestId&, const SeenEvent&)> on_event;
  std::unique_ptr<device::CmEndpoint> endpoint;
  long backlog = 1024;  // of a listener

 private:
  // Of a listener, and of its requests until they are answered or over.
  const std::shared_ptr<const char> backlog_ = std::make_shared<const char>();
  std::shared_ptr<const void> place_;
  std::string unanswered_;  // the state that a request is in until then
};

// Resolves and connects by itself as its events come; establishes on the response.
void ConnectTo(TestId* client, const SocketAddress& peer,
               const device::ConnParam& param = Param(0x11));
// Listens and treats each request as `on_request` says.
void ListenOn(TestId* server, const SocketAddress& local, std::function<void(TestId&)> on_request,
              int backlog = 16);
inline void AcceptIt(TestId& request) {
  (void)request->Accept(Param(0x22));
}

}  // namespace rdmad::soft
