// A connection manager whose endpoints say yes to everything and never report anything by
// themselves.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "daemon/device/connection_manager.h"

namespace rdmad::session {

class FakeConnectionManager;

class FakeEndpoint final : public device::CmEndpoint {
 public:
  FakeEndpoint(FakeConnectionManager* manager, device::CmEventSink* sink);
  ~FakeEndpoint() override;

  void SetSink(device::CmEventSink* the_sink) noexcept override { sink = the_sink; }
  absl::Status BindAddr(const SocketAddress& address) override {
    local_ = address;
    return absl::OkStatus();
  }
  absl::Status ResolveAddr(const SocketAddress&, const SocketAddress&, uint32_t) override {
    return absl::OkStatus();
  }
  absl::Status ResolveRoute(uint32_t) override { return absl::OkStatus(); }
  absl::Status Listen(int) override { return absl::OkStatus(); }
  absl::Status Connect(const device::ConnParam&) override { return absl::OkStatus(); }
  absl::Status Establish() override { return absl::OkStatus(); }
  absl::Status Accept(const device::ConnParam&) override { return absl::OkStatus(); }
  absl::Status Reject(std::span<const uint8_t>) override { return absl::OkStatus(); }
  absl::Status Disconnect() override { return absl::OkStatus(); }
  absl::Status NotifyCommEstablished() override { return absl::OkStatus(); }
  absl::Status SetOption(uint32_t, std::span<const uint8_t>) override { return absl::OkStatus(); }
  absl::Status JoinMulticast(const SocketAddress& group, uint32_t, uint64_t cookie) override {
    if (!joined.emplace(group.ip, cookie).second) return absl::AlreadyExistsError("in the group");
    return absl::OkStatus();
  }
  absl::Status LeaveMulticast(const SocketAddress& group) override {
    return joined.erase(group.ip) != 0 ? absl::OkStatus() : absl::NotFoundError("not in the group");
  }
  // Of a listener: somebody wants to connect.
  void SayRequest() {
    device::CmEvent event;
    event.type = device::CmEventType::kConnectRequest;
    event.new_endpoint = std::make_unique<FakeEndpoint>(manager_, nullptr);
    sink->OnCmEvent(std::move(event));
  }
  // The outcome of a join.
  void SayJoined(const IpAddress& group, int status = 0) {
    device::CmEvent event;
    event.type =
        status == 0 ? device::CmEventType::kMulticastJoin : device::CmEventType::kMulticastError;
    event.status = status;
    event.multicast_cookie = joined.at(group);
    event.av.dest = group;
    event.param.qpn = 0xffffff;
    event.param.qkey = 0x01234567;
    if (status != 0) joined.erase(group);
    sink->OnCmEvent(std::move(event));
  }
  absl::StatusOr<device::QpAttr> InitQpAttr(device::QpState state) const override {
    device::QpAttr attr;
    attr.mask = device::kQpAttrState;
    attr.state = state;
    return attr;
  }
  device::Device* device() const noexcept override { return bound; }
  SocketAddress local() const noexcept override { return local_; }
  SocketAddress peer() const noexcept override { return {}; }
  const char* state_name() const noexcept override { return "fake"; }
  uint32_t remote_qpn() const noexcept override { return 0; }

  device::CmEventSink* sink;
  device::Device* bound = nullptr;
  std::map<IpAddress, uint64_t> joined;  // and the cookie

 private:
  FakeConnectionManager* const manager_;
  SocketAddress local_;
};

class FakeConnectionManager final : public device::ConnectionManager {
 public:
  std::unique_ptr<device::CmEndpoint> CreateEndpoint(device::PortSpace,
                                                     device::CmEventSink* sink) override {
    return std::make_unique<FakeEndpoint>(this, sink);
  }
  bool Serves(const IpAddress&) const override { return true; }
  int poll_fd() const noexcept override { return -1; }
  void Poll(device::TimeNs) override {}
  device::TimeNs NextDeadline() const noexcept override { return device::kNever; }

  int endpoints = 0;
  FakeEndpoint* last = nullptr;
  std::function<void()> on_endpoint_gone;
};

inline FakeEndpoint::FakeEndpoint(FakeConnectionManager* manager, device::CmEventSink* the_sink)
    : sink(the_sink), manager_(manager) {
  ++manager_->endpoints;
  manager_->last = this;
}

inline FakeEndpoint::~FakeEndpoint() {
  --manager_->endpoints;
  if (manager_->on_endpoint_gone) manager_->on_endpoint_gone();
}

}  // namespace rdmad::session
