// The soft device's side of an rdma_cm id: addresses, ports, route and options, up to the point
// where a CmConnection takes over. Life before a connection:
//
//   kIdle -> BindAddr -> kBound -> Listen -> kListening
//     \________________/  |
//                         v ResolveAddr
//                     kAddrQuery -> kAddrResolved -> ResolveRoute -> kRouteQuery -> kRouteResolved
//                                                                                      | Connect
//   (an endpoint that a listener made begins here) ------------------------------> kConnected
//
// kAddrQuery falls back to kBound on an error; losing the device ends in kConnected without a
// connection. An endpoint has one connection in its life. Thread: control. Owner: the caller of
// CreateEndpoint(), or the receiver of kConnectRequest.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/device/connection_manager.h"
#include "daemon/device/soft/cm/cm_connection.h"
#include "daemon/device/soft/cm/soft_connection_manager.h"
#include "daemon/device/soft/cm/source_address.h"

namespace rdmad::soft {

class SoftCmEndpoint : public device::CmEndpoint {
 public:
  SoftCmEndpoint(SoftConnectionManager* manager, device::PortSpace space,
                 device::CmEventSink* sink);
  ~SoftCmEndpoint() override;

  void SetSink(device::CmEventSink* sink) noexcept override { sink_ = sink; }
  absl::Status BindAddr(const SocketAddress& local) override;
  absl::Status ResolveAddr(const SocketAddress& local, const SocketAddress& peer,
                           uint32_t timeout_ms) override;
  absl::Status ResolveRoute(uint32_t timeout_ms) override;
  absl::Status Listen(int backlog) override;
  absl::Status Connect(const device::ConnParam& param) override;
  absl::Status Establish() override;
  absl::Status Accept(const device::ConnParam& param) override;
  absl::Status Reject(std::span<const uint8_t> private_data) override;
  absl::Status Disconnect() override;
  absl::Status NotifyCommEstablished() override;
  // Options as in rdma_set_option(3), level RDMA_OPTION_ID, with the value sizes of the kernel.
  // Unimplemented: another option.
  absl::Status SetOption(uint32_t option, std::span<const uint8_t> value) override;
  absl::Status JoinMulticast(const SocketAddress&, uint32_t, uint64_t) override {
    return absl::UnimplementedError("join_multicast: not on this device");
  }
  absl::Status LeaveMulticast(const SocketAddress&) override {
    return absl::UnimplementedError("leave_multicast: not on this device");
  }
  absl::StatusOr<device::QpAttr> InitQpAttr(device::QpState state) const override;

  device::Device* device() const noexcept override { return device_; }
  SocketAddress local() const noexcept override { return local_; }
  SocketAddress peer() const noexcept override { return peer_; }
  const char* state_name() const noexcept override;
  uint32_t remote_qpn() const noexcept override { return remote_qpn_; }

  // ---- for the manager ----
  void OnQueryTimer();
  // Makes this the endpoint of a request that came in.
  void Adopt(CmConnection* connection, const SocketAddress& local, const SocketAddress& peer);
  // Last stop of an event before the sink, which may destroy the endpoint.
  void Deliver(device::CmEvent event);
  void OnConnectionClosed();
  void OnDeviceRemoved();
  [[nodiscard]] SoftConnectionManager::EndpointId id() const noexcept { return id_; }
  [[nodiscard]] device::PortSpace space() const noexcept { return space_; }
  [[nodiscard]] int backlog() const noexcept { return backlog_; }
  int pending = 0;  // requests that this listener's owner has not answered

 private:
  enum class State : uint8_t {
    kIdle,
    kBound,
    kAddrQuery,
    kAddrResolved,
    kRouteQuery,
    kRouteResolved,
    kListening,
    kConnected,
  };

  absl::Status WrongState(const char* call) const;
  absl::Status Bind(const SocketAddress& local);
  // The end of the address query; `error`: a negative errno, or 0.
  void FinishAddrQuery(int error);
  // Makes the query's answer this endpoint's own; may turn `event` into an error.
  void TakeSource(device::CmEvent* event);

  SoftConnectionManager* const manager_;
  const device::PortSpace space_;
  const SoftConnectionManager::EndpointId id_;
  device::CmEventSink* sink_;
  State state_ = State::kIdle;
  device::Device* device_ = nullptr;
  SocketAddress local_;
  SocketAddress peer_;
  ChosenSource source_;  // what a running address query is about
  TimeNs query_deadline_ = 0;
  int64_t query_pause_ns_ = 0;
  int backlog_ = 0;
  CmConnection* connection_ = nullptr;
  uint32_t remote_qpn_ = 0;
  // Options.
  uint8_t tos_ = 0;
  uint8_t ack_timeout_;
  bool reuse_addr_ = false;
  bool v6_only_ = false;
};

}  // namespace rdmad::soft
