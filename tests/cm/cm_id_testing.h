// Stand-ins for what a CmId works with: an endpoint that writes down what it is told, an engine
// that answers when the test says so, a QP, a session, and the client's end of an event channel.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/cm/cm_id.h"

namespace rdmad::cm {

class FakeManager;

// Each call is written down by name; its result is OK unless `results` has one.
class FakeEndpoint : public device::CmEndpoint {
 public:
  FakeEndpoint(FakeManager* manager, device::CmEventSink* sink);
  ~FakeEndpoint() override;

  void SetSink(device::CmEventSink* new_sink) noexcept override { sink = new_sink; }
  absl::Status BindAddr(const SocketAddress&) override { return Call("bind_addr"); }
  absl::Status ResolveAddr(const SocketAddress&, const SocketAddress&, uint32_t) override {
    return Call("resolve_addr");
  }
  absl::Status ResolveRoute(uint32_t) override { return Call("resolve_route"); }
  absl::Status Listen(int) override { return Call("listen"); }
  absl::Status Connect(const device::ConnParam& p) override { return Call("connect", p); }
  absl::Status Establish() override { return Call("establish"); }
  absl::Status Accept(const device::ConnParam& p) override { return Call("accept", p); }
  absl::Status Reject(std::span<const uint8_t>) override { return Call("reject"); }
  absl::Status Disconnect() override { return Call("disconnect"); }
  absl::Status NotifyCommEstablished() override { return Call("notify"); }
  absl::Status SetOption(uint32_t, std::span<const uint8_t>) override { return Call("set_option"); }
  absl::Status JoinMulticast(const SocketAddress&, uint32_t, uint64_t) override {
    return Call("join_multicast");
  }
  absl::Status LeaveMulticast(const SocketAddress&) override { return Call("leave_multicast"); }
  absl::StatusOr<device::QpAttr> InitQpAttr(device::QpState state) const override;
  device::Device* device() const noexcept override;
  SocketAddress local() const noexcept override {
    return SocketAddress::Parse("10.0.0.1:1000").value();
  }
  SocketAddress peer() const noexcept override {
    return SocketAddress::Parse("10.0.0.2:2000").value();
  }
  const char* state_name() const noexcept override { return "fake"; }
  uint32_t remote_qpn() const noexcept override { return 0x22; }

  // What the device would tell the id now.
  void Say(device::CmEventType type, int status = 0);
  // A connect request whose peer answers so many READs at a time; returns the endpoint of the new
  // id. `place`: of a device that has asked for one.
  FakeEndpoint* SayRequest(uint8_t initiator_depth = 16,
                           std::shared_ptr<const void> place = nullptr);

  device::CmEventSink* sink;
  device::ConnParam param;  // of the last connect or accept
  std::map<std::string, absl::Status> results;
  bool attributes_known = true;

 private:
  absl::Status Call(const char* name);
  absl::Status Call(const char* name, const device::ConnParam& with);

  FakeManager* const manager_;
};

class FakeManager : public device::ConnectionManager {
 public:
  std::unique_ptr<device::CmEndpoint> CreateEndpoint(device::PortSpace,
                                                     device::CmEventSink* sink) override;
  bool Serves(const IpAddress&) const override { return true; }
  int poll_fd() const noexcept override { return -1; }
  void Poll(device::TimeNs) override {}
  device::TimeNs NextDeadline() const noexcept override { return device::kNever; }

  FakeEndpoint* last = nullptr;
  int alive = 0;
  std::vector<std::string> log;  // calls of endpoints and moves of the QP, in order
};

class FakeQp : public device::Qp {
 public:
  explicit FakeQp(FakeManager* manager) : manager_(manager) {}
  void Activate(device::TimeNs) noexcept override {}
  void Deactivate(device::TimeNs) noexcept override {}
  uint32_t qpn() const noexcept override { return 0x11; }
  const device::QpCap& cap() const noexcept override { return cap_; }
  device::PostResult PostSend(const device::SendWr&, device::TimeNs) noexcept override {
    return device::PostResult::kOk;
  }
  device::PostResult PostRecv(const device::RecvWr&, device::TimeNs) noexcept override {
    return device::PostResult::kOk;
  }
  device::QpResult Modify(const device::QpAttr& attr, device::TimeNs) noexcept override;
  device::QpAttr Query() const noexcept override { return {}; }
  bool same_daemon() const noexcept override { return false; }

  std::vector<device::QpAttr> moves;
  device::QpState refuses = device::QpState::kReset;  // a state that it does not go to

 private:
  FakeManager* const manager_;
  device::QpCap cap_;
};

// Executes commands at once or, while `holds`, when Run() is called.
class FakeEngine : public engine::EngineProxy {
 public:
  std::unique_ptr<engine::SessionPort> CreateSessionPort(engine::SessionPortInit) override {
    return nullptr;
  }
  std::unique_ptr<engine::ChannelPort> CreateChannelPort(engine::ChannelPortInit) override {
    return nullptr;
  }
  std::unique_ptr<engine::CqPort> CreateCqPort(const engine::CqPortInit&) override {
    return nullptr;
  }
  std::unique_ptr<engine::QueuePairPort> CreateQueuePairPort(
      const engine::QueuePairPortInit&) override {
    return nullptr;
  }
  std::unique_ptr<engine::SrqPort> CreateSrqPort(const engine::SrqPortInit&) override {
    return nullptr;
  }
  std::unique_ptr<engine::AhPort> CreateAhPort(const engine::AhPortInit&) override {
    return nullptr;
  }
  void SetSrqLimit(device::Srq&, uint32_t, ModifyDone done) override {
    done(device::QpResult::kOk);
  }
  void QuerySrqLimit(device::Srq&, LimitDone done) override { done(0); }
  int engine_page_fd() const noexcept override { return -1; }
  uint64_t engine_page_bytes() const noexcept override { return 0; }
  void Activate(device::EngineObject&, Done done) override { done(); }
  void Deactivate(device::EngineObject&, Done done) override { done(); }
  void ModifyQp(device::Qp& qp, const device::QpAttr& attr, ModifyDone done) override;
  void QueryQp(device::Qp& qp, QueryDone done) override { done(qp.Query()); }
  void ShowQp(device::Qp& qp, QueryDone done) override { done(qp.Known()); }
  uint32_t index() const noexcept override { return 0; }
  engine::EngineStats Stats() const noexcept override { return {}; }
  int poll_fd() const noexcept override { return -1; }
  void Poll() override {}
  void SetEventSink(engine::EngineEventSink*) noexcept override {}

  // Executes what is held, and what that causes.
  void Run();

  bool holds = false;

 private:
  std::deque<std::function<void()>> held_;
};

// The session, as far as ids and channels see it.
class FakeSession : public CmIdHost, public EventChannelHost {
 public:
  absl::StatusOr<uint64_t> AdoptId(std::unique_ptr<CmId> id, CmId& listener) override;
  void DiscardId(uint64_t handle) override { ids.erase(handle); }
  uint32_t DeviceIndex(const device::Device* device) const override {
    return device == nullptr ? shm::kNoDevice : 3;
  }
  void AttachQp(uint64_t handle, const IpAddress& group,
                std::function<void(absl::Status)> done) override {
    attached.emplace_back(handle, group);
    attach_done = std::move(done);
  }
  void DetachQp(uint64_t handle, const IpAddress& group) override {
    detached.emplace_back(handle, group);
  }
  size_t pending_requests() const { return static_cast<size_t>(pending.use_count()) - 1; }
  void OnChannelBlocked(EventChannel&) override { ++blocked; }
  void OnChannelOverflow(EventChannel&) override { ++overflowed; }

  const std::shared_ptr<const void> pending = std::make_shared<int>();
  std::map<uint64_t, std::unique_ptr<CmId>> ids;
  std::vector<std::pair<uint64_t, IpAddress>> attached;
  std::vector<std::pair<uint64_t, IpAddress>> detached;
  std::function<void(absl::Status)> attach_done;
  bool over_quota = false;
  uint64_t next_handle = 100;
  int blocked = 0;
  int overflowed = 0;
};

// A channel and the client's end of its pipe.
class TestChannel {
 public:
  explicit TestChannel(FakeSession* session, size_t queue_limit = EventChannel::kDefaultQueueLimit);

  // The next record, if there is one.
  bool Read(shm::CmEvent* out);
  std::vector<shm::CmEvent> ReadAll();
  // Stuffs the pipe so that not one record fits any more; Drain() takes that out again.
  void Fill();
  void Drain();
  void CloseReader() { reader_.Reset(); }

  EventChannel& operator*() { return *channel; }
  EventChannel* operator->() { return channel.get(); }
  EventChannel* get() { return channel.get(); }
  std::unique_ptr<EventChannel> channel;

 private:
  UniqueFd reader_;
};

}  // namespace rdmad::cm
